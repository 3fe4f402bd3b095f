"""Run the kernels of ``units`` on the visible GPU, and print how far they are from torch, as JSON.

Special functions: the largest error, as a share of the error that NVIDIA allows. Shared memory: the
number of words that are elsewhere than torch has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from sentinel.stressor.kernels import (
    OF_ABSOLUTE_VALUE,
    ROUNDS,
    SPECIAL_FUNCTIONS,
    STEP,
    Kernel,
    sfu_ptx,
    shared_ptx,
)

_ULP = 2.0**-23

#: The function in torch, and the error that PTX ISA 9.1 allows of its exact value, by sections
#: 9.7.3.13 (rcp: 1 ulp), 15 (sqrt: 2**-23 of it), 16 (rsqrt: 2**-22.9 of it), 18 and 19 (sin, cos:
#: 2**-20.5 from -2 pi to 2 pi), 20 (lg2: 2**-22 from 0.5 to 2, 2**-22 of it elsewhere), and 21
#: (ex2: 2 ulp of the rounded value, which is half a ulp from the exact one).
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "ex2": (torch.exp2, lambda exact: exact.abs() * 2.5 * _ULP),
    "lg2": (torch.log2, lambda exact: exact.abs().clamp(min=1) * 2.0**-22),
    "sin": (torch.sin, lambda exact: torch.full_like(exact, 2.0**-20.5)),
    "cos": (torch.cos, lambda exact: torch.full_like(exact, 2.0**-20.5)),
    "rsqrt": (torch.rsqrt, lambda exact: exact.abs() * 2.0**-22.9),
    "rcp": (torch.reciprocal, lambda exact: exact.abs() * _ULP),
    "sqrt": (torch.sqrt, lambda exact: exact.abs() * _ULP),
}


def special_functions() -> dict[str, float]:
    """Compute each function alone, and all of them at once: 0 if that is their xor."""
    numbers = torch.linspace(-6.28, 6.28, 2**20 + 64, device="cuda")
    out, together = torch.empty_like(numbers), torch.zeros_like(numbers, dtype=torch.int32)
    found = {}
    for name in SPECIAL_FUNCTIONS:
        Kernel("sfu", sfu_ptx((name,))).run(numbers, out)
        together ^= out.view(torch.int32)
        function, allowed = FUNCTIONS[name]
        exact = function(numbers.double().abs() if name in OF_ABSOLUTE_VALUE else numbers.double())
        found[name] = float(((out.double() - exact).abs() / allowed(exact)).max())
    Kernel("sfu", sfu_ptx()).run(numbers, out)
    return {**found, "all": float((out.view(torch.int32) != together).sum())}


def exchanged(numbers: Tensor, words: int) -> Tensor:
    """Exchange numbers as the kernel does, in blocks of ``words``."""
    place = torch.arange(words, device=numbers.device)
    for number in range(ROUNDS, 0, -1):
        place = (2 * (number * STEP % words) - 1 - place) % words
    index = torch.arange(numbers.numel(), device=numbers.device)
    index = index // words * words + place[index % words]
    return numbers[index.clamp_(max=numbers.numel() - 1)]


def shared_memory() -> int:
    """Exchange less than a block has, and many blocks with a rest, several times."""
    kernel = Kernel("shared", shared_ptx(), fills_shared=True)
    wrong = 0
    for count in (4096, 2**24):
        numbers = torch.randint(-(2**31), 2**31, (count,), device="cuda", dtype=torch.int32)
        expected = exchanged(numbers, kernel.words)
        for _ in range(3):
            out = torch.zeros_like(numbers)
            kernel.run(numbers, out)
            wrong += int((out != expected).sum())
    return wrong


if __name__ == "__main__":
    sys.stdout.write(json.dumps({**special_functions(), "shared": shared_memory()}))
