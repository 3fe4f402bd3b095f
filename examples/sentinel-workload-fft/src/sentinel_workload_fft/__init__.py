"""Transform the memory of a GPU repeatedly, and check the energy by Parseval's theorem.

A workload for sentinel, and a model for others: it shows an option with a check, work divided into
quanta, results that are verified on the device, and an error count that is read without waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from math import log2

import torch
from torch import Tensor

from sentinel.workloads import ConfigError, ErrorCount, WorkloadContext

#: The largest piece that is transformed at once. The transform needs a temporary of that size,
#: which torch takes from the memory that sentinel leaves free.
_BLOCK = 64 * 2**20

#: Bytes of one complex64 value.
_COMPLEX = 8

#: The tolerated relative rounding error of the energy. One transform in float32 loses some 1e-6.
_TOLERANCE = 1e-3


def fft(ctx: WorkloadContext, *, length: int = 4096) -> None:
    """Replace one block after another by the Fourier transforms of its rows.

    Args:
        ctx: The workload's context.
        length: Values in a row: a power of two from 16 to 2**20.
    """
    # A ConfigError means that the options are wrong: sentinel does not retry until they change.
    if not (16 <= length <= 2**20 and length.bit_count() == 1):  # noqa: PLR2004 - as documented
        raise ConfigError(f"fft: length={length} is not a power of two from 16 to {2**20}")

    # All memory is taken before the loop. It need not be used to the last byte.
    transform = _Transform(ctx.device, _cut(ctx.chunks, length))

    # How many blocks make a quantum depends on the GPU, so it is measured. This also runs each
    # kernel once, before sentinel relies on the GPU's memory being steady.
    seconds = ctx.measure(transform.step)
    steps = max(1, round(ctx.quantum / max(seconds, 1e-6)))

    # pace() waits for the previous quantum, sends progress, and returns False at the end.
    while ctx.pace():
        for _ in range(steps):
            transform.step()
        ctx.report(
            iterations=steps,
            flops=steps * transform.flops,
            bytes=steps * transform.bytes,
            checks=steps,
            errors=transform.errors.news(),
        )


class _Transform:
    """Blocks that are transformed one after another.

    Args:
        device: Their device.
        blocks: Complex matrices of one shape, which are overwritten.
    """

    def __init__(self, device: torch.device, blocks: list[Tensor]) -> None:
        self.errors = ErrorCount(device)
        rows, length = blocks[0].shape
        self.flops = 5.0 * rows * length * log2(length)  # the usual count
        self.bytes = 5.0 * blocks[0].nbytes  # transform 2, copy 2, norm 1
        for block in blocks:
            torch.view_as_real(block).normal_()
        norms = [torch.linalg.vector_norm(block) for block in blocks]
        self._turns: Iterator[tuple[Tensor, Tensor]] = cycle(zip(blocks, norms, strict=True))

    def step(self) -> None:
        """Queue the transform of the next block, and the check of its norm.

        Nothing here waits for the device. All temporaries have the same size in every step, so
        torch's cache has them ready from the second step on.
        """
        block, before = next(self._turns)
        block.copy_(torch.fft.fft(block, norm="ortho"))
        after = torch.linalg.vector_norm(block)
        # In this form a NaN is an error, too.
        kept = (after - before).abs() <= _TOLERANCE * before
        self.errors.total.add_(~kept)
        before.copy_(after)


def _cut(chunks: list[Tensor], length: int) -> list[Tensor]:
    """Return equal blocks of rows of ``length`` values; a remainder stays unused."""
    row = length * _COMPLEX
    size = min(_BLOCK, chunks[0].numel()) // row * row
    if not size:
        what = f"fft: a row of length={length} does not fit into a chunk"
        raise ConfigError(what, "Take a smaller length, or larger chunks.")
    return [
        chunk[start : start + size].view(torch.complex64).view(-1, length)
        for chunk in chunks
        for start in range(0, chunk.numel() - size + 1, size)
    ]
