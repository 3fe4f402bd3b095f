"""Read all of the memory at scattered addresses, each of which the read before has returned.

Every block of the memory holds a permutation of its own word numbers: word ``w`` has the number
``(a w + c) mod size``. A chase begins at some words of the first block; the numbers there are the
words that it reads in the next block, and so on through all blocks. Where it ends is the
composition of all these maps, which is computed. As each map is a permutation, a wrong number in
between makes the end wrong, and chases from all words of a block read every word of the others.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.comparison import host_copy_of
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import REPEATS, FindingReporter
from sentinel.stressor.injection import FaultKind, draw_fault

#: The name of this unit.
GATHER = "gather"

#: Chunks are split until there are so many blocks, since one of them is working memory, and until
#: a block is filled within a quantum.
_MIN_BLOCKS, _MAX_WORDS = 4, 2**26
#: The words of the smallest block. Blocks, and the parts of working memory, are a multiple of the
#: grain: with another alignment torch would load other kernels later.
_LEAST_WORDS, _GRAIN = 128, 16
#: Chases that go on at a time: enough reads in flight to hide their latency.
_MAX_CHASES = 2**22
#: Working memory of one chase: four words and a byte, rounded up to words.
_SCRATCH_WORDS = 5

_BITS = 64
#: Bits that are counted between two waits.
_BITS_AT_ONCE = 16
#: The golden section: multiples of it are far from each other.
_SECTION = 0.6180339887498949


class PointerChase:
    """Chases through all held memory; passes count from 0, and each has its own permutations.

    Args:
        ctx: The workload's context.
        reporter: The receiver of findings.

    Attributes:
        blocks: The memory, as flat tensors of 64-bit words.
        size: The words of a block.
        checks: The number of chases, many at a time, whose ends were compared.
        errors: How many of them ended wrong.
        proved: Whether it is proved that a fault is found.

    Raises:
        ConfigError: The chunks are too small.
    """

    def __init__(self, ctx: WorkloadContext, reporter: FindingReporter) -> None:
        self._ctx = ctx
        self._reporter = reporter
        words = ctx.chunks[0].numel() // 8
        self._parts = max(math.ceil(_MIN_BLOCKS / len(ctx.chunks)), math.ceil(words / _MAX_WORDS))
        self.size = words // self._parts // _GRAIN * _GRAIN
        if self.size < _LEAST_WORDS:
            what = f"units: {len(ctx.chunks)} chunks of {ctx.chunks[0].numel()} bytes are too small"
            raise ConfigError(what, "Hold more memory, or take it in larger chunks.")
        self.blocks = [
            chunk[part * self.size * 8 : (part + 1) * self.size * 8].view(torch.int64)
            for chunk in ctx.chunks
            for part in range(self._parts)
        ]
        self._chases = min(_MAX_CHASES, self.size // _SCRATCH_WORDS // _GRAIN * _GRAIN)
        self._starts = list(range(0, self.size, self._chases))
        device = ctx.device
        #: By chases: whether their last end was wrong.
        self._wrong = torch.zeros(len(self._starts), dtype=torch.bool, device=device)
        self._wrong_here = host_copy_of(self._wrong)
        self._numbers = torch.zeros(2 + _BITS, dtype=torch.int64, device=device)
        self._numbers_here = host_copy_of(self._numbers)
        self.checks = self.errors = 0
        self.proved = False
        self._passes = 0
        self._seed = 0
        self._queued = 0.0
        self._begin_pass(0)
        self._fill_s = max(1e-6, ctx.measure(partial(self._fill, self.order[0])))
        self._read_s = max(1e-6, ctx.measure(self._measured))

    def _begin_pass(self, seed: int) -> None:
        """Choose other working memory and other permutations."""
        count = len(self.blocks)
        self._seed = seed
        #: An examination has overwritten the working memory: the chases cannot go on.
        self._void = False
        scratch = self._passes % count
        self.order = [(scratch + 1 + step) % count for step in range(count - 1)]
        words, chases = self.blocks[scratch], self._chases
        self._here, self._next, self._beyond, self._expected, rest = (
            words[part * chases : (part + 1) * chases] for part in range(_SCRATCH_WORDS)
        )
        self._differs = rest.view(torch.uint8)[:chases].view(torch.bool)

    def permutation(self, block: int) -> tuple[int, int]:
        """Return the factor and the offset of the permutation in a block."""
        number = block + len(self.blocks) * (self._seed + self._passes)
        factor = (int(self.size * _SECTION) + 7919 * number) % self.size
        while math.gcd(factor, self.size) != 1:
            factor = (factor + 1) % self.size
        return factor, (40_503 * number + 1) % self.size

    # --- before anything counts --------------------------------------------------------------

    def prove(self) -> bool:
        """Prove that a fault of any word is found, and nothing else; return False after a stop.

        This runs every kernel that the unit needs, including those for a fault. It reads all of the
        memory several times, for some seconds, and nothing counts before it has passed.

        Raises:
            RuntimeError: The memory or the unit cannot be trusted.
        """
        draw = random.Random(1)  # noqa: S311 - places, not secrets
        for kind in (None, FaultKind.SINGLE, FaultKind.MULTIPLE):
            found = self.finds_exactly(kind, draw)
            if not self._drain():
                return False
            if not found:
                raise RuntimeError(f"gather: {kind}: a fault was not found; it cannot be trusted")
        self.checks = self.errors = 0
        self.proved = True
        return True

    def finds_exactly(self, kind: FaultKind | None, draw: random.Random) -> bool:
        """Fill the memory, inject a fault of a word, or none, and check that it alone is found."""
        self._begin_pass(self._seed)
        for block in self.order:
            self._fill(block)
            self._drain_if_due(self._fill_s)
        self._drain()
        right = []
        if kind is not None:
            block = draw.choice(self.order)
            fault = draw_fault(kind, self.blocks[block], draw)
            fault.inject(self.blocks[block])
            place = self._coordinates(block, fault.elements[0])
            right = [(FindingPlace.MEMORY, 1, place, fault.counts(_BITS))]
        with self._reporter.withhold() as findings:
            for number in range(len(self._starts)):
                self._chase_all(number)
                self._drain()
            self._examine_faults()
        self._passes += 1
        found = [(one.place, one.count, one.first, one.bits) for one in findings]
        return found == right

    def _measured(self) -> None:
        """Queue one step of the chases."""
        self._begin_chases(0)
        self._step(self.order[0], self._chases)

    # --- passes ------------------------------------------------------------------------------

    def run(self, seed: int, seconds: float) -> bool:
        """Run whole passes for at least ``seconds``; return False if the workload is to return."""
        until = time.monotonic() + seconds
        while self._run_pass(seed):
            if time.monotonic() >= until:
                return True
        self._report_faults()
        return False

    def _run_pass(self, seed: int) -> bool:
        """Fill the memory and read all of it; return False if the workload is to return."""
        self._begin_pass(seed)
        for block in self.order:
            self._fill(block)
            if not self._spend(self._fill_s, 8.0 * self.size):
                return False
        for number, start in enumerate(self._starts):
            count = self._begin_chases(start)
            for block in self.order:
                self._step(block, count)
                if not self._spend(self._read_s, 8.0 * count):
                    return False
                if self._void:
                    return True
            self._compare(number)
            self.checks += 1
            self._ctx.report(checks=1)
        self._report_faults()
        self._passes += 1
        return self._pace()

    def _fill(self, block: int) -> None:
        factor, offset = self.permutation(block)
        words = self.blocks[block]
        torch.arange(0, self.size, out=words)
        words.mul_(factor).add_(offset).remainder_(self.size)

    def _begin_chases(self, start: int) -> int:
        """Begin at the words from ``start`` on; return how many there are."""
        count = min(self._chases, self.size - start)
        torch.arange(start, start + count, out=self._here[:count])
        self._beyond.zero_()
        return count

    def _step(self, block: int, count: int) -> None:
        """Read the words of a block that the chases have come to.

        A wrong number must not leave the block: by how much it does is kept, since the nearest word
        may be the right one.
        """
        here, there = self._here[:count], self._next[:count]
        torch.gather(self.blocks[block], 0, here, out=there)
        torch.clamp(there, 0, self.size - 1, out=here)
        self._beyond[:count].bitwise_or_(there.sub_(here))

    def _compare(self, number: int) -> None:
        """Queue the comparison of the ends of chases with what they must be."""
        start = self._starts[number]
        count = min(self._chases, self.size - start)
        wrong = self._expect(start, count, self.order).bitwise_xor_(self._here[:count])
        torch.ne(wrong.bitwise_or_(self._beyond[:count]), 0, out=self._differs[:count])
        torch.any(self._differs[:count], out=self._wrong[number])

    def _expect(self, start: int, count: int, blocks: Sequence[int]) -> Tensor:
        """Queue where chases through ``blocks`` are to end into working memory; return that."""
        factor, offset = 1, 0
        for block in blocks:
            times, plus = self.permutation(block)
            factor, offset = factor * times % self.size, (offset * times + plus) % self.size
        expected = self._expected[:count]
        torch.arange(start, start + count, out=expected)
        return expected.mul_(factor).add_(offset).remainder_(self.size)

    def _chase_all(self, number: int) -> None:
        """Queue the chases of one number from their begin to their comparison."""
        count = self._begin_chases(self._starts[number])
        for block in self.order:
            self._step(block, count)
            self._drain_if_due(self._read_s)
        self._compare(number)

    def _spend(self, seconds: float, moved: float) -> bool:
        """Account for queued work, and pace after each quantum."""
        self._ctx.report(iterations=0, bytes=moved)
        self._queued += seconds
        return self._queued < self._ctx.quantum or self._pace()

    def _drain_if_due(self, seconds: float) -> None:
        """Account for queued work that does not count, and wait after each quantum."""
        self._queued += seconds
        if self._queued >= self._ctx.quantum:
            self._queued = 0.0
            self._ctx.drain()

    def _pace(self) -> bool:
        self._queued = 0.0
        return self._ctx.pace(before_rest=self._report_faults)

    # --- results -----------------------------------------------------------------------------

    def _drain(self) -> bool:
        self._queued = 0.0
        return self._ctx.drain(rests=False)

    def _report_faults(self) -> None:
        """Report and count the chases that ended wrong before the memory is written again."""
        wrong = self._examine_faults()
        if wrong:
            self.errors += wrong
            self._ctx.report(iterations=0, errors=wrong)
            self._void = True

    def _examine_faults(self) -> int:
        """Fetch which chases ended wrong, report why, and return how many there are."""
        self._wrong_here.copy_(self._wrong, non_blocking=True)
        self._drain()
        wrong = self._wrong_here.nonzero().view(-1).tolist()
        for number in wrong:
            if self._reporter.wanted:
                self._examine(number)
        if wrong:
            self._wrong.zero_()
        return len(wrong)

    def _examine(self, number: int) -> None:
        """Chase again, step by step, and report the first read that is wrong."""
        start = self._starts[number]
        found = self._first_wrong(start)
        if found is None:
            detail = "chases ended wrong, and right when they were repeated"
            self._report(place=FindingPlace.RESULT, count=1, detail=detail, reread=False)
            return
        step, count, first, bits = found
        block = self.order[step]
        word = start + first
        for before in self.order[:step]:
            factor, offset = self.permutation(before)
            word = (word * factor + offset) % self.size
        repeated = 0
        for _ in range(REPEATS):
            self._fill(block)
            again = self._first_wrong(start)
            repeated += again is not None and again[0] == step
        self._report(
            place=FindingPlace.MEMORY,
            count=count,
            first=self._coordinates(block, word),
            bits=bits,
            detail="words of 64 bits, read at scattered addresses",
            reread=True,
            repeated=repeated,
        )

    def _coordinates(self, block: int, word: int) -> tuple[int, int]:
        """Return the chunk of a word of a block, and its word there."""
        chunk, part = divmod(block, self._parts)
        return chunk, part * self.size + word

    def _report(
        self,
        *,
        place: FindingPlace,
        count: int,
        detail: str,
        reread: bool,
        first: tuple[int, ...] = (),
        bits: tuple[int, ...] = (),
        repeated: int = 0,
    ) -> None:
        finding = Finding(
            place=place,
            workload=self._reporter.workload,
            dtype=GATHER,
            round=self._passes,
            seed=self._seed,
            count=count,
            first=first,
            bits=bits,
            reread=reread,
            repeated=repeated,
            repeats=REPEATS,
            detail=detail,
        )
        self._reporter.deliver(finding)

    def _first_wrong(self, start: int) -> tuple[int, int, int, tuple[int, ...]] | None:
        """Repeat chases up to the first wrong step, or return None.

        Returns:
            The step, how many words were wrong in it, the number of the first of these chases, and
            how often each bit was wrong.
        """
        count = self._begin_chases(start)
        for step, block in enumerate(self.order):
            there = self._next[:count]
            torch.gather(self.blocks[block], 0, self._here[:count], out=there)
            expected = self._expect(start, count, self.order[: step + 1])
            torch.ne(there, expected, out=self._differs[:count])
            self._count_differing(count)
            wrong, first = self._fetch()[:2]
            if wrong:
                return step, wrong, first, self._count_bits(there, expected)
            self._here[:count].copy_(there)
        return None

    def _count_differing(self, count: int) -> None:
        """Queue how many words differ, and the first of them."""
        marks = self._here[:count]  # the words read; the next ones are in ``there``
        marks.copy_(self._differs[:count])
        torch.sum(marks, 0, out=self._numbers[0])
        torch.argmax(marks, 0, out=self._numbers[1])

    def _count_bits(self, there: Tensor, expected: Tensor) -> tuple[int, ...]:
        """Count how often each bit differs."""
        expected.bitwise_xor_(there)
        for bit in range(_BITS):
            if bit % _BITS_AT_ONCE == 0:
                self._drain()
            torch.bitwise_right_shift(expected, bit, out=there)
            there.bitwise_and_(1)
            torch.sum(there, 0, out=self._numbers[2 + bit])
        return tuple(self._fetch()[2:])

    def _fetch(self) -> list[int]:
        self._numbers_here.copy_(self._numbers, non_blocking=True)
        self._drain()
        numbers: list[int] = self._numbers_here.tolist()
        return numbers
