"""Divide chunks into the memory of products: inputs, reference, scratch and slots for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

#: With fewer slots, no result can be checked some quanta before it is overwritten.
MIN_SLOTS = 3

#: Bytes that a checksum processes at a time. On an H200, with a quarter of it, the host needed
#: longer to queue the kernels than the device to run them.
PIECE_BYTES = 32 * 2**20

#: The same where there is no room for that.
SMALL_PIECE_BYTES = 8 * 2**20

#: The alignment of matrices in bytes; kernels are slower with less.
_ALIGNMENT = 512


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The bytes that a product requires: for its inputs and for each result."""

    left: int
    right: int
    result: int

    def maximum(self, other: Needs) -> Needs:
        """Compute the needs that suffice for either of two products, used one at a time."""
        return Needs(
            left=max(self.left, other.left),
            right=max(self.right, other.right),
            result=max(self.result, other.result),
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Tensors of bytes, the memory of products."""

    left: Tensor
    right: Tensor
    reference: Tensor
    #: One byte for every eight of a result.
    differs: Tensor
    #: The factors of a checksum.
    weights: Tensor
    #: The products of a checksum.
    weighted: Tensor
    #: The memory of the slots.
    rest: tuple[Tensor, ...]

    def slots(self, size: int) -> list[Tensor]:
        """Return all slots of ``size`` bytes."""
        step = _round_up(size)
        return [
            piece[start : start + size]
            for piece in self.rest
            for start in range(0, piece.numel() - size + 1, step)
        ]


def lay_out(chunks: Sequence[Tensor], needs: Needs) -> Layout | None:
    """Divide ``chunks`` by ``needs``; return None if there is no room.

    No piece spans two chunks, as they are not adjacent.
    """
    layouts = (_lay_out(chunks, needs, piece) for piece in (PIECE_BYTES, SMALL_PIECE_BYTES))
    return next((layout for layout in layouts if layout is not None), None)


def _lay_out(chunks: Sequence[Tensor], needs: Needs, piece: int) -> Layout | None:
    """Divide ``chunks`` with this size of a checksum's piece, or return None."""
    largest = min(piece, max(needs.left, needs.right, needs.result))
    sizes = [needs.left, needs.right, needs.result, needs.result // 8, largest, largest]
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    rests = list(chunks)
    parts: dict[int, Tensor] = {}
    for number in order:
        size = sizes[number]
        fitting = [place for place, rest in enumerate(rests) if rest.numel() >= size]
        if not fitting:
            return None
        place = _tightest(fitting, rests)
        parts[number] = rests[place][:size]
        rests[place] = rests[place][_round_up(size) :]
    left, right, reference, differs, weights, weighted = (parts[n] for n in range(len(sizes)))
    layout = Layout(
        left=left,
        right=right,
        reference=reference,
        differs=differs,
        weights=weights,
        weighted=weighted,
        rest=tuple(rest for rest in rests if rest.numel()),
    )
    return layout if len(layout.slots(needs.result)) >= MIN_SLOTS else None


def _tightest(fitting: Iterable[int], rests: Sequence[Tensor]) -> int:
    """Return the index of the piece with the least room, so that whole chunks stay whole."""
    return min(fitting, key=lambda place: rests[place].numel())


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
