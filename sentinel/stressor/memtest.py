"""Write patterns to all of the memory, read them back, and report changes.

A pattern is written to every block before the first block is read, so that no read is served by the
L2 cache. No block is rewritten before its comparison is evaluated.

With ``retention``, a stripe of the memory keeps a pattern untouched while the rest is tested. A
sweep rewrites every word within seconds; here only the refresh, every 32 to 64 ms, keeps a cell.
The model is the bit-fade test of cuda_memtest, which waits for 90 minutes (its README.md).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import Tensor

from sentinel.config.options import Patterns, Retention
from sentinel.protocol.stressor import Finding, FindingPlace, MemoryCovered
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.memory_cells import (
    PATTERNS,
    READS,
    REPEATS,
    MemoryCells,
    Pattern,
    Piece,
    Task,
    needs_flush_buffer,
    new_flush_buffer,
    parse_patterns,
)
from sentinel.stressor.rehearsal import rehearsed

#: Candidate lengths of a piece in words, and the share of a quantum that the slowest pattern may
#: take for a piece.
_LENGTHS = (2**25, 2**23, 2**21)
_SHARE = 0.25
_SLOWEST = "random-complement"

#: The minimum duration assumed for a piece, whatever the clock says.
_MIN_PIECE_S = 1e-6

#: The maximum number of wrong pieces examined after one pattern; further ones are counted.
_MAX_EXAMINED = 8

#: The name under which a stripe is reported, and the patterns that it keeps: in the second hold of
#: a stripe each bit has its other value, since a cell may fade from a 1 or from a 0.
RETENTION = "retention"
_KEPT = (PATTERNS["random"], PATTERNS["random-complement"])


def _rehearse_memtest(
    ctx: WorkloadContext, *, patterns: Patterns, seed: int, retention: Retention
) -> Tensor | None:
    """Rehearse; return the extra memory that flushes the cache, which is taken only here.

    Growth after the chunks looks like a newcomer's. On an H200 it takes 240 MiB: with the context,
    less than a start may take beside the target.
    """
    holds = retention > 0
    # The memory of a rehearsal is never enough, and a proof in it need not reach the cells.
    cells = _cells_for(ctx, 0, holds=holds)
    MemoryTest(ctx, cells, parse_patterns(patterns), seed, retention).prove()
    cache = _cache_of(ctx.device)
    planned = ctx.rehearsal.planned if ctx.rehearsal is not None else ()
    if not planned or not needs_flush_buffer(planned, cache, holds=holds):
        return None
    return new_flush_buffer(cache, ctx.device)


@rehearsed(_rehearse_memtest)
def memtest(
    ctx: WorkloadContext,
    *,
    patterns: Patterns = "all",
    seed: int = 1,
    retention: Retention = 0.0,
) -> None:
    """Test the memory, pattern by pattern, in ascending and in descending order of addresses.

    Args:
        ctx: The workload's context.
        patterns: ``all``, or names with plus signs between them.
        seed: The seed of the first pass; each further pass uses the next one.
        retention: How many seconds, from 1 to 7200, a stripe of the memory is left untouched
            before it is read back, one stripe after the other; 0 leaves out this test.
    """
    chosen = parse_patterns(patterns)
    cells = _cells_for(ctx, _cache_of(ctx.device), holds=retention > 0)
    test = MemoryTest(ctx, cells, chosen, seed, retention)
    test.next_hold = random.randrange(len(_KEPT) * len(test.cells.stripes))  # noqa: S311
    if not ctx.become_ready():
        return
    test.prove()
    try:
        for number in count(1):
            test.run_pass(number)
    except _StoppedError:
        test.report_faults()


class _StoppedError(Exception):
    """The workload is to return."""


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """The cost of one piece: seconds of the device, and bytes read and written."""

    write_seconds: float
    check_seconds: float
    write_bytes: float
    check_bytes: float


@dataclass(frozen=True, kw_only=True)
class _Sweep:
    """One pattern, written once and read several times in one direction."""

    number: int
    task: Task
    descending: bool = False
    #: How long its stripe was left untouched, in seconds; None if it covers all of the memory.
    held_s: float | None = None

    def __str__(self) -> str:
        if self.held_s is not None:
            return f"pattern {RETENTION} ({self.task.pattern.name}), held for {self.held_s:.0f} s"
        direction = "descending" if self.descending else "ascending"
        return f"pattern {self.task.pattern.name}, {direction}"


class MemoryTest:
    """Passes over the memory.

    Args:
        ctx: The workload's context.
        cells: The memory.
        patterns: The patterns of each pass.
        seed: The seed of the first pass.
        retention: How many seconds a stripe is left untouched; 0 holds none.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        cells: MemoryCells,
        patterns: tuple[Pattern, ...],
        seed: int,
        retention: float = 0.0,
    ) -> None:
        self.ctx = ctx
        self.cells = cells
        cells.wait = partial(ctx.drain, rests=False)  # faults are reported before a rest
        self._patterns = patterns
        self._seed = seed
        self._retention = retention
        #: All patterns that are ever written.
        self._written = tuple(dict.fromkeys((*patterns, *(_KEPT if retention else ()))))
        self._costs = {pattern.name: self._measure(pattern) for pattern in self._written}
        self._covered: set[int] = set()
        #: Gives the next stripe and its pattern. Short tests begin anywhere, to cover all in time.
        self.next_hold = 0
        #: What is held and since when, and the blocks of all stripes that were held to the end.
        self._kept: Task | None = None
        self._held_since = 0.0
        self._retained: set[int] = set()
        self._queued = 0.0
        self._sweep = self._sweep_for(1, patterns[0], descending=False)

    def prove(self) -> None:
        """Prove for each pattern that a flipped bit is found, and nothing else.

        This runs every kernel that the test ever needs, including those for a fault. Nothing counts
        before it has passed.

        Raises:
            RuntimeError: The memory or the test cannot be trusted.
        """
        pieces = self.cells.cut(self.cells.tested()[0])
        places = (pieces[0], pieces[len(pieces) // 2], pieces[-1])
        for pattern in self._written:
            self._sweep = self._sweep_for(1, pattern, descending=False)
            task = self._sweep.task
            for piece in pieces:
                self.cells.write(task, piece)
            if wrong := self._wrong_pieces(task, pieces):
                self._report(0, wrong[0], len(wrong))
                raise RuntimeError(f"memory that was just written is wrong ({pattern.name})")
            for bit, place in zip((0, 31, 63), places, strict=True):
                self.cells.flip(place, place.stop - place.start - 1, bit)
                if self._wrong_pieces(task, pieces) != [place]:
                    raise RuntimeError(f"a flipped bit was not found ({pattern.name}, bit {bit})")
                evidence = self.cells.examine(task, place)
                if (evidence.count, evidence.bits[bit], evidence.repeated) != (1, 1, 0):
                    raise RuntimeError(f"a flipped bit, {bit}, was diagnosed as {evidence}")
        self.cells.flush()
        self.cells.wrong.zero_()

    def _wrong_pieces(self, task: Task, pieces: list[Piece]) -> list[Piece]:
        """Return the wrong pieces; waits for the device."""
        for piece in pieces:
            self.cells.check(task, piece, 0)
        return [piece for _, piece in self.cells.fetch_wrong()]

    def run_pass(self, number: int) -> None:
        """Run one pass, counted from 1: each pattern in both directions.

        Raises:
            _StoppedError: The workload is to return.
        """
        self._choose_scratch(number)
        for pattern in self._patterns:
            for descending in (False, True):
                self._turn_stripe(number)
                self._sweep = self._sweep_for(number, pattern, descending=descending)
                self._note_progress()
                order = self.order()
                self.write(order)
                for read in range(READS):
                    self.read(order, read)
                self._covered.update(self.cells.tested())
                self.report_faults()
                self._report_coverage()
                self._pace()

    def _choose_scratch(self, number: int) -> None:
        """Use another block as scratch memory in each pass, and none that is held."""
        count = len(self.cells.blocks)
        order = ((number - 1 + skipped) % count for skipped in range(count))
        self.cells.use_scratch(next(block for block in order if block not in self.cells.held))

    def order(self) -> list[Piece]:
        """Return the pieces in the order of this sweep."""
        pieces = self._pieces(self.cells.tested())
        return pieces[::-1] if self._sweep.descending else pieces

    def _pieces(self, blocks: Sequence[int]) -> list[Piece]:
        return [piece for block in blocks for piece in self.cells.cut(block)]

    def write(self, order: list[Piece]) -> None:
        """Write the pattern to all pieces."""
        task = self._sweep.task
        cost = self._costs[task.pattern.name]
        for piece in order:
            self.cells.write(task, piece)
            self._spend(cost.write_seconds, cost.write_bytes)

    def read(self, order: list[Piece], read: int) -> None:
        """Compare all pieces; none of them is in the cache."""
        task = self._sweep.task
        cost = self._costs[task.pattern.name]
        # A sweep over all of the memory passes through the cache by itself, unless that is small.
        if self.cells.flush_buffer is not None or self._sweep.held_s is not None:
            self.cells.flush()
        for piece in order:
            self.cells.check(task, piece, read)
            self._spend(cost.check_seconds, cost.check_bytes, checks=1)

    # --- a stripe ----------------------------------------------------------------------------

    def _turn_stripe(self, number: int) -> None:
        """Between two sweeps: check the stripe once its time is over, and hold the next one."""
        if not self._retention:
            return
        if self._kept is not None:
            held_s = time.monotonic() - self._held_since
            if held_s < self._retention:
                return
            self._check_stripe(_Sweep(number=number, task=self._kept, held_s=held_s))
        self._hold_stripe(number)

    def _hold_stripe(self, number: int) -> None:
        """Write a pattern to the next stripe and leave it alone from then on."""
        cells = self.cells
        turn, stripe = divmod(self.next_hold, len(cells.stripes))
        self.next_hold += 1
        self._kept = Task(pattern=_KEPT[turn % len(_KEPT)], seed=self._seed + turn // len(_KEPT))
        cells.held = cells.stripes[stripe]
        self._choose_scratch(number)
        self._sweep = _Sweep(number=number, task=self._kept, held_s=0.0)
        self.write(self._pieces(cells.held))
        cells.flush()  # the last of it leaves the cache for the memory now
        self._pace()
        cells.wait()
        self._held_since = time.monotonic()

    def _check_stripe(self, sweep: _Sweep) -> None:
        """Compare the stripe with its pattern, report that, and test it like the rest again."""
        self._sweep = sweep
        for read in range(READS):
            self.read(self._pieces(self.cells.held), read)
        self._retained.update(self.cells.held)
        self.report_faults()
        self.ctx.send(
            MemoryCovered(
                pattern=RETENTION,
                patterns=self._patterns_of_pass,
                share=self._share(len(self._retained)),
                stripe=True,
            )
        )
        self._pace()
        self._kept, self.cells.held = None, ()

    # --- results -----------------------------------------------------------------------------

    def report_faults(self) -> None:
        """Fetch the outcome of this sweep, and report wrong pieces before they are overwritten."""
        wrong = self.cells.fetch_wrong()
        if not wrong:
            return
        self.ctx.report(iterations=0, errors=len(wrong))
        for read, piece in wrong[:_MAX_EXAMINED]:
            self._report(read, piece, len(wrong))
        self.cells.wrong.zero_()

    def _report(self, read: int, piece: Piece, all_: int) -> None:
        sweep = self._sweep
        evidence = self.cells.examine(sweep.task, piece)
        detail = f"{sweep}, read {read + 1} of {READS}, words of 64 bits"
        if not evidence.count:
            detail += f"; right when read again; the piece has {piece.stop - piece.start}"
        if all_ > 1:
            detail += f"; {all_} pieces were wrong at once"
        self.ctx.find(
            Finding(
                place=FindingPlace.MEMORY,
                workload="memtest",
                round=sweep.number,
                seed=sweep.task.seed,
                count=max(1, evidence.count),
                first=evidence.first,
                bits=evidence.bits,
                reread=evidence.count > 0,
                repeated=evidence.repeated,
                repeats=REPEATS,
                detail=detail,
            )
        )

    def _sweep_for(self, number: int, pattern: Pattern, *, descending: bool) -> _Sweep:
        task = Task(pattern=pattern, seed=self._seed + number - 1)
        return _Sweep(number=number, task=task, descending=descending)

    def _measure(self, pattern: Pattern) -> _Cost:
        task, cells = Task(pattern=pattern, seed=self._seed), self.cells
        piece = cells.cut(cells.tested()[0])[0]
        words = 8.0 * (piece.stop - piece.start)
        computed = pattern.accesses if pattern.value is None else 0
        return _Cost(
            write_seconds=max(_MIN_PIECE_S, self.ctx.measure(lambda: cells.write(task, piece))),
            check_seconds=max(_MIN_PIECE_S, self.ctx.measure(lambda: cells.check(task, piece, 0))),
            write_bytes=words * pattern.accesses,
            check_bytes=words * (computed + (2 if computed else 1) + 2 / 8),
        )

    def _spend(self, seconds: float, bytes_: float, checks: int = 0) -> None:
        """Account for the work on one piece, and pace after each quantum."""
        self.ctx.report(bytes=bytes_, checks=checks)
        self._queued += seconds
        if self._queued >= self.ctx.quantum:
            self._pace()

    def _pace(self) -> None:
        self._queued = 0.0
        if not self.ctx.pace(before_rest=self.report_faults):
            raise _StoppedError

    def _report_coverage(self) -> None:
        """Report that this sweep is complete."""
        sweep = self._sweep
        self.ctx.send(
            MemoryCovered(
                pattern=f"{sweep.task.pattern.name}{' descending' if sweep.descending else ''}",
                patterns=self._patterns_of_pass,
                share=self._share(len(self.cells.tested())),
            )
        )

    @property
    def _patterns_of_pass(self) -> int:
        """The number of patterns that are reported, each direction as one."""
        return 2 * len(self._patterns) + (1 if self._retention else 0)

    def _note_progress(self) -> None:
        text = (
            f"pass {self._sweep.number}, {self._sweep}, "
            f"covered {100 * self._share(len(self._covered)):.1f} % of the device's memory"
        )
        if self._retention:
            held = 100 * self._share(len(self.cells.held))
            text += f"; {held:.1f} % held for {time.monotonic() - self._held_since:.0f} s"
        self.ctx.note(text)

    def _share(self, blocks: int) -> float:
        """Compute which share of the device's memory so many blocks are."""
        all_ = len(self.cells.blocks)
        whole = all_ * self.cells.size * 8 / sum(chunk.numel() for chunk in self.ctx.chunks)
        return self.ctx.share * whole * blocks / all_


def _cache_of(device: torch.device) -> int:
    """Look up the size of a GPU's L2 cache in bytes; a simulated one has none."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _cells_for(ctx: WorkloadContext, cache: int, *, holds: bool) -> MemoryCells:
    """Divide the memory into pieces of which several fit into a quantum."""
    task = Task(pattern=PATTERNS[_SLOWEST], seed=0)
    for length in _LENGTHS:
        cells = MemoryCells(ctx.chunks, 0, length)
        write = partial(cells.write, task, cells.cut(cells.tested()[0])[0])
        if ctx.measure(write) <= _SHARE * ctx.quantum:
            break
    taken = ctx.rehearsal.result if ctx.rehearsal is not None else None
    return MemoryCells(ctx.chunks, cache, length, holds=holds, flush_buffer=taken)
