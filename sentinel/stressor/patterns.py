"""The patterns of a memory test: the content of each 64-bit word, by its address and a seed.

A pattern is computed on the device when it is needed, into existing memory, so that no copy is
kept for comparison. Addresses count words from the first tested one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.config.options import ALL, check_patterns, split_names

_BITS = 64

# SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = (30, 0xBF58476D1CE4E5B9)
_SECOND = (27, 0x94D049BB133111EB)
_LAST = 31


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One pattern."""

    name: str
    #: The content of every word, or None if words differ.
    value: int | None = None
    #: Queues the pattern into a flat tensor of int64. Further arguments are scratch memory of the
    #: same shape, the address of the first word, and a seed of 0 or more.
    compute: Callable[[Tensor, Tensor, int, int], None]
    #: Words read and written to compute one word.
    accesses: int


def parse_patterns(text: str) -> tuple[Pattern, ...]:
    """Return the named patterns: ``all``, or names with plus signs between them.

    Raises:
        ConfigError: A name is unknown.
    """
    if text == ALL:
        return tuple(PATTERNS.values())
    check_patterns(text)
    return tuple(PATTERNS[name] for name in dict.fromkeys(split_names(text)))


def _signed(word: int) -> int:
    """Return a 64-bit word as the signed number that torch expects."""
    word %= 1 << _BITS
    return word - (1 << _BITS) if word >> (_BITS - 1) else word


def _scramble(seed: int) -> int:
    """Return a seed whose bits do not correlate with those of its neighbour."""
    word = (seed + 1) * _GOLDEN
    for shift, factor in (_FIRST, _SECOND):
        word %= 1 << _BITS
        word = (word ^ (word >> shift)) * factor
    word %= 1 << _BITS
    return _signed(word ^ (word >> _LAST))


def _constant(name: str, byte: int) -> Pattern:
    value = _signed(int.from_bytes(bytes([byte]) * 8, "little"))

    def compute(words: Tensor, _: Tensor, __: int, ___: int) -> None:
        words.fill_(value)

    return Pattern(name=name, value=value, compute=compute, accesses=1)


def _addresses(words: Tensor, first: int) -> None:
    torch.arange(first, first + words.numel(), out=words)


def _walking_one(words: Tensor, spare: Tensor, first: int, seed: int) -> None:
    """Set one bit of each word: the next one in the next word, and with the next seed."""
    _addresses(spare, first + seed % _BITS)
    spare.bitwise_and_(_BITS - 1)
    words.fill_(1)
    words.bitwise_left_shift_(spare)


def _own_address(words: Tensor, _: Tensor, first: int, seed: int) -> None:
    _addresses(words, first)
    words.bitwise_xor_(_scramble(seed))


def _random(words: Tensor, spare: Tensor, first: int, seed: int) -> None:
    _addresses(words, first)
    words.mul_(_signed(_GOLDEN)).add_(_scramble(seed))
    for shift, factor in (_FIRST, _SECOND):
        _fold(words, spare, shift)
        words.mul_(_signed(factor))
    _fold(words, spare, _LAST)


def _fold(words: Tensor, spare: Tensor, shift: int) -> None:
    """Compute ``words ^= words >> shift`` with zeros shifted in; torch repeats the sign."""
    torch.bitwise_right_shift(words, shift, out=spare)
    spare.bitwise_and_((1 << (_BITS - shift)) - 1)
    words.bitwise_xor_(spare)


def _random_complement(words: Tensor, spare: Tensor, first: int, seed: int) -> None:
    _random(words, spare, first, seed)
    words.bitwise_not_()


#: All patterns by name, in the order of the test.
PATTERNS: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        _constant("zeros", 0x00),
        _constant("ones", 0xFF),
        _constant("aa", 0xAA),
        _constant("55", 0x55),
        Pattern(name="walking-one", compute=_walking_one, accesses=7),
        Pattern(name="address", compute=_own_address, accesses=3),
        Pattern(name="random", compute=_random, accesses=30),
        Pattern(name="random-complement", compute=_random_complement, accesses=32),
    )
}


#: An odd number with well mixed bits, 2^64 divided by the golden ratio, as a signed word.
_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
_SHIFT = 29
#: Keys are positive words.
_KEYS = 2**62
#: Numbers of an all-reduce are below this, each before an offset below it is added.
_NUMBERS = 256
#: A float32 represents every integer up to here exactly.
_EXACT = 2**24


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
                words[first : first + 1].view(torch.int32) for words in (piece, self._sums)
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
