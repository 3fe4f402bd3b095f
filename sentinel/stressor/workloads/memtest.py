"""Write patterns to all of the memory, read them back, and say what has changed.

A pattern is written to every block before the first one is read, so that nothing is read from the
L2 cache, and no block is written again before it is known whether it was right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch

from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.memory_cells import READS, REPEATS, Cells, Piece, Task
from sentinel.stressor.verification.patterns import PATTERNS, Pattern, choose

#: The most words of a piece, to be tried one after the other, and the share of a quantum that the
#: slowest pattern may take for a piece.
_LENGTHS = (2**25, 2**23, 2**21)
_SHARE = 0.25
_SLOWEST = "random-complement"

#: What a piece takes at least, in seconds, whatever a clock says.
_LEAST = 1e-6

#: How many wrong pieces are examined after one pattern; the others are counted.
_MOST = 8


def memtest(ctx: WorkloadContext, *, patterns: str = "all", seed: int = 1) -> None:
    """Test the memory, pattern by pattern, in ascending and in descending order of the addresses.

    Args:
        ctx: The GPU.
        patterns: ``all``, or names with plus signs between them.
        seed: Of the patterns that have one in the first pass; the next pass has the next.
    """
    chosen = choose(patterns)
    test = MemoryTest(ctx, _cells_for(ctx), chosen, seed)
    test.prove()
    try:
        for number in count(1):
            test.go_through(number)
    except _StoppedError:
        test.look(wait=_no_wait)


class _StoppedError(Exception):
    """The workload is to return."""


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """What one piece takes: seconds of the device, and bytes of its memory read and written."""

    write_seconds: float
    check_seconds: float
    write_bytes: float
    check_bytes: float


@dataclass(frozen=True, kw_only=True)
class _Sweep:
    """One pattern, written once and read several times in one direction."""

    number: int
    task: Task
    descending: bool

    def __str__(self) -> str:
        direction = "descending" if self.descending else "ascending"
        return f"pattern {self.task.pattern.name}, {direction}"


class MemoryTest:
    """The passes over the memory.

    Args:
        ctx: The GPU.
        cells: Its memory.
        patterns: Those that each pass writes.
        seed: That of the first pass.
    """

    def __init__(
        self, ctx: WorkloadContext, cells: Cells, patterns: tuple[Pattern, ...], seed: int
    ) -> None:
        self.ctx = ctx
        self.cells = cells
        self._patterns = patterns
        self._seed = seed
        self._costs = {pattern.name: self._measure(pattern) for pattern in patterns}
        self._covered: set[int] = set()
        self._queued = 0.0
        self._sweep = self._sweep_of(1, patterns[0], descending=False)

    def prove(self) -> None:
        """Show for each pattern that a flipped bit is found and examined, and that none is else.

        Every kernel that the test will ever need runs in it, those for a fault as well.

        Raises:
            RuntimeError: The memory or the test cannot be trusted.
        """
        pieces = self.cells.cut(self.cells.tested()[0])
        places = (pieces[0], pieces[len(pieces) // 2], pieces[-1])
        for pattern in self._patterns:
            task = Task(pattern=pattern, seed=self._seed)
            for piece in pieces:
                self.cells.write(task, piece)
            if self._found(task, pieces):
                raise RuntimeError(f"memory that was just written is wrong ({pattern.name})")
            for bit, place in zip((0, 31, 63), places, strict=True):
                self.cells.flip(place, place.stop - place.start - 1, bit)
                if self._found(task, pieces) != [place]:
                    raise RuntimeError(f"a flipped bit was not found ({pattern.name}, bit {bit})")
                evidence = self.cells.examine(task, place, _no_wait)
                if (evidence.count, evidence.bits[bit], evidence.repeated) != (1, 1, 0):
                    raise RuntimeError(f"a flipped bit, {bit}, was taken for {evidence}")
        self.cells.flush()
        self.cells.wrong.zero_()

    def _found(self, task: Task, pieces: list[Piece]) -> list[Piece]:
        """Return those of the pieces that are wrong; waits for the device."""
        for piece in pieces:
            self.cells.check(task, piece, 0)
        return [piece for _, piece in self.cells.fetch_wrong(_no_wait)]

    def go_through(self, number: int) -> None:
        """Make one pass, counted from 1: each pattern in both directions; then look.

        Raises:
            _StoppedError: The workload is to return.
        """
        self.cells.use_tools_in((number - 1) % len(self.cells.blocks))
        for pattern in self._patterns:
            for descending in (False, True):
                self._sweep = self._sweep_of(number, pattern, descending=descending)
                self._tell_where()
                order = self.order()
                self.write(order)
                for read in range(READS):
                    self.read(order, read)
                self._covered.update(self.cells.tested())
                self.look()
                self._pace()

    def order(self) -> list[Piece]:
        """Return the pieces of this pass in their order."""
        pieces = [piece for block in self.cells.tested() for piece in self.cells.cut(block)]
        return pieces[::-1] if self._sweep.descending else pieces

    def write(self, order: list[Piece]) -> None:
        """Write the pattern to all of the pieces."""
        task = self._sweep.task
        cost = self._costs[task.pattern.name]
        for piece in order:
            self.cells.write(task, piece)
            self._spend(cost.write_seconds, cost.write_bytes)

    def read(self, order: list[Piece], read: int) -> None:
        """Compare all of the pieces, none of which is in the cache by then."""
        task = self._sweep.task
        cost = self._costs[task.pattern.name]
        if self.cells.flusher is not None:
            self.cells.flush()
        for piece in order:
            self.cells.check(task, piece, read)
            self._spend(cost.check_seconds, cost.check_bytes, checks=1)

    def look(self, wait: Callable[[], bool] | None = None) -> None:
        """Learn what was wrong in this sweep, and report it; nothing was overwritten since.

        Args:
            wait: Sleeps until the work queued so far is done; ``False`` where it did not.
        """
        wait = wait or self._wait
        wrong = self.cells.fetch_wrong(wait)
        if not wrong:
            return
        self.ctx.report(iterations=0, errors=len(wrong))
        for read, piece in wrong[:_MOST]:
            self._report(read, piece, len(wrong), wait)
        self.cells.wrong.zero_()

    def _report(self, read: int, piece: Piece, all_: int, wait: Callable[[], bool]) -> None:
        sweep = self._sweep
        evidence = self.cells.examine(sweep.task, piece, wait)
        detail = f"{sweep}, read {read + 1} of {READS}, words of 64 bits"
        if not evidence.count:
            detail += f"; right when read again, one or more of {piece.stop - piece.start} were not"
        if all_ > 1:
            detail += f"; {all_} pieces were wrong at once"
        self.ctx.find(
            Finding(
                number=0,
                place=FindingPlace.MEMORY,
                workload="memtest",
                dtype=None,
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

    def _sweep_of(self, number: int, pattern: Pattern, *, descending: bool) -> _Sweep:
        task = Task(pattern=pattern, seed=self._seed + number - 1)
        return _Sweep(number=number, task=task, descending=descending)

    def _measure(self, pattern: Pattern) -> _Cost:
        task, cells = Task(pattern=pattern, seed=self._seed), self.cells
        piece = cells.cut(cells.tested()[0])[0]
        words = 8.0 * (piece.stop - piece.start)
        computed = pattern.accesses if pattern.value is None else 0
        return _Cost(
            write_seconds=max(_LEAST, self.ctx.measure(lambda: cells.write(task, piece))),
            check_seconds=max(_LEAST, self.ctx.measure(lambda: cells.check(task, piece, 0))),
            write_bytes=words * pattern.accesses,
            check_bytes=words * (computed + (2 if computed else 1) + 2 / 8),
        )

    def _spend(self, seconds: float, bytes_: float, checks: int = 0) -> None:
        """Account for one piece of work, and pace when they are a quantum."""
        self.ctx.report(bytes=bytes_, checks=checks)
        self._queued += seconds
        if self._queued >= self.ctx.quantum:
            self._pace()

    def _pace(self) -> None:
        self._queued = 0.0
        if not self.ctx.pace(before_rest=self.look):
            raise _StoppedError

    def _wait(self) -> bool:
        """Sleep until everything is done; what is wrong is to be told before any rest."""
        return self.ctx.drain(rests=False)

    def _tell_where(self) -> None:
        blocks = len(self.cells.blocks)
        whole = blocks * self.cells.size * 8 / sum(chunk.numel() for chunk in self.ctx.chunks)
        share = self.ctx.share * whole * len(self._covered) / blocks
        self.ctx.note(
            f"pass {self._sweep.number}, {self._sweep}, "
            f"covered {100 * share:.1f} % of the device's memory"
        )


def _no_wait() -> bool:
    return False


def _cells_for(ctx: WorkloadContext) -> Cells:
    """Return the memory, cut into pieces of which several fit into a quantum."""
    cache = 0
    if ctx.device.type == "cuda":
        cache = torch.cuda.get_device_properties(ctx.device).L2_cache_size
    task = Task(pattern=PATTERNS[_SLOWEST], seed=0)
    for length in _LENGTHS:
        cells = Cells(ctx.chunks, 0, length)
        write = partial(cells.write, task, cells.cut(cells.tested()[0])[0])
        if ctx.measure(write) <= _SHARE * ctx.quantum:
            break
    return Cells(ctx.chunks, cache, length)
