"""What counts of random burn-ins: the supervisor's own count, and the record of their events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.burnin.loading import load
from sentinel.burnin.record import GpuRecord
from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.core.burnin.progress import Burnin
from sentinel.host.event_lines import event_object
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.stressor import Failed, FailureKind
from tests.harness.core_scenarios import finish
from tests.harness.world import World

PHASES = (
    Phase(name="memory", workload="memtest", passes=2),
    Phase(name="steady", workload="gemm", seconds=30, steady=True, warm_up=10),
    Phase(name="fp64", workload="gemm:dtype=fp64", seconds=10, mandatory=False),
    Phase(name="same", workload="gemm:dtype=fp64", seconds=6),
    Phase(name="copy", workload="elementwise", seconds=5, checked=False),
    Phase(name="links", workload="links", seconds=5, together=True, mandatory=False),
)


class Disturbance(NamedTuple):
    """What happens to a GPU after some seconds, and for how long."""

    what: str
    gpu: int
    after_s: float
    lasts_s: float


class RandomRun(NamedTuple):
    """A plan, and what disturbs it."""

    phases: list[Phase]
    disturbances: list[Disturbance]
    #: A signal ends it after the last disturbance.
    cut_short: bool
    fail_fast: bool


WHAT = ("newcomer", "fails", "is unusable", "is wrong", "checks nothing", "heats up", "is unread")
RUNS = st.builds(
    RandomRun,
    st.lists(st.sampled_from(PHASES), min_size=1, unique_by=lambda phase: phase.name),
    st.lists(
        st.builds(
            Disturbance,
            st.sampled_from(WHAT),
            st.integers(0, 1),
            st.floats(0.3, 15.0),
            st.floats(0.3, 6.0),
        ),
        max_size=7,
    ),
    st.booleans(),
    st.booleans(),
)


def disturb(world: World, disturbance: Disturbance) -> None:
    """Let a disturbance happen, and end."""
    fake, what = world.at(disturbance.gpu), disturbance.what
    match what:
        case "newcomer":
            newcomer = world.newcomer(disturbance.gpu)
            world.run_for(disturbance.lasts_s)
            fake.foreign.remove(newcomer)
        case "fails" | "is unusable" if fake.child is not None and fake.child.dies_at is None:
            kind = FailureKind.WORKLOAD if what == "fails" else FailureKind.UNUSABLE
            fake.child.outbox.append(Failed(kind=kind, reason="it broke"))
            world.end_child(disturbance.gpu, 82, after=0.1)
        case "is wrong" | "checks nothing" | "is unread":
            field, value = {
                "is wrong": ("errors", 1),
                "checks nothing": ("checks", 0),
                "is unread": ("fault", "the GPU is lost"),
            }[what]
            before = getattr(fake, field)
            setattr(fake, field, value)
            world.run_for(disturbance.lasts_s)
            setattr(fake, field, before)
        case "heats up":
            fake.temperature = (fake.temperature or 60) + 5


def done(run: RandomRun) -> tuple[World, Plan]:
    """Run a plan to its end."""
    plan = Plan(name="random", phases=tuple(run.phases))
    world = World(gpus=2, config=Config(rearm=1.0, rearm_longest=1.0, plan=plan), tick=0.25)
    begun = Burnin(fail_fast=run.fail_fast)
    world.state = world.state.change_gpus(lambda gpu_state: replace(gpu_state, burnin=begun))
    for fake in world.gpus.values():
        fake.checks, fake.patterns, fake.temperature = 10, ("one", "two"), 60
    for disturbance in run.disturbances:
        world.run_for(disturbance.after_s)
        if not world.state.finished:
            disturb(world, disturbance)
    if run.cut_short and not world.state.finished:
        world.interrupts.pending = ("SIGINT", False)
    finish(world, within=2000.0)
    return world, plan


def rows(world: World) -> Iterator[dict[str, Any]]:
    """Yield the events of a run as its file has them."""
    gpus = {uuid: fake.gpu for uuid, fake in world.gpus.items()}
    named = [{"uuid": uuid, "index": gpu.index} for uuid, gpu in gpus.items()]
    yield {"event": "burnin.run_started", "at": 0.0, "gpus": named}
    for event in world.published:
        yield json.loads(json.dumps(event_object(event, gpus), default=str))


def check_equal(counted: Burnin, record: GpuRecord) -> None:
    """Check that the record of a GPU has what the supervisor has counted."""
    assert record.ended == counted.ended
    for number, phase in enumerate(record.phases):
        work = counted.work[number] if number < len(counted.work) else PhaseWork()
        assert phase.work == work
        listed = [one for one in record.interruptions if one.phase == phase.phase.name]
        assert len(listed) >= work.interruptions, listed
        stretches = sum(one.stretch_s for one in listed) + work.stretch
        assert stretches == pytest.approx(work.seconds), listed
        # A report of a second ends at the moment in which it was taken.
        lasted = sum(last - first for first, last in phase.stretches)
        assert lasted >= work.seconds - 1.3 * len(phase.stretches)


def check_run(run: RandomRun) -> None:
    world, plan = done(run)
    found = list(rows(world))
    records = load(plan, found, [])
    assert records.keys() == world.gpus.keys()
    # The end of a phase sums up: whatever else was lost, its work is not.
    ends = [row for row in found if row["event"] in {"burnin.run_started", "burnin.phase_ended"}]
    sums = load(plan, ends, [])
    for uuid, gpu_state in world.state.gpu_states.items():
        assert gpu_state.burnin is not None
        check_equal(gpu_state.burnin, records[uuid])
        works = [phase.work for phase in records[uuid].phases]
        assert [phase.work for phase in sums[uuid].phases] == works


@given(RUNS)
def test_the_record_has_what_the_supervisor_has_counted(run: RandomRun) -> None:
    check_run(run)


@pytest.mark.long
@settings(max_examples=500)
@given(RUNS)
def test_the_record_has_what_the_supervisor_has_counted_of_500_runs(run: RandomRun) -> None:
    check_run(run)
