"""Bare torch loops as a baseline for sentinel's workloads: no checks, and no yielding.

``python -m benchmarks.torch_loops KIND --gpu UUID`` runs one kernel repeatedly on the visible GPU
and prints its rate once a second. Two steps are in flight, and waits sleep, as in a stressor.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.baselines import end_with_input
from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line

#: The divisor of each side on the CPU, and the rest after a step in seconds.
_SMALLER = 128
_REST = 0.02
#: The bytes that are copied back and forth, and the number of copies in a step.
_COPIED = 4 * 2**30
_COPIES = 4
#: The standard deviation of int8 and fp8 inputs, which uses the available range.
_SPREAD = 32


@dataclass(frozen=True)
class Product:
    """A product of ``rows`` x ``depth`` and ``depth`` x ``columns``, in torch's dtypes by name.

    The shapes are those that sentinel's ``gemm`` takes on a card that is fast enough.
    """

    rows: int
    columns: int
    depth: int
    inputs: str
    result: str


PRODUCTS = {
    "bf16": Product(16384, 16384, 16384, "bfloat16", "bfloat16"),
    "fp16": Product(16384, 16384, 16384, "float16", "float16"),
    "tf32": Product(8192, 8192, 16384, "float32", "float32"),
    "fp32": Product(16384, 8192, 4096, "float32", "float32"),
    "fp64": Product(8192, 8192, 8192, "float64", "float64"),
    "fp8": Product(16384, 16384, 32768, "float8_e4m3fn", "bfloat16"),
    "int8": Product(8192, 8192, 65536, "int8", "int32"),
}
COPY = "copy"
KINDS = (*PRODUCTS, COPY)

#: One step of work, which is queued, and its amount.
Step = Callable[[], object]
Work = tuple[Step, dict[str, float]]


def main() -> None:
    """Work until the benchmark ends this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--simulation")
    given = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    threading.Thread(target=end_with_input, daemon=True).start()
    device = "cpu" if given.simulation else "cuda"
    step, amounts = copies(device) if given.kind == COPY else products(given.kind, device)
    wait = paced() if device == "cpu" else fenced()
    step()
    wait()
    write_line(ready=True)
    since, steps = time.monotonic(), 0
    while True:
        step()
        wait()
        steps += 1
        seconds = time.monotonic() - since
        if seconds >= 1:
            write_line(**{name: amount * steps / seconds for name, amount in amounts.items()})
            since, steps = time.monotonic(), 0


def fenced() -> Step:
    """Return a function that waits, asleep, until only the last queued step is left."""
    import torch

    cuda: Any = torch.cuda
    fences = [cuda.Event(blocking=True) for _ in range(2)]
    turn = 0

    def wait() -> None:
        nonlocal turn
        fences[turn % 2].record()
        turn += 1
        if turn > 1:
            fences[turn % 2].synchronize()

    return wait


def paced() -> Step:
    """Return a function that leaves the CPU to other processes, for runs without a GPU."""
    return lambda: time.sleep(_REST)


def products(kind: str, device: str) -> Work:
    """Return a step that multiplies once, and its floating-point operations."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if kind == "tf32" else "ieee"
    else:
        matmul.allow_tf32 = kind == "tf32"
    shape = PRODUCTS[kind]
    smaller = _SMALLER if device == "cpu" else 1
    rows, columns, depth = (side // smaller for side in (shape.rows, shape.columns, shape.depth))
    left = normal((rows, depth), shape.inputs, device)
    if kind in {"fp8", "int8"}:  # stored by columns: fp8 requires it, int8 is faster
        right = normal((columns, depth), shape.inputs, device).t()
    else:
        right = normal((depth, columns), shape.inputs, device)
    out = torch.empty((rows, columns), dtype=getattr(torch, shape.result), device=device)
    multiply: dict[str, Callable[..., Any]] = {"fp8": torch._scaled_mm, "int8": torch._int_mm}  # noqa: SLF001
    more: dict[str, Any] = {}
    if kind == "fp8":
        scale = torch.full((), 1 / _SPREAD, device=device)
        more = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}
        more["use_fast_accum"] = True
    flops = 2.0 * rows * columns * depth
    call = multiply.get(kind, torch.mm)
    return (lambda: call(left, right, out=out, **more)), {"flops_per_s": flops}


def normal(sides: tuple[int, int], dtype: str, device: str) -> Any:
    """Return a random matrix of mean 0, made in pieces, as float32 may be four times as large."""
    import torch

    matrix: Any = torch.empty(sides, dtype=getattr(torch, dtype), device=device)
    spread = _SPREAD if dtype in {"int8", "float8_e4m3fn"} else 1
    drawn = torch.float64 if dtype == "float64" else torch.float32  # padding zeros draw less power
    for piece in matrix.split(1024):
        values = torch.randn(piece.shape, dtype=drawn, device=device) * spread
        piece.copy_(values.round_().clamp_(-127, 127) if dtype == "int8" else values)
    return matrix


def copies(device: str) -> Work:
    """Return a step that copies back and forth, and the bytes that it reads and writes."""
    import torch

    size = _COPIED // _SMALLER**2 if device == "cpu" else _COPIED
    one, other = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    one.random_()

    def step() -> None:
        for _ in range(_COPIES // 2):
            other.copy_(one)
            one.copy_(other)

    return step, {"bytes_per_s": 2.0 * size * _COPIES}


if __name__ == "__main__":
    main()
