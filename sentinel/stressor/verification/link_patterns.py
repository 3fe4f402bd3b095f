"""The data of link tests: computed alike on every device, and other data in each transfer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: An odd number with well mixed bits, 2^64 divided by the golden ratio, as a signed word.
_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
_SHIFT = 29
#: Keys are positive words.
_KEYS = 2**62
#: Numbers of an all-reduce are below this, each before an offset below it is added.
_NUMBERS = 256
#: A float32 represents every integer up to here exactly.
_EXACT = 2**24
_BITS = 64


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Words that are not what they should be."""

    count: int
    #: The position of the first one, and which of its bits differ, from the lowest.
    first: int
    bits: tuple[int, ...]


def key_of(*numbers: int) -> int:
    """Mix some numbers into the key of a transfer."""
    key = 1
    for number in numbers:
        key = ((key ^ number) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        key ^= key >> _SHIFT
    return key % _KEYS


class LinkPatterns:
    """Words for one piece of memory, and their comparison.

    All memory is taken here, so that no comparison allocates.

    Args:
        words: The length of a piece, in words of 8 bytes.
        device: Where they are computed and compared.
    """

    def __init__(self, words: int, device: torch.device) -> None:
        self.words = words
        self._base = torch.arange(words, dtype=torch.int64, device=device)
        self._base.mul_(_MULTIPLIER)
        self._base.bitwise_xor_(self._base >> _SHIFT)
        self._scratch = torch.empty_like(self._base)
        self._differs = torch.empty(words, dtype=torch.bool, device=device)
        self._numbers = (self._base & (_NUMBERS - 1)).to(torch.float32)
        self._sums = torch.empty_like(self._numbers)

    def write(self, piece: Tensor, key: int) -> None:
        """Write the words of a key."""
        torch.bitwise_xor(self._base, key, out=piece)

    def compare(self, piece: Tensor, key: int) -> Wrong | None:
        """Compare a piece with the words of a key; waits for the current stream.

        Returns:
            The words that differ, or None.
        """
        torch.bitwise_xor(piece, self._base, out=self._scratch)
        torch.ne(self._scratch, key, out=self._differs)
        return self._found(lambda first: int(self._scratch[first].item()) ^ key)

    def write_numbers(self, piece: Tensor, offset: int) -> None:
        """Write the numbers that one GPU adds: small integers, as float32."""
        torch.add(self._numbers, offset, out=piece)

    def compare_sums(self, piece: Tensor, factor: int, offset: int) -> Wrong | None:
        """Compare sums with ``factor`` times each number, plus an offset; all must be exact."""
        torch.mul(self._numbers, factor, out=self._sums)
        self._sums.add_(offset)
        torch.ne(piece, self._sums, out=self._differs)

        def bits(first: int) -> int:
            got, expected = (
                one[first : first + 1].view(torch.int32) for one in (piece, self._sums)
            )
            return (int(got.item()) ^ int(expected.item())) % 2**32

        return self._found(bits)

    def _found(self, differing: Callable[[int], int]) -> Wrong | None:
        count = int(self._differs.sum().item())
        # Always computed: no kernel may be loaded for the first time when there is a fault.
        first = int(self._differs.view(torch.uint8).argmax().item())
        word = differing(first) % 2**_BITS
        if not count:
            return None
        return Wrong(count=count, first=first, bits=tuple(word >> bit & 1 for bit in range(_BITS)))


def offset_of(key: int) -> int:
    """Choose the offset of the numbers of an all-reduce."""
    return key % _NUMBERS


def repeats_of(size: int, most: int) -> int:
    """Compute how often sums over so many GPUs can be summed again and still be exact."""
    largest = size * (2 * _NUMBERS + size)
    repeats = 1
    while repeats < most and largest * size < _EXACT:
        largest *= size
        repeats += 1
    return repeats
