"""The patterns of a memory test: the content of each 64-bit word, by its address and a seed.

A pattern is computed on the device when it is needed, into existing memory, so that no copy is
kept for comparison. Addresses count words from the first tested one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.config.built_in_workloads import ALL, check_patterns, split_names

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
