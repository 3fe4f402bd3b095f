"""Rehearsals: what a stressor holds before it takes its memory, and that it grows no more then."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sentinel.protocol.stressor import (
    Announcement,
    ChildMessage,
    Finding,
    FindingPlace,
    MemoryTarget,
    Progress,
    Ready,
    ReferenceChecksum,
    StartStage,
)
from sentinel.stressor.context import Rehearsal, WorkloadContext
from sentinel.stressor.device import plan
from sentinel.stressor.loader import bind
from sentinel.stressor.rehearsal import SHARE, rehearsed, run_rehearsal
from sentinel.stressor.start_watch import StartWatch
from tests.harness.narrowing import not_none
from tests.harness.stressor_harness import Child
from tests.harness.timing import TIMEOUT_S
from tests.harness.workload_harness import CHUNK, GIB, Bench, Workbench, spec_on, workbench

MIB = 2**20
#: What a context takes on a simulated GPU, and torch for temporary tensors at most.
CONTEXT, TEMPORARY = 300 * MIB, 32 * MIB

BUILT_IN = (
    "hold",
    "elementwise",
    "gemm",
    "gemm:dtype=int8",
    "mixed:plan=fp32+memory",
    "units:plan=exp+sort+attention",
    "units:plan=gather",
    "pulse",
    "pulse:burst=2",
    "links",
    "memtest",
    "memtest:retention=1",
)


def levels_until(child: Child, reached: Callable[[list[ChildMessage]], bool]) -> list[int]:
    """Read the used memory of a starting stressor until its messages have come to some point.

    What it has sent before a level was read is received after that: each level is of a time before
    that point, however late this process reads it.
    """
    levels: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        level = child.used()
        while select.select([child.channel], [], [], 0)[0] and child._receive() is not None:
            pass
        if reached(child.received):
            return levels
        assert time.monotonic() < deadline, child.received
        levels.append(level)
        child._receive()


def stages(messages: list[ChildMessage]) -> list[StartStage]:
    return [message.stage for message in messages if isinstance(message, Announcement)]


@pytest.mark.long
@pytest.mark.parametrize("workload", BUILT_IN)
def test_a_built_in_workload_holds_next_to_nothing_until_it_takes_its_memory(
    start: Callable[..., Child], workload: str
) -> None:
    child = start(workload)
    levels = levels_until(child, lambda seen: StartStage.TAKING in stages(seen))
    total = child.registry.memory(child.uuid).total
    assert max(levels, default=0) <= CONTEXT + TEMPORARY + SHARE * total
    child.wait_for(Ready)
    assert stages(child.received) == list(StartStage)


@pytest.mark.long
@pytest.mark.parametrize("workload", [*BUILT_IN, "tests.harness.small_memtest:memtest"])
def test_it_grows_no_more_once_its_memory_is_taken(
    start: Callable[..., Child], workload: str
) -> None:
    child = start(workload)
    levels_until(child, lambda seen: StartStage.PREPARING in stages(seen))
    used = child.used()
    levels = levels_until(child, lambda seen: any(isinstance(one, Progress) for one in seen))
    assert set(levels) == {used}
    (taken,) = [
        message
        for message in child.received
        if isinstance(message, Announcement) and message.stage is StartStage.PREPARING
    ]
    assert (taken.used, taken.more) == (used, 0)


@pytest.mark.long
def test_a_workload_without_a_rehearsal_announces_what_its_libraries_may_take(
    start: Callable[..., Child],
) -> None:
    child = start("tests.harness.bad_workloads:well_behaved")
    child.wait_for(Ready)
    assert stages(child.received) == [StartStage.TAKING, StartStage.PREPARING]
    taken = next(
        message
        for message in child.received
        if isinstance(message, Announcement) and message.stage is StartStage.PREPARING
    )
    assert taken.used is None
    assert taken.more > 0


# --- in this process --------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=2, chunk=CHUNK) as bench:
        yield bench


def rehearse(bench: Bench, rehearsal: Callable[[WorkloadContext], object]) -> WorkloadContext:
    """Run a rehearsal on the bench's device, before a gibibyte would be taken."""

    def context(filling: object) -> WorkloadContext:
        bench.ctx.hold(filling)  # type: ignore[arg-type]
        return bench.ctx

    spec = spec_on(bench.registry)
    watch = StartWatch(spec, bench.lease_keeper, bench.device)
    planned = plan(bench.device.free_bytes(), MemoryTarget(size=GIB), CHUNK)
    return run_rehearsal(rehearsal, bench.device, planned, context, watch)


def test_a_rehearsal_borrows_memory_and_knows_what_will_be_taken(bench: Workbench) -> None:
    before, seen = bench.device.reserved_bytes(), []

    def look(ctx: WorkloadContext) -> str:
        assert ctx.rehearsal is not None
        borrowed = bench.device.reserved_bytes() - before
        seen.append((borrowed, len(ctx.chunks), len(ctx.rehearsal.planned), ctx.rehearses))
        return "found"

    ctx = rehearse(bench, look)
    share = SHARE * bench.device.total_bytes()
    ((borrowed, chunks, planned, rehearses),) = seen
    assert 0 < borrowed <= share
    assert (chunks, planned, rehearses) == (4, GIB // CHUNK, True)
    assert isinstance(ctx.rehearsal, Rehearsal)
    assert (ctx.rehearsal.result, ctx.rehearsal.memory, ctx.rehearses) == ("found", None, False)
    assert bench.device.reserved_bytes() - before <= TEMPORARY


def test_what_a_rehearsal_completes_does_not_count_and_what_it_finds_does(
    bench: Workbench,
) -> None:
    finding = Finding(
        place=FindingPlace.MEMORY, workload="own", dtype=None, round=0, count=1, first=(), bits=()
    )

    def work(ctx: WorkloadContext) -> None:
        ctx.send(ReferenceChecksum(key="k", checksum="0x1", stored=None))
        ctx.report(iterations=3, checks=2)
        ctx.report(checks=1, errors=1)
        ctx.find(finding)

    rehearse(bench, work)
    assert bench.sent(ReferenceChecksum) == []
    assert len(bench.findings()) == 1
    done = bench.done()
    assert (done.iterations, done.checks, done.errors) == (1, 1, 1)


def test_a_rehearsal_has_the_options_of_its_workload_with_their_defaults() -> None:
    seen: list[tuple[object, ...]] = []

    @rehearsed(lambda ctx, size, *, fast: seen.append((ctx, size, fast)))
    def own(ctx: object, size: int = 3, *, fast: bool = False) -> None:
        seen.append(("run", ctx, size, fast))

    bound = bind(own, {"fast": True})
    not_none(bound.rehearse)("ctx")
    bound.run("ctx")
    assert seen == [("ctx", 3, True), ("run", "ctx", 3, True)]


def test_a_class_rehearses_with_what_it_was_constructed_with() -> None:
    class Own:
        def __init__(self, *, size: int = 3) -> None:
            self.size = size
            self.seen: list[str] = []

        def rehearse(self, ctx: str) -> None:
            self.seen.append(f"rehearse {ctx} {self.size}")

        def run(self, ctx: str) -> list[str]:
            self.seen.append(f"run {ctx} {self.size}")
            return self.seen

    bound = bind(Own, {"size": 4})
    not_none(bound.rehearse)("on a part")
    assert bound.run("on all") == ["rehearse on a part 4", "run on all 4"]


def test_memory_that_is_not_free_for_a_rehearsal_is_a_lack_of_memory(bench: Workbench) -> None:
    other = bench.registry.attach(bench.uuid)
    other.allocate(bench.device.free_bytes() - MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        rehearse(bench, lambda _: None)
    other.close()
