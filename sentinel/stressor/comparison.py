"""Compare results bit for bit and take checksums on the device, without waiting for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

#: The interval at which the count is copied from the device.
_INTERVAL_S = 1.0

#: Integer types by the bytes of an element.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ErrorCount:
    """Count errors on the device, and read the count without waiting.

    About once a second the count is copied to pinned host memory. It is read when the copy is done,
    so the host neither spins nor delays the device.

    Attributes:
        total: The number of errors so far, a scalar on the device to add to.
    """

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.int64, device=device)
        self._seen = host_copy_of(self.total)
        # Any, because torch declares no types for its events.
        self._copied: Any = cast("Any", torch.cuda.Event)() if device.type == "cuda" else None
        self._copying = False
        self._returned = 0
        self._next = 0.0

    def news(self) -> int:
        """Return the errors that became known since the last call; queue a copy if it is due."""
        if self._copying:
            if self._copied is not None and not self._copied.query():
                return 0
            self._copying = False
            return self._take()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL_S
            self._copying = True
            self._seen.copy_(self.total, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
        return 0

    def last_news(self) -> int:
        """Return the errors that ``news`` has not returned yet; waits for the device."""
        self._copying = False
        self._seen.copy_(self.total)
        return self._take()

    def _take(self) -> int:
        known = int(self._seen)
        news = known - self._returned
        self._returned = known
        return news


class BitComparison:
    """Compare results with a reference, and count those that differ in at least one bit.

    It compares bits, not values: an unexpected NaN and a zero with the wrong sign count, too.

    Args:
        reference: The correct result, contiguous and a multiple of eight bytes long.
        scratch: Memory for one byte per eight bytes of the reference.
    """

    def __init__(self, reference: Tensor, scratch: Tensor) -> None:
        self.errors = ErrorCount(reference.device)
        self._reference = words(reference)
        needed = self._reference.numel()
        self._differs = scratch.view(-1).view(torch.uint8)[:needed].view(torch.bool)
        self._any = torch.zeros((), dtype=torch.bool, device=reference.device)

    def check(self, result: Tensor) -> None:
        """Queue the comparison of ``result``, and count it if it is wrong; allocates nothing."""
        self.mark(result, self._any)
        self.errors.total.add_(self._any)

    def mark(self, result: Tensor, wrong: Tensor) -> None:
        """Queue the comparison of ``result`` into ``wrong``, a bool scalar; allocates nothing."""
        torch.ne(words(result), self._reference, out=self._differs)
        torch.any(self._differs, out=wrong)

    def prove(self, spare: Tensor) -> None:
        """Prove that one wrong bit is found and a correct result is not, overwriting ``spare``.

        This also runs every kernel of the comparison once, including the copy of the count.

        Raises:
            RuntimeError: The comparison cannot be trusted.
        """
        copy = words(spare)
        for position in (0, copy.numel() // 2, copy.numel() - 1):
            copy.copy_(self._reference)
            self.check(spare)
            if self.errors.last_news() != 0:
                message = "a copy of the reference was found to differ from it"
                raise RuntimeError(message)
            copy[position].bitwise_xor_(1)
            self.check(spare)
            if self.errors.last_news() != 1:
                message = "a flipped bit was not found; the comparison cannot be trusted"
                raise RuntimeError(message)


@dataclass(frozen=True, kw_only=True)
class PieceSums:
    """The sums of one matrix, piece by piece."""

    #: Of each piece: the sums with the squared factors of the first piece, with the factors, and
    #: with none.
    pieces: tuple[tuple[int, int, int], ...]
    #: The bytes of each piece but the last.
    piece_bytes: int

    @property
    def total(self) -> int:
        """Compute the checksum of the matrix, which does not depend on the length of a piece."""
        # In a piece that begins at integer b, each factor is larger by 2b.
        length = self.piece_bytes // 4
        sums = (
            squared + 2 * more * first + more**2 * plain
            for more, (squared, first, plain) in zip(
                range(0, 2 * length * len(self.pieces), 2 * length), self.pieces, strict=True
            )
        )
        return sum(sums) % 2**64

    def differing(self, other: PieceSums) -> list[tuple[int, int]]:
        """List the bytes, from one offset to another, of the pieces with other sums."""
        pairs = enumerate(zip(self.pieces, other.pieces, strict=True))
        size = self.piece_bytes
        return [(n * size, (n + 1) * size) for n, (one, two) in pairs if one != two]


class Checksum:
    """Take checksums that depend on the position of every bit.

    The checksum is the sum of (2i + 1)**2 times the 32-bit integer i, modulo 2**64. Every factor is
    odd: a change of one integer always shows, and no two flipped bits cancel out. Where factors
    grow evenly, those of four integers at equal distances may, as a fault of a warp flips them.
    It is taken piece by piece; the length of a piece makes no difference.

    Args:
        weights: Memory for the factors of one piece, a multiple of eight bytes.
        weighted: As much memory for the integers of one piece times their factors.
        longest: The maximum number of bytes that are summed.
    """

    def __init__(self, weights: Tensor, weighted: Tensor, longest: int) -> None:
        self._weights = words(weights)
        self._weighted = words(weighted)
        self._piece = self._weights.numel()
        device = weights.device
        pieces = -(-longest // (4 * self._piece))
        self._sums = torch.zeros((pieces, 3), dtype=torch.int64, device=device)
        self._host_sums = host_copy_of(self._sums)
        self._count = 0

    def queue(self, matrix: Tensor) -> None:
        """Queue the sums of ``matrix``, contiguous and a multiple of four bytes long."""
        pieces = torch.split(matrix.view(-1).view(torch.int32), self._piece)
        self._count = len(pieces)
        # Each time, since other work may use the same memory in between.
        torch.arange(1, 2 * self._piece, 2, out=self._weights)
        for number, piece in enumerate(pieces):
            # All in 64 bits: a 32-bit sum loads 17 MiB more of kernels into host memory.
            weighted = self._weighted[: piece.numel()]
            weighted.copy_(piece)
            for power in (2, 1, 0):
                torch.sum(weighted, dim=0, out=self._sums[number, power])
                if power:
                    weighted.mul_(self._weights[: piece.numel()])
        self._host_sums[: self._count].copy_(self._sums[: self._count], non_blocking=True)

    def value(self) -> PieceSums:
        """Return the sums of the last queued matrix, once the device is done."""
        pieces = tuple(map(tuple, self._host_sums[: self._count].tolist()))
        return PieceSums(pieces=pieces, piece_bytes=4 * self._piece)


def host_copy_of(tensor: Tensor) -> Tensor:
    """Allocate host memory for copies of ``tensor``, pinned if that is on a GPU."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def words(matrix: Tensor) -> Tensor:
    """Return the same memory as a flat tensor of 64-bit words."""
    return matrix.view(-1).view(torch.int64)


def integers(matrix: Tensor) -> Tensor:
    """Return the same memory as a flat tensor of integers as wide as an element."""
    return matrix.view(-1).view(INTEGERS[matrix.element_size()])


def flip(matrix: Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element of a contiguous ``matrix``, as :func:`corrupt` does.

    Args:
        matrix: The matrix to corrupt.
        element: The index of the element in memory.
        bit: The index of the bit, from the lowest.
    """
    corrupt(matrix, range(element, element + 1), 1 << bit)


def corrupt(matrix: Tensor, elements: range, mask: int) -> None:
    """Invert the bits of ``mask`` in elements of a contiguous ``matrix``.

    Waits for the device, and allocates no memory there. The host inverts the bits: device kernels
    would take 17 MiB of host memory.

    Args:
        matrix: The matrix to corrupt.
        elements: The indices of the elements in memory.
        mask: The bits, below the width of an element.
    """
    there = integers(matrix)[elements[0] : elements[-1] + 1]
    here = there.cpu() if there.is_cuda else there.clone()
    width = 8 * matrix.element_size()
    is_signed = matrix.element_size() > 1
    signed = mask - (1 << width) if is_signed and mask >> width - 1 else mask
    here[:: elements.step].bitwise_xor_(signed)
    there.copy_(here)
