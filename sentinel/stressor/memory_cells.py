"""Write patterns to memory, compare them later, and examine differences.

All work is done on the device, in pieces small enough for a quantum. Its scratch memory is one
block of the tested memory, another one in each pass, so that every block is tested. A stripe of
blocks can be held: then nothing touches it but its own writes and comparisons.

A pattern is computed on the device when it is needed, into existing memory, so that no copy is
kept for comparison. Addresses count words from the first tested one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.config.options import ALL, split_names
from sentinel.errors import ConfigError
from sentinel.stressor.comparison import host_copy_of

#: Reads of each written pattern, and repetitions of a fault.
READS = 2
REPEATS = 3

_BITS = 64

#: Scratch bytes for a word of a piece: two words and one byte.
_SCRATCH_BYTES = 17

#: The default maximum length of a piece in words: a quarter of a gibibyte.
_MAX_PIECE_WORDS = 32 * 2**20

#: Chunks are split until there are so many blocks, since each pass leaves one untested.
_MIN_BLOCKS = 4

#: The words of the smallest block. Blocks are a multiple of it, for equal alignment.
_GRAIN = 64

#: Bits that are counted between two waits.
_BITS_AT_ONCE = 16

#: One block in so many is in a stripe; of fewer blocks, a stripe has one.
_STRIPES = 8

#: How many times its size must pass through the L2 cache to replace all of its content.
_FLUSH = 4


# --- patterns: the content of each word, by its address and a seed ----------------------------

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
    """Return the named patterns: ``all``, or known names with plus signs between them."""
    names = PATTERNS if text == ALL else dict.fromkeys(split_names(text))
    return tuple(PATTERNS[name] for name in names)


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


# --- cells ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of words of one block."""

    block: int
    #: The number of the piece within its block.
    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pattern and its seed."""

    pattern: Pattern
    seed: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of a fault in one piece."""

    #: The number of wrong words; 0 if the piece was right when it was read again.
    count: int
    #: The first wrong word, as a chunk and a word of it.
    first: tuple[int, int]
    #: How often each bit is wrong.
    bits: tuple[int, ...]
    #: How many of ``REPEATS`` further writes and reads went wrong again.
    repeated: int


def _divide(chunks: Sequence[Tensor]) -> tuple[int, int]:
    """Compute into how many blocks a chunk is divided, and the words of each."""
    parts = math.ceil(_MIN_BLOCKS / len(chunks))
    return parts, chunks[0].numel() // 8 // parts // _GRAIN * _GRAIN


def _stripes(blocks: int) -> list[range]:
    """Divide so many blocks into stripes."""
    count = min(_STRIPES, blocks)
    return [range(blocks)[first::count] for first in range(count)]


def needs_flush_buffer(chunks: Sequence[Tensor], cache: int, *, holds: bool) -> bool:
    """Check whether chunks are too few to flush the cache; arguments as of MemoryCells."""
    parts, size = _divide(chunks)
    blocks = parts * len(chunks)
    out_of_use = 2 + (len(_stripes(blocks)[0]) if holds else 0)
    return (blocks - out_of_use) * size < math.ceil(_FLUSH * cache / 8)


def new_flush_buffer(cache: int, device: torch.device) -> Tensor:
    """Take memory that replaces all content of a cache of so many bytes."""
    return torch.empty(math.ceil(_FLUSH * cache / 8), dtype=torch.int64, device=device)


class MemoryCells:
    """The memory under test.

    Args:
        chunks: Tensors of bytes of equal size, which are overwritten.
        cache: The size of the device's L2 cache in bytes.
        longest: The maximum number of words of a piece.
        holds: Whether stripes are to be held, so that less memory is left to flush the cache.
        flush_buffer: Extra memory to flush the cache; taken here if it is needed and not given.

    Attributes:
        blocks: The tested memory, as flat tensors of 64-bit words.
        size: The words of a block.
        pieces: The number of pieces of a block.
        stripes: The blocks of each stripe. All blocks are in one, and no stripe has more than a
            quarter of them.
        held: The stripe that is held, or nothing.
        flush_buffer: That extra memory, if the chunks are too few.
        wait: Sleeps until all queued work is done; returns False if it may not have waited.
        wrong: Whether a comparison failed, by read, block and piece: bools on the device.

    Raises:
        ConfigError: The chunks are too small.
    """

    def __init__(
        self,
        chunks: Sequence[Tensor],
        cache: int,
        longest: int = _MAX_PIECE_WORDS,
        *,
        holds: bool = False,
        flush_buffer: Tensor | None = None,
    ) -> None:
        self._parts, self.size = _divide(chunks)
        if not self.size:
            what = f"memtest: {len(chunks)} chunks of {chunks[0].numel()} bytes are too small"
            raise ConfigError(what, "Hold more memory, or take it in larger chunks.")
        self.blocks = [
            chunk[part * self.size * 8 : (part + 1) * self.size * 8].view(torch.int64)
            for chunk in chunks
            for part in range(self._parts)
        ]
        self.stripes = _stripes(len(self.blocks))
        self.held: Sequence[int] = ()
        most = min(longest, (self.size - 1) * 8 // _SCRATCH_BYTES // 2 * 2)
        self.pieces = math.ceil(self.size / most)
        self._longest = math.ceil(self.size / self.pieces / 2) * 2
        device = chunks[0].device
        self._flush_words = math.ceil(_FLUSH * cache / 8)
        self.flush_buffer = flush_buffer
        if flush_buffer is None and needs_flush_buffer(chunks, cache, holds=holds):
            self.flush_buffer = new_flush_buffer(cache, device)
        shape = (READS, len(self.blocks), self.pieces)
        self.wrong = torch.zeros(shape, dtype=torch.bool, device=device)
        self._again = torch.zeros(REPEATS, dtype=torch.bool, device=device)
        self._numbers = torch.zeros(2 + _BITS, dtype=torch.int64, device=device)
        self._wrong_here = host_copy_of(self.wrong)
        self._again_here = host_copy_of(self._again)
        self._numbers_here = host_copy_of(self._numbers)
        self.wait: Callable[[], bool] = lambda: False
        self.use_scratch(0)

    def use_scratch(self, block: int) -> None:
        """Use ``block`` as scratch memory; it is not tested until another one is used."""
        self.scratch = block
        words, size = self.blocks[block], self._longest
        self._expected, self._spare = words[:size], words[size : 2 * size]
        self._differs = words[2 * size :].view(torch.uint8)[:size].view(torch.bool)

    def tested(self) -> list[int]:
        """Return the indices of all blocks but the scratch block and those that are held."""
        unused = {self.scratch, *self.held}
        return [block for block in range(len(self.blocks)) if block not in unused]

    def cut(self, block: int) -> list[Piece]:
        """Return the pieces of a block."""
        return [
            Piece(
                block=block,
                index=index,
                start=index * self._longest,
                stop=min(self.size, (index + 1) * self._longest),
            )
            for index in range(self.pieces)
        ]

    # --- queued without waiting --------------------------------------------------------------

    def write(self, task: Task, piece: Piece) -> None:
        """Queue the pattern into a piece."""
        words = self._words(piece)
        spare = self._spare[: words.numel()]
        task.pattern.compute(words, spare, self._address(piece), task.seed)

    def check(self, task: Task, piece: Piece, read: int) -> None:
        """Queue the comparison of a piece with its pattern into ``wrong``, for this read."""
        self._compare(task, piece, self.wrong[read, piece.block, piece.index])

    def flush(self, but: int | None = None) -> None:
        """Queue enough traffic to replace the L2 cache's content, outside of block ``but``."""
        if self.flush_buffer is not None:
            self.flush_buffer.fill_(0)
            return
        passed = 0
        for block in self.tested():
            for piece in self.cut(block) if block != but else ():
                if passed >= self._flush_words:
                    return
                words = self._words(piece)
                torch.ne(words, 0, out=self._differs[: words.numel()])
                passed += words.numel()

    def flip(self, piece: Piece, word: int, bit: int) -> None:
        """Queue the flip of one bit of a word of a piece, to test that it is found."""
        mask = 1 << bit if bit < _BITS - 1 else -(1 << bit)
        self._words(piece)[word].bitwise_xor_(mask)

    def _compare(self, task: Task, piece: Piece, wrong: Tensor) -> None:
        words = self._words(piece)
        differs = self._differs[: words.numel()]
        if task.pattern.value is not None:
            torch.ne(words, task.pattern.value, out=differs)
        else:
            torch.ne(words, self._compute(task, piece), out=differs)
        torch.any(differs, out=wrong)

    def _compute(self, task: Task, piece: Piece) -> Tensor:
        """Queue the correct content of the piece into scratch memory, and return that."""
        size = piece.stop - piece.start
        expected, spare = self._expected[:size], self._spare[:size]
        task.pattern.compute(expected, spare, self._address(piece), task.seed)
        return expected

    def _words(self, piece: Piece) -> Tensor:
        return self.blocks[piece.block][piece.start : piece.stop]

    def _address(self, piece: Piece) -> int:
        return piece.block * self.size + piece.start

    # --- fetched from the device -------------------------------------------------------------

    def fetch_wrong(self) -> list[tuple[int, Piece]]:
        """Return the pieces marked in ``wrong``, each with the first read that was wrong."""
        self._fetch(self.wrong, self._wrong_here)
        found: dict[tuple[int, int], int] = {}
        for read, block, index in self._wrong_here.nonzero().tolist():
            found.setdefault((block, index), read)
        return [(read, self.cut(block)[index]) for (block, index), read in found.items()]

    def examine(self, task: Task, piece: Piece) -> Evidence:
        """Reread a wrong piece, then rewrite and reread it several times; leaves it written.

        Allocates nothing, and queues at most one quantum between two waits.
        """
        self.flush(but=piece.block)
        self._count_wrong_bits(task, piece)
        self._fetch(self._numbers, self._numbers_here)
        count, first, *bits = self._numbers_here.tolist()
        for again in self._again:
            self.write(task, piece)
            self.flush(but=piece.block)
            self._compare(task, piece, again)
            self.wait()
        self._fetch(self._again, self._again_here)
        chunk, part = divmod(piece.block, self._parts)
        where = part * self.size + piece.start + (first if count else 0)
        return Evidence(
            count=count,
            first=(chunk, where),
            bits=tuple(bits),
            repeated=int(self._again_here.sum()),
        )

    def _count_wrong_bits(self, task: Task, piece: Piece) -> None:
        """Queue into ``_numbers``: the count of wrong words, the first one, and each bit."""
        words = self._words(piece)
        one, differs = self._compute(task, piece), self._differs[: words.numel()]
        flipped = self._spare[: words.numel()]
        torch.bitwise_xor(words, one, out=flipped)
        torch.ne(flipped, 0, out=differs)
        one.copy_(differs)  # a sum over bools would allocate a copy as large as this
        torch.sum(one, 0, out=self._numbers[0])
        torch.argmax(one, 0, out=self._numbers[1])
        for bit in range(_BITS):
            if bit % _BITS_AT_ONCE == 0:
                self.wait()
            torch.bitwise_right_shift(flipped, bit, out=one)
            one.bitwise_and_(1)
            torch.sum(one, 0, out=self._numbers[2 + bit])

    def _fetch(self, there: Tensor, here: Tensor) -> None:
        here.copy_(there, non_blocking=True)
        if not self.wait():
            here.copy_(there)
