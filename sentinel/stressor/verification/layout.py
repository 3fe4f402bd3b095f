"""Cut chunks into what products need: inputs, reference, scratch memory, and places for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

#: A ring with fewer places has none whose result is checked some quanta before it is overwritten.
FEWEST_PLACES = 3

#: How many bytes a checksum takes at a time.
PIECE = 8 * 2**20

#: What matrices are aligned to, in bytes; kernels are slower with less.
_ALIGNED = 512


@dataclass(frozen=True, kw_only=True)
class Needs:
    """How many bytes a product takes: its inputs, and each of its results."""

    left: int
    right: int
    result: int

    def most(self, other: Needs) -> Needs:
        """Return what is enough for both, one at a time."""
        return Needs(
            left=max(self.left, other.left),
            right=max(self.right, other.right),
            result=max(self.result, other.result),
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Pieces of bytes.

    ``differs`` holds a byte for each eight of a result, ``weights`` and ``weighted`` what a
    checksum takes at a time; ``rest`` is where results go.
    """

    left: Tensor
    right: Tensor
    reference: Tensor
    differs: Tensor
    weights: Tensor
    weighted: Tensor
    rest: tuple[Tensor, ...]

    def places(self, size: int) -> list[Tensor]:
        """Return all the places of ``size`` bytes."""
        step = _round_up(size)
        return [
            piece[start : start + size]
            for piece in self.rest
            for start in range(0, piece.numel() - size + 1, step)
        ]


def lay_out(chunks: Sequence[Tensor], needs: Needs) -> Layout | None:
    """Return the layout for products that need ``needs``; None where the chunks have no room.

    No piece spans two chunks, as they do not lie beside each other.
    """
    largest = min(PIECE, max(needs.left, needs.right, needs.result))
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
    return layout if len(layout.places(needs.result)) >= FEWEST_PLACES else None


def _tightest(fitting: Iterable[int], rests: Sequence[Tensor]) -> int:
    """Return the piece with the least room, so that whole chunks stay whole."""
    return min(fitting, key=lambda place: rests[place].numel())


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
