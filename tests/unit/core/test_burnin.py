"""A burn-in plan: what counts, what interrupts it, and when a GPU is done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.levels import load_plan
from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.config.verified_work import is_done
from sentinel.core.burnin import progress as burnin_progress
from sentinel.core.burnin.progress import Burnin
from sentinel.core.gpu_state import Findings, Running
from sentinel.core.state import Orders
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.gpu import Telemetry
from sentinel.protocol.stressor import (
    Failed,
    FailureKind,
    MemoryCovered,
    Progress,
)
from tests.harness.core_scenarios import finish, reconfigured
from tests.harness.example_finding import FLIP
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.world import World

MEMORY = Phase(name="memory", workload="memtest", passes=2)
STEADY = Phase(name="steady", workload="gemm", seconds=60, steady=True, warm_up=20)
FP64 = Phase(name="fp64", workload="gemm:dtype=fp64", seconds=10, mandatory=False)
COPY = Phase(name="copy", workload="elementwise", seconds=5, checked=False)


def plan_of(*phases: Phase) -> Plan:
    return Plan(name="test", phases=phases)


def running(plan: Plan, gpus: int = 1, *, fail_fast: bool = False, repeat: bool = False) -> World:
    """Build a world of GPUs that check results, and a supervisor with a plan."""
    config = Config(rearm=1.0, rearm_longest=1.0, plan=plan)
    world = World(gpus=gpus, config=config, orders=Orders(repeat=repeat))
    for fake in world.gpus.values():
        fake.checks, fake.patterns, fake.temperature = 10, ("one", "two"), 60
    begun = Burnin(fail_fast=fail_fast)
    world.state = world.state.change_gpus(lambda gpu_state: replace(gpu_state, burnin=begun))
    return world


def progress_of(world: World, gpu: int = 0) -> Burnin:
    return not_none(world.gpu_state(gpu).burnin)


def works_on(world: World, workload: str) -> Callable[[], bool]:
    def check() -> bool:
        gpu_state = world.gpu_state()
        spec = gpu_state.launch.spec
        running = isinstance(gpu_state.stressor, Running)
        return running and spec is not None and spec.workload == workload

    return check


def test_a_gpu_does_all_phases_and_is_done() -> None:
    world = running(plan_of(MEMORY, STEADY, FP64, COPY), gpus=2)
    finish(world)
    for gpu in (0, 1):
        memory, steady, fp64, copy = progress_of(world, gpu).work
        assert memory.passes() >= 2
        assert memory.share == 0.88
        assert steady.longest >= 60
        assert fp64.seconds >= 10
        assert copy.seconds >= 5
    ended = [str(event.fields["phase"]) for event in world.events("burnin.phase_ended")]
    assert sorted(ended) == sorted(["memory", "steady", "fp64", "copy"] * 2)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [None, None]
    started = [str(event.fields["workload"]) for event in world.events("stressor.starting")]
    assert sorted(started) == sorted(["memtest", "gemm", "gemm:dtype=fp64", "elementwise"] * 2)


@pytest.mark.parametrize(
    "level",
    ["screen", *(pytest.param(name, marks=pytest.mark.long) for name in ("standard", "long"))],
)
def test_every_level_can_be_done(level: str) -> None:
    world = running(load_plan(level, None))
    world.tick = 0.5
    finish(world, within=2 * 3600.0)
    assert progress_of(world).ended is None


def test_work_without_checks_does_not_count() -> None:
    world = running(plan_of(replace(FP64, mandatory=True)))
    world.gpus["GPU-0"].checks = 0
    world.run(works_on(world, FP64.workload))
    world.run_for(30)
    work = progress_of(world).current
    assert work.seconds == 0
    assert work.uncounted > 20


def test_a_plan_with_wrong_results_comes_to_its_end() -> None:
    world = running(plan_of(FP64))
    world.gpus["GPU-0"].errors = 1
    finish(world)
    assert progress_of(world).work[0].errors >= 10
    assert progress_of(world).ended is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "checks", "patterns", "why"),
    [
        (FP64, 0, (), "checked no results"),
        (replace(FP64, passes=1), 10, (), "covered no memory"),
        pytest.param(
            *(replace(STEADY, warm_up=0), 0, (), "checked no results"), marks=pytest.mark.long
        ),
    ],
)
def test_a_phase_of_which_nothing_counts_is_given_up(
    phase: Phase, checks: int, patterns: tuple[str, ...], why: str
) -> None:
    world = running(plan_of(phase, COPY))
    fake = world.gpus["GPU-0"]
    fake.checks, fake.patterns = checks, patterns
    world.tick = 0.5
    finish(world, within=800)
    given_up = not_none(progress_of(world).work[0].given_up)
    assert why in given_up


def test_errors_of_a_stopping_stressor_end_the_plan_with_fail_fast() -> None:
    world = running(plan_of(FP64, COPY), fail_fast=True)
    world.run(works_on(world, FP64.workload))
    child = world.child()
    world.run(lambda: progress_of(world).current.seconds > 0, within=5)
    newcomer = world.newcomer(0)
    world.run(lambda: world.spawner.killed)
    child.outbox.append(Progress(seconds=0.1, iterations=1, flops=0, bytes=0, checks=1, errors=5))
    world.run(lambda: progress_of(world).ended)
    world.at(0).foreign.remove(newcomer)


def test_a_missing_temperature_does_not_end_the_warm_up() -> None:
    world = running(plan_of(replace(STEADY, warm_up=60)))
    world.run(works_on(world, "gemm"))
    for step in range(10):
        world.at(0).temperature = None if step == 5 else 40 + 2 * step
        world.run_for(1)
    assert not progress_of(world).warm


def test_a_steady_phase_without_temperatures_begins_after_its_warm_up() -> None:
    world = running(plan_of(STEADY))
    world.at(0).temperature = None
    finish(world)
    assert progress_of(world).work[0].uncounted >= 20


def test_an_interruption_without_a_stretch_makes_the_gpu_cold() -> None:
    world = running(plan_of(STEADY))
    world.at(0).checks = 0
    world.run(works_on(world, "gemm"))
    world.run(lambda: progress_of(world).warm, within=60)
    world.come_and_go()
    assert not progress_of(world).warm


def test_a_gpu_that_overheats_again_and_again_comes_to_an_end() -> None:
    world = running(plan_of(replace(FP64, seconds=1000)))
    fake = world.at(0)
    fake.telemetry = Telemetry(at=0.0, maximum_c=87, slowdown_c=89)
    world.tick = 0.25
    for _ in range(5):
        fake.temperature = 60
        world.run(works_on(world, FP64.workload), within=200)
        world.run_for(5)
        fake.temperature = 95
        world.run(lambda: fake.child is None, within=60)
    finish(world)
    given_up = progress_of(world).work[0].given_up
    assert given_up == "the GPU has reached its own temperature limit 5 times"


@pytest.mark.long
def test_a_gpu_that_is_too_hot_to_begin_says_so_and_does_not_keep_the_run_waiting() -> None:
    world = running(plan_of(FP64), gpus=2)
    world.at(0).telemetry = Telemetry(at=0.0, maximum_c=87, slowdown_c=89)
    world.at(0).temperature = 95
    world.run_for(125)
    assert world.at(0).child is None
    waiting = [event.fields["waiting"] for event in world.events("burnin.progress")]
    hot = "its health is critical because of its temperature"
    ends = [str(text).removeprefix(f"{hot}; given up unless it cools within ") for text in waiting]
    assert (ends[0], ends[-1]) in {("10 min", "9 min"), ("10 min", "8 min")}
    world.run_for(450)
    assert progress_of(world).ended is None
    finish(world)
    assert progress_of(world).ended == "it was too hot for ten minutes without any work"
    assert progress_of(world, 1).ended is None


def test_a_stall_of_the_whole_host_is_no_hang() -> None:
    world = running(plan_of(replace(FP64, seconds=60)))
    world.run(works_on(world, FP64.workload))
    world.run_for(5)
    world.now += 100.0
    world.run_for(20)
    assert not [
        event for event in world.events("stressor.failed") if event.fields["kind"] == "hang"
    ]


def test_fail_fast_ends_the_plan_of_one_gpu() -> None:
    world = running(plan_of(FP64, COPY), gpus=2, fail_fast=True)
    world.gpus["GPU-0"].errors = 1
    finish(world)
    assert progress_of(world, 0).ended == "an error was found (--fail-fast)"
    assert progress_of(world, 1).ended is None


def test_the_progress_repeats_the_findings_of_the_run_alone() -> None:
    world = running(plan_of(FP64))
    before = replace(world.gpu_state(), findings=Findings(total=3))
    begun = replace(before, burnin=Burnin(findings_before=3))
    world.state = world.state.change_gpus(lambda _: begun)
    world.run(works_on(world, FP64.workload))
    world.child().outbox.append(FLIP)
    world.run_for(1)
    world.state = replace(world.state, next_status=world.now)
    world.run_for(1)
    assert world.events("burnin.progress")[-1].fields["findings"] == 1


def test_a_finding_ends_the_plan_with_fail_fast() -> None:
    world = running(plan_of(FP64), fail_fast=True)
    world.run(works_on(world, FP64.workload))
    child = world.child()
    child.outbox.append(FLIP)
    finish(world)
    assert progress_of(world).ended is not None


def test_a_newcomer_interrupts_the_stretch_and_the_plan_goes_on_after_it() -> None:
    world = running(plan_of(STEADY, COPY))
    world.run(works_on(world, "gemm"))
    world.run_for(50)
    before = progress_of(world).current
    assert 0 < before.stretch < 60
    newcomer = world.newcomer(0)
    world.run(lambda: world.at(0).child is None)
    after = progress_of(world).current
    assert (after.stretch, after.interruptions) == (0.0, 1)
    assert after.longest == before.longest
    world.at(0).foreign.remove(newcomer)
    finish(world)
    (work, _) = progress_of(world).work
    assert work.longest >= 60
    assert work.seconds > 60, "both stretches count, and only the longest one for the quota"
    interrupted = world.events("burnin.interrupted")
    assert [one.fields["phase"] for one in interrupted] == ["steady"]
    assert len(world.events("burnin.warm")) == 2, "it warms up again"


def test_seconds_add_up_over_stretches_unless_the_phase_is_steady() -> None:
    phase = Phase(name="fp32", workload="gemm:dtype=fp32", seconds=40)
    world = running(plan_of(phase))
    for _ in range(3):
        world.run(works_on(world, phase.workload))
        world.run_for(12)
        world.come_and_go()
    finish(world)
    work = progress_of(world).work[0]
    assert work.seconds >= 40 > work.longest
    assert work.interruptions == 3


def test_nothing_counts_before_the_temperature_is_stable() -> None:
    world = running(plan_of(STEADY))
    world.run(works_on(world, "gemm"))
    world.tick = 0.25
    for step in range(15):
        world.at(0).temperature = 40 + 2 * step
        world.run_for(1)
    assert progress_of(world).current.seconds == 0
    world.run(lambda: progress_of(world).warm, within=20)
    assert progress_of(world).current.uncounted > 10


def test_the_warm_up_ends_at_its_limit() -> None:
    world = running(plan_of(STEADY))
    world.run(works_on(world, "gemm"))
    world.tick = 0.25
    for step in range(25):
        world.at(0).temperature = 40 + step
        world.run_for(1)
    assert progress_of(world).warm


def test_a_phase_is_given_up_after_repeated_failures_and_the_next_one_runs() -> None:
    world = running(plan_of(FP64, COPY))
    for _ in range(3):
        world.run(works_on(world, FP64.workload), within=60)
        child = world.child()
        child.outbox.append(Failed(kind=FailureKind.WORKLOAD, reason="it broke"))
        child.dies_at, child.code = world.now + 0.1, 82
        world.run(lambda: world.at(0).child is None)
    finish(world)
    failed, copy = progress_of(world).work
    assert "it broke" in not_none(failed.given_up)
    assert copy.seconds >= 5


def test_an_unusable_workload_is_given_up_at_once_and_ends_no_daemon() -> None:
    world = running(plan_of(FP64, COPY))
    world.run(lambda: world.at(0).child is not None)
    child = world.child()
    child.unresponsive = True
    child.outbox.append(Failed(kind=FailureKind.UNUSABLE, reason="no fp64 here"))
    child.dies_at, child.code = world.now + 0.1, 82
    finish(world)
    failed, copy = progress_of(world).work
    assert failed.given_up == "no fp64 here"
    assert copy.seconds >= 5
    (fatal,) = world.events("stressor.fatal")
    assert fatal.fields["until"] == "the next phase"


@pytest.mark.parametrize("idle_gate", ["each", "all"])
def test_a_gpu_that_cannot_be_read_does_no_more_and_costs_no_other_gpu(idle_gate: str) -> None:
    world = running(plan_of(FP64, COPY), gpus=2)
    world.state = reconfigured(world, idle_gate=idle_gate)
    world.run(works_on(world, FP64.workload))
    world.gpus["GPU-0"].fault = "the GPU is lost"
    finish(world)
    assert str(progress_of(world, 0).ended).startswith("it cannot be read: ")
    assert progress_of(world, 1).ended is None


@mostly_long("readable, ends", [(5, True), (15, False)])
def test_a_gpu_that_is_read_for_moments_only_cannot_be_read(readable: int, *, ends: bool) -> None:
    """A probe that ends in a loop reads each GPU when it starts; the run would wait for ever."""
    world = running(plan_of(FP64), gpus=2)
    for _ in range(6):
        world.gpus["GPU-0"].fault = "the probe has ended"
        world.run_for(20)
        world.gpus["GPU-0"].fault = None
        world.run_for(readable)
    ended = str(progress_of(world).ended)
    assert ended.startswith("it cannot be read: ") == ends, ended


def test_a_gpu_in_mig_mode_is_not_tested_and_costs_no_other_gpu() -> None:
    world = running(plan_of(MEMORY), gpus=2)
    world.at(0).mig = True
    finish(world)
    assert progress_of(world, 0).ended == "it is not tested: MIG is enabled"
    assert progress_of(world, 1).ended is None
    assert progress_of(world, 1).work[0].passes() >= 2


def test_a_shutdown_reports_what_was_done_of_every_plan() -> None:
    world = running(plan_of(FP64, COPY), gpus=2)
    world.run(works_on(world, FP64.workload))
    world.run_for(5)
    world.interrupts.pending = ("SIGINT", False)
    finish(world)
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == ["SIGINT"] * 2
    (first, _) = world.events("burnin.phase_ended")
    assert float(str(first.fields["seconds"])) > 0


@given(
    reports=st.lists(
        st.tuples(
            st.floats(0.1, 2.0), st.integers(0, 3), st.integers(0, 1), st.booleans(), st.booleans()
        ),
        max_size=40,
    )
)
def test_no_more_counts_than_was_checked(reports: list[tuple[float, int, int, bool, bool]]) -> None:
    phase = replace(STEADY, warm_up=5.0)
    state, now, most = Burnin(), 0.0, 0.0
    for seconds, checks, errors, hot, gone in reports:
        if gone:
            state = burnin_progress.interrupt(state, phase)
        now += seconds
        report = Progress(
            seconds=seconds, iterations=1, flops=0, bytes=0, checks=checks, errors=errors
        )
        state = burnin_progress.count(state, phase, report, 80 if hot else 30, now)
        most += seconds if checks else 0.0
    work = state.current
    assert work.stretch <= work.longest <= work.seconds <= most + 1e-6
    assert work.seconds + work.uncounted == pytest.approx(sum(one[0] for one in reports))


def test_passes_count_only_if_every_pattern_covered_the_memory() -> None:
    assert PhaseWork(covered={"one": 3}, patterns=2).passes() == 0
    assert PhaseWork(covered={"one": 3, "two": 2}, patterns=2).passes() == 2
    assert PhaseWork().passes() == 0


def test_a_daemon_goes_through_its_plan_again_and_again() -> None:
    world = running(plan_of(FP64, COPY), repeat=True)
    world.run(lambda: len(world.events("burnin.ended")) == 3, within=200)
    started = [str(event.fields["workload"]) for event in world.events("stressor.starting")]
    assert started[:6] == ["gemm:dtype=fp64", "elementwise"] * 3
    assert not world.state.finished
    assert [event.fields["reason"] for event in world.events("burnin.ended")] == [None] * 3


def refuse(world: World, kind: FailureKind) -> None:
    """End the stressor that is starting, if there is one, by a message of this kind."""
    child = world.at(0).child
    if child is not None and child.dies_at is None:
        child.unresponsive = True
        child.outbox.append(Failed(kind=kind, reason="no such option"))
        child.dies_at, child.code = world.now + 0.1, 82


@pytest.mark.long
@pytest.mark.parametrize("kind", [FailureKind.UNUSABLE, FailureKind.WORKLOAD])
def test_a_repeated_plan_that_always_fails_is_begun_again_less_and_less_often(
    kind: FailureKind,
) -> None:
    world = running(plan_of(FP64, COPY), repeat=True)
    world.tick = 0.25
    ends = world.now + 600
    while world.now < ends:
        world.run_for(0.25)
        refuse(world, kind)
    starts = [event.at for event in world.events("stressor.starting")]
    assert len(starts) < 15
    assert max(later - one for one, later in pairwise(starts)) > 100
    assert not world.state.finished


def test_work_that_counts_ends_the_pauses_of_a_repeated_plan() -> None:
    world = running(plan_of(FP64, COPY), repeat=True)
    world.tick = 0.25
    while len(world.events("burnin.ended")) < 8:
        world.run_for(0.25)
        spec = world.gpu_state().launch.spec
        if spec is not None and spec.workload == FP64.workload:
            refuse(world, FailureKind.UNUSABLE)
    ended = [event.at for event in world.events("burnin.ended")]
    assert max(later - one for one, later in pairwise(ended)) < 30


def test_a_repeated_plan_waits_for_a_gpu_that_cannot_be_read() -> None:
    world = running(plan_of(FP64), repeat=True)
    world.run(works_on(world, FP64.workload))
    world.gpus["GPU-0"].fault = "the GPU is lost"
    world.run_for(300)
    assert len(world.events("burnin.ended")) == 1
    world.gpus["GPU-0"].fault = None
    world.run(works_on(world, FP64.workload))


def test_a_stripe_counts_as_a_pattern_and_not_as_coverage() -> None:
    state = Burnin()
    for share in (0.77, 0.75, 0.76):
        state = burnin_progress.cover(
            state, MEMORY, MemoryCovered(pattern="zeros", patterns=2, share=share)
        )
    assert (state.current.share, state.current.retained) == (0.75, None)
    assert state.current.passes() == 0
    for share in (0.11, 0.22, 0.11):  # the last of another stressor, which begins again
        message = MemoryCovered(pattern="retention", patterns=2, share=share, stripe=True)
        state = burnin_progress.cover(state, MEMORY, message)
    assert (state.current.share, state.current.retained) == (0.75, 0.22)
    assert state.current.passes() == 3


def test_interruptions_make_no_pattern_longer_in_the_time_left() -> None:
    """Two passes of four patterns, each of 10 s, of which a newcomer cuts off the last second."""
    state = Burnin()
    report = Progress(seconds=10.0, iterations=1, flops=0.0, bytes=0.0, checks=1, errors=0)
    state = burnin_progress.count(state, MEMORY, report, None, 0.0)
    state = burnin_progress.cover(state, MEMORY, MemoryCovered(pattern="0", patterns=4, share=0.9))
    for _ in range(20):
        cut = replace(report, seconds=9.0)
        state = burnin_progress.interrupt(
            burnin_progress.count(state, MEMORY, cut, None, 0.0), MEMORY
        )
        assert 30 <= burnin_progress.seconds_left(state, plan_of(MEMORY)) <= 70


def test_the_time_left_of_passes_is_known_from_the_patterns_so_far() -> None:
    """Two passes of four patterns, each of 10 s; some are checked only later. Then 25 s follow."""
    plan = plan_of(MEMORY, replace(FP64, seconds=25.0))
    state = Burnin()
    assert burnin_progress.seconds_left(state, plan) == 25
    for number in range(8):
        report = Progress(
            seconds=10.0, iterations=1, flops=0.0, bytes=0.0, checks=number % 2, errors=0
        )
        state = burnin_progress.count(state, MEMORY, report, None, 0.0)
        after = 10 * (7 - number) if number else 0
        assert burnin_progress.seconds_left(state, plan) == pytest.approx(25 + after)
        message = MemoryCovered(pattern=str(number % 4), patterns=4, share=0.9)
        state = burnin_progress.cover(state, MEMORY, message)
        assert 25 <= burnin_progress.seconds_left(state, plan) <= 25 + 10 * (7 - number)
    assert is_done(MEMORY, state.current)
