"""Compare results bit for bit and take checksums, on the device, without ever waiting for it."""

from __future__ import annotations

import time
from typing import Any, cast

import torch
from torch import Tensor

#: How often the count is fetched from the device, in seconds.
_INTERVAL = 1.0

#: Integers as wide as an element, by its bytes.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ErrorCount:
    """Count errors on the device and learn of them without a wait.

    The count is copied to pinned host memory about once a second and read when the copy is done,
    so that the host neither spins nor holds the device up.

    Attributes:
        total: The number of errors so far: a scalar on the device to add to.
    """

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.total = torch.zeros((), dtype=torch.int64, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, pin_memory=cuda)
        # Any, because torch declares no types for its events.
        self._copied: Any = cast("Any", torch.cuda.Event)() if cuda else None
        self._copying = False
        self._told = 0
        self._next = 0.0

    def news(self) -> int:
        """Return how many errors became known since the last call; queues a copy when it is due."""
        if self._copying:
            if self._copied is not None and not self._copied.query():
                return 0
            self._copying = False
            return self._tell()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL
            self._copying = True
            self._seen.copy_(self.total, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
        return 0

    def last_news(self) -> int:
        """Return the errors that ``news`` did not tell yet; waits for the device."""
        self._copying = False
        self._seen.copy_(self.total)
        return self._tell()

    def _tell(self) -> int:
        known = int(self._seen)
        news = known - self._told
        self._told = known
        return news


class BitComparison:
    """Compare results with a reference, and count those that differ in at least one bit.

    Bits and not values: a NaN that should not be there and a zero of the wrong sign count, too.

    Args:
        reference: The right result, contiguous and a multiple of eight bytes long.
        scratch: Memory for one byte per eight bytes of the reference.
    """

    def __init__(self, reference: Tensor, scratch: Tensor) -> None:
        self.errors = ErrorCount(reference.device)
        self._reference = words(reference)
        needed = self._reference.numel()
        self._differs = scratch.view(-1).view(torch.uint8)[:needed].view(torch.bool)
        self._any = torch.zeros((), dtype=torch.bool, device=reference.device)

    def check(self, result: Tensor) -> None:
        """Queue the comparison of ``result`` and count it if it is wrong; takes no memory."""
        self.mark(result, self._any)
        self.errors.total.add_(self._any)

    def mark(self, result: Tensor, wrong: Tensor) -> None:
        """Queue the comparison of ``result`` into ``wrong``, a bool scalar; takes no memory."""
        torch.ne(words(result), self._reference, out=self._differs)
        torch.any(self._differs, out=wrong)

    def prove(self, spare: Tensor) -> None:
        """Show that a single wrong bit is found and that a right result is not, using ``spare``.

        It also runs every kernel of the comparison once, the copy of the count included.

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


class Checksum:
    """Take checksums in which the place of every bit counts.

    It is the sum of (2i + 1) times the integer i of 32 bits, modulo 2**64. Every factor is odd, so
    a change of one integer always shows, and no two flipped bits make up for each other. It is
    taken piece by piece, and how long a piece is makes no difference.

    Args:
        weights: Memory for the factors of one piece, a multiple of eight bytes.
        weighted: As much for the integers of one piece times their factors.
        longest: The most bytes that are ever summed up.
    """

    def __init__(self, weights: Tensor, weighted: Tensor, longest: int) -> None:
        self._weights = words(weights)
        self._weighted = words(weighted)
        self._piece = self._weights.numel()
        device = weights.device
        torch.arange(1, 2 * self._piece, 2, dtype=torch.int64, device=device, out=self._weights)
        pieces = -(-longest // (4 * self._piece))
        # Of each piece the sum with the factors of the first, and the plain one: a piece that
        # begins at integer b adds 2b times the latter.
        self._sums = torch.zeros((pieces, 2), dtype=torch.int64, device=device)
        cuda = device.type == "cuda"
        self._told = torch.zeros((pieces, 2), dtype=torch.int64, pin_memory=cuda)
        self._count = 0

    def queue(self, matrix: Tensor) -> None:
        """Queue the sums of ``matrix``, contiguous and a multiple of four bytes long."""
        pieces = torch.split(matrix.view(-1).view(torch.int32), self._piece)
        self._count = len(pieces)
        for number, piece in enumerate(pieces):
            # All in 64 bits: a sum of 32 brings 17 MiB of kernels more to the host's memory.
            weighted = self._weighted[: piece.numel()]
            weighted.copy_(piece)
            torch.sum(weighted, dim=0, out=self._sums[number, 1])
            weighted.mul_(self._weights[: piece.numel()])
            torch.sum(weighted, dim=0, out=self._sums[number, 0])
        self._told[: self._count].copy_(self._sums[: self._count], non_blocking=True)

    def value(self) -> int:
        """Return the checksum of what was queued last, once the device has done it."""
        total = 0
        for number, (first, plain) in enumerate(self._told[: self._count].tolist()):
            total += first + 2 * number * self._piece * plain
        return int(total % 2**64)


def words(matrix: Tensor) -> Tensor:
    """Return the same memory as a flat tensor of 64-bit words."""
    return matrix.view(-1).view(torch.int64)


def integers(matrix: Tensor) -> Tensor:
    """Return the same memory as a flat tensor of integers as wide as an element."""
    return matrix.view(-1).view(INTEGERS[matrix.element_size()])


def flip(matrix: Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element of ``matrix``, which is contiguous; takes no device memory.

    Waits for the device. The host flips it: the kernels for it would take 17 MiB of its memory.

    Args:
        matrix: What to corrupt.
        element: Which of its elements, counted as they lie in memory.
        bit: Which of its bits, from the lowest.
    """
    place = element * matrix.element_size() + bit // 8
    there = matrix.view(-1).view(torch.uint8)[place : place + 1]
    here = there.cpu() if there.is_cuda else there.clone()
    there.copy_(here.bitwise_xor_(1 << bit % 8))
