"""Multiply bf16 matrices on the tensor cores and check every result bit for bit.

The results go round a ring that fills the memory. A result is compared just before its place is
needed again, so it also lay in memory for a whole round: the check sees a wrong computation and a
memory that forgets. On an H200 it costs 2 % of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verify import BitComparison

__all__ = ["Ring", "cut", "gemm", "ring_for"]

#: The sizes to choose from, largest first. A 16384 x 16384 matrix of bf16 is one chunk of 512 MiB.
_SIZES = tuple(2**power for power in range(14, 5, -1))

#: Two inputs, the reference, the comparison's scratch memory and a ring of at least two results.
_FEWEST_SLOTS = 6

#: How many quanta one multiplication may take.
_LONGEST = 1.25

#: How many random values an input is made of: the largest prime below 2**20. Rows of a power of two
#: then begin at different places in it, and no two rows are alike.
_PERIOD = 1_048_573


def gemm(ctx: WorkloadContext, size: int = 0) -> None:
    """Multiply two matrices for ever and check each product.

    Args:
        ctx: The GPU.
        size: Rows of the square matrices, a multiple of 64; 0 takes the largest power of two up to
            16384 that fits six times into the memory and is multiplied within a quantum.
    """
    ring = ring_for(ctx, size)
    ring.prepare()
    repeats = max(1, round(ctx.quantum / max(ctx.measure(ring.multiply), 1e-6)))
    while ctx.pace():
        checks = sum(ring.step() for _ in range(repeats))
        ctx.report(
            iterations=repeats,
            flops=ring.flops * repeats,
            checks=checks,
            errors=ring.comparison.errors.news(),
        )
    ctx.report(iterations=0, errors=ring.comparison.errors.last_news())


def ring_for(ctx: WorkloadContext, size: int) -> Ring:
    """Return a ring of matrices of ``size`` rows, or for 0 of the largest that fit and are fast.

    Raises:
        ConfigError: They do not fit, or the size is no multiple of 64.
    """
    return _ring_of(ctx, size) if size else _choose(ctx)


class Ring:
    """One product, computed again and again into the places of a ring.

    Args:
        slots: At least six square matrices of bf16, all of one size, which are overwritten.
    """

    def __init__(self, slots: Sequence[Tensor]) -> None:
        self.left, self.right, self.reference, scratch, *self.places = slots
        self.comparison = BitComparison(self.reference, scratch)
        self.flops = 2.0 * self.left.shape[0] ** 3
        self._next = 0
        self._full = False
        _fill(self.left, seed=1)
        _fill(self.right, seed=2)

    def prepare(self) -> None:
        """Compute the reference, twice, and prove that the comparison finds a wrong bit.

        Raises:
            RuntimeError: The GPU gave two different products, or the comparison is blind.
        """
        self.multiply()
        torch.mm(self.left, self.right, out=self.places[0])
        self.comparison.check(self.places[0])
        if self.comparison.errors.last_news():
            message = "the same matrix product, computed twice, differs; this GPU computes wrongly"
            raise RuntimeError(message)
        self.comparison.prove(self.places[1])

    def multiply(self) -> None:
        """Queue the reference product once more."""
        torch.mm(self.left, self.right, out=self.reference)

    def step(self) -> int:
        """Queue one product into the next place; return how many old results were checked."""
        place = self.places[self._next]
        checked = int(self._full)
        if checked:
            self.comparison.check(place)
        torch.mm(self.left, self.right, out=place)
        self._next += 1
        if self._next == len(self.places):
            self._next, self._full = 0, True
        return checked


def cut(chunks: Sequence[Tensor], size: int) -> list[Tensor]:
    """Return all the matrices of ``size`` rows of bf16 that fit into ``chunks``."""
    slots: list[Tensor] = []
    for chunk in chunks:
        count = chunk.numel() // (2 * size * size)
        matrices = chunk[: count * 2 * size * size].view(torch.bfloat16)
        slots.extend(matrices.view(count, size, size).unbind(0) if count else ())
    return slots


def _ring_of(ctx: WorkloadContext, size: int) -> Ring:
    """Return a ring of matrices of exactly ``size`` rows."""
    if size < _SIZES[-1] or size % _SIZES[-1]:
        raise ConfigError(f"gemm: size={size} is not a positive multiple of {_SIZES[-1]}")
    slots = cut(ctx.chunks, size)
    if len(slots) < _FEWEST_SLOTS:
        what = f"gemm: {_FEWEST_SLOTS} matrices of size={size} are needed, {len(slots)} fit"
        raise ConfigError(
            what, "Take a smaller size, hold more memory, or take it in larger chunks."
        )
    return Ring(slots)


def _choose(ctx: WorkloadContext) -> Ring:
    """Return a ring of the largest matrices that fit and are multiplied fast enough."""
    ring = None
    for size in _SIZES:
        slots = cut(ctx.chunks, size)
        if len(slots) < _FEWEST_SLOTS:
            continue
        ring = Ring(slots)
        if ctx.measure(ring.multiply) <= _LONGEST * ctx.quantum:
            break
    if ring is None:
        what = f"gemm: there is no room for {_FEWEST_SLOTS} matrices of {_SIZES[-1]} rows"
        raise ConfigError(what, "Hold more memory, or take larger chunks.")
    return ring


def _fill(matrix: Tensor, seed: int) -> None:
    """Fill ``matrix`` with normal values that are the same on every GPU.

    They are drawn on the CPU, since a GPU's own generator hands its numbers out by how many
    multiprocessors there are. A million of them, repeated, are drawn in 10 ms; a whole matrix of
    16384 rows would take seconds. The repeating is done on the device, doubling what is there.
    """
    flat = matrix.view(-1)
    block = torch.randn(_PERIOD, generator=torch.Generator().manual_seed(seed))
    done = min(_PERIOD, flat.numel())
    flat[:done].copy_(block[:done].to(torch.bfloat16))
    while done < flat.numel():
        step = min(done, flat.numel() - done)
        flat[done : done + step].copy_(flat[:step])
        done += step
