"""Write patterns to memory, see whether they are still there, and examine what is not.

Everything happens on the device, in pieces small enough for a quantum. The tools for it lie in one
block of the memory itself, another one for each pass, so that no block is never tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.stressor.verification.patterns import Pattern

#: How often what was written once is read, and how often a fault is tried again.
READS = 2
REPEATS = 3

_BITS = 64

#: A word of a piece needs two words and one byte of tools.
_TOOLS = 17

#: The most words of a piece unless somebody says fewer: a quarter of a gibibyte.
_LONGEST = 32 * 2**20

#: Fewer blocks than this, and chunks are cut into several: one is not tested in each pass.
_FEWEST = 4

#: Words of the smallest block, and what a block is cut to a multiple of, for equal alignment.
_GRAIN = 64

#: Bits that are counted between two waits.
_BITS_AT_ONCE = 16

#: How many times the size of the L2 cache has to go through it, to be sure that nothing stays.
_FLUSH = 4


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some words of one block: those from ``start`` to ``stop``; ``index`` counts them."""

    block: int
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
    """What was found in a piece that had been wrong.

    ``count`` words are wrong, the first at ``first``, a chunk and a word of it; ``bits`` is how
    often each bit is. With none, it was right when it was read again. ``repeated`` of
    ``REPEATS`` more times that the pattern was written and read, it was wrong again.
    """

    count: int
    first: tuple[int, int]
    bits: tuple[int, ...]
    repeated: int


class Cells:
    """The memory under test.

    Args:
        chunks: Tensors of bytes, all of one size, which are overwritten.
        cache: Bytes of the device's L2 cache.
        longest: The most words of a piece.

    Attributes:
        blocks: What is tested, as flat tensors of 64-bit words.
        size: Words of a block.
        pieces: How many pieces a block has.
        flusher: Memory besides the chunks, where they are too few to get past the cache.
        wrong: By read, block and piece, whether it was wrong: booleans on the device.

    Raises:
        ConfigError: The chunks are too small.
    """

    def __init__(self, chunks: Sequence[Tensor], cache: int, longest: int = _LONGEST) -> None:
        self._parts = math.ceil(_FEWEST / len(chunks))
        self.size = chunks[0].numel() // 8 // self._parts // _GRAIN * _GRAIN
        if not self.size:
            what = f"memtest: {len(chunks)} chunks of {chunks[0].numel()} bytes are too little"
            raise ConfigError(what, "Hold more memory, or take it in larger chunks.")
        self.blocks = [
            chunk[part * self.size * 8 : (part + 1) * self.size * 8].view(torch.int64)
            for chunk in chunks
            for part in range(self._parts)
        ]
        most = min(longest, (self.size - 1) * 8 // _TOOLS // 2 * 2)
        self.pieces = math.ceil(self.size / most)
        self._longest = math.ceil(self.size / self.pieces / 2) * 2
        device = chunks[0].device
        self._flush_words = math.ceil(_FLUSH * cache / 8)
        alone = (len(self.blocks) - 2) * self.size < self._flush_words
        self.flusher = (
            torch.empty(self._flush_words, dtype=torch.int64, device=device) if alone else None
        )
        shape = (READS, len(self.blocks), self.pieces)
        self.wrong = torch.zeros(shape, dtype=torch.bool, device=device)
        self._again = torch.zeros(REPEATS, dtype=torch.bool, device=device)
        self._numbers = torch.zeros(2 + _BITS, dtype=torch.int64, device=device)
        cuda = device.type == "cuda"
        self._wrong_here = torch.zeros(shape, dtype=torch.bool, pin_memory=cuda)
        self._again_here = torch.zeros(REPEATS, dtype=torch.bool, pin_memory=cuda)
        self._numbers_here = torch.zeros(2 + _BITS, dtype=torch.int64, pin_memory=cuda)
        self.use_tools_in(0)

    def use_tools_in(self, block: int) -> None:
        """Put the tools into ``block``, which is not tested from now on."""
        self.scratch = block
        words, size = self.blocks[block], self._longest
        self._expected, self._spare = words[:size], words[size : 2 * size]
        self._differs = words[2 * size :].view(torch.uint8)[:size].view(torch.bool)

    def tested(self) -> list[int]:
        """Return the blocks without the one of the tools."""
        return [block for block in range(len(self.blocks)) if block != self.scratch]

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

    # --- queued, and never waited for --------------------------------------------------------

    def write(self, task: Task, piece: Piece) -> None:
        """Queue the pattern for a piece."""
        words = self._words(piece)
        spare = self._spare[: words.numel()]
        task.pattern.compute(words, spare, self._address(piece), task.seed)

    def check(self, task: Task, piece: Piece, read: int) -> None:
        """Queue a comparison of a piece with its pattern, noted in ``wrong`` for this read."""
        self._compare(task, piece, self.wrong[read, piece.block, piece.index])

    def flush(self, but: int | None = None) -> None:
        """Queue as much traffic as drives all out of the L2 cache, in other blocks than ``but``."""
        if self.flusher is not None:
            self.flusher.fill_(0)
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
        """Queue the flip of one bit of a word of a piece, to see that it is found."""
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
        """Queue what the piece should hold, into the tools."""
        size = piece.stop - piece.start
        expected, spare = self._expected[:size], self._spare[:size]
        task.pattern.compute(expected, spare, self._address(piece), task.seed)
        return expected

    def _words(self, piece: Piece) -> Tensor:
        return self.blocks[piece.block][piece.start : piece.stop]

    def _address(self, piece: Piece) -> int:
        return piece.block * self.size + piece.start

    # --- fetched from the device -------------------------------------------------------------

    def fetch_wrong(self, wait: Callable[[], bool]) -> list[tuple[int, Piece]]:
        """Return what was noted in ``wrong``, as the first read that was and the piece.

        Args:
            wait: Sleeps until the work queued so far is done; ``False`` where it did not.
        """
        self._fetch(self.wrong, self._wrong_here, wait)
        found: dict[tuple[int, int], int] = {}
        for read, block, index in self._wrong_here.nonzero().tolist():
            found.setdefault((block, index), read)
        return [(read, self.cut(block)[index]) for (block, index), read in found.items()]

    def examine(self, task: Task, piece: Piece, wait: Callable[[], bool]) -> Evidence:
        """Read a wrong piece once more, then write and read it several times; leaves it written.

        Takes no memory. What is queued between two calls of ``wait`` is a quantum or less.
        """
        self.flush(but=piece.block)
        self._count_wrong_bits(task, piece, wait)
        self._fetch(self._numbers, self._numbers_here, wait)
        count, first, *bits = self._numbers_here.tolist()
        for again in self._again:
            self.write(task, piece)
            self.flush(but=piece.block)
            self._compare(task, piece, again)
            wait()
        self._fetch(self._again, self._again_here, wait)
        chunk, part = divmod(piece.block, self._parts)
        where = part * self.size + piece.start + (first if count else 0)
        return Evidence(
            count=count,
            first=(chunk, where),
            bits=tuple(bits),
            repeated=int(self._again_here.sum()),
        )

    def _count_wrong_bits(self, task: Task, piece: Piece, wait: Callable[[], bool]) -> None:
        """Queue into ``_numbers``: how many words are wrong, the first of them, and each bit."""
        words = self._words(piece)
        one, differs = self._compute(task, piece), self._differs[: words.numel()]
        flipped = self._spare[: words.numel()]
        torch.bitwise_xor(words, one, out=flipped)
        torch.ne(flipped, 0, out=differs)
        one.copy_(differs)  # a sum over booleans would make a copy of them as large as this
        torch.sum(one, 0, out=self._numbers[0])
        torch.argmax(one, 0, out=self._numbers[1])
        for bit in range(_BITS):
            if bit % _BITS_AT_ONCE == 0:
                wait()
            torch.bitwise_right_shift(flipped, bit, out=one)
            one.bitwise_and_(1)
            torch.sum(one, 0, out=self._numbers[2 + bit])

    def _fetch(self, there: Tensor, here: Tensor, wait: Callable[[], bool]) -> None:
        here.copy_(there, non_blocking=True)
        if not wait():
            here.copy_(there)
