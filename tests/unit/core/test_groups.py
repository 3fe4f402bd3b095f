"""Phases together: who waits for whom, what breaks a group up, and that none waits forever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.core.burnin_progress import Burnin, Group
from sentinel.core.gpu_state import Busy, Idle, Occupancy, Running, Starting, Unknown
from sentinel.core.node import groups
from sentinel.core.state import State
from sentinel.protocol.stressor import Failed, FailureKind, StressorGroup
from sentinel.supervisor.loop import Supervisor
from tests.harness.core_scenarios import finish, reconfigured
from tests.harness.world import World

FIRST = Phase(name="first", workload="gemm", seconds=5)
LINKS = Phase(name="links", workload="links", seconds=10, together=True, mandatory=False)
LAST = Phase(name="last", workload="gemm:dtype=fp64", seconds=5)


def running(*phases: Phase, gpus: int = 2) -> tuple[World, Supervisor]:
    world = World(gpus=gpus)
    for fake in world.gpus.values():
        fake.checks = 10
    plan = Plan(name="test", phases=phases)
    return world, world.supervisor(Config(rearm=1.0, rearm_longest=1.0, plan=plan))


def progress_of(supervisor: Supervisor, gpu: int) -> Burnin:
    return supervisor.state.gpu_states[f"GPU-{gpu}"].burnin or Burnin()


def works(supervisor: Supervisor, *gpus: int) -> bool:
    """Check that the GPUs work in a group."""
    return all(
        isinstance(supervisor.state.gpu_states[f"GPU-{gpu}"].stressor, Running)
        and progress_of(supervisor, gpu).group is not None
        for gpu in gpus
    )


def ranks(world: World) -> list[tuple[str, StressorGroup]]:
    return [(uuid, group) for uuid, group in world.spawner.groups if group is not None]


def test_gpus_begin_a_phase_together_and_end_it_together() -> None:
    world, supervisor = running(FIRST, LINKS, LAST)
    world.at(1).checks = 0  # the first phase of GPU 1 does not count for a while
    world.run(supervisor, lambda: world.events("burnin.waiting"), within=100)
    assert [event.gpu for event in world.events("burnin.waiting")] == ["GPU-0"]
    assert world.events("burnin.waiting")[0].fields["missing"] == [1]
    world.run_for(supervisor, 30)
    assert world.at(0).child is None, "a GPU that waits holds nothing"
    world.at(1).checks = 10
    finish(world, supervisor)
    assert ranks(world) == [
        ("GPU-0", StressorGroup(number=1, rank=0, gpus=(0, 1))),
        ("GPU-1", StressorGroup(number=1, rank=1, gpus=(0, 1))),
    ]
    ended = [
        event for event in world.events("burnin.phase_ended") if event.fields["phase"] == "links"
    ]
    assert len({one.at for one in ended}) == 1
    for gpu in (0, 1):
        assert progress_of(supervisor, gpu).work[1].longest >= LINKS.seconds
        assert progress_of(supervisor, gpu).ended is None


def test_a_gpu_alone_begins_at_once() -> None:
    world, supervisor = running(LINKS, LAST, gpus=1)
    finish(world, supervisor)
    assert ranks(world) == [("GPU-0", StressorGroup(number=1, rank=0, gpus=(0,)))]
    assert not world.events("burnin.waiting")


def test_other_phases_have_no_group() -> None:
    world, supervisor = running(FIRST, LAST)
    finish(world, supervisor)
    assert not ranks(world)


def test_a_member_goes_on_until_all_have_done_the_phase() -> None:
    world, supervisor = running(LINKS, LAST)
    world.at(1).checks = 0
    world.run(supervisor, lambda: works(supervisor, 0, 1))
    world.run_for(supervisor, 30)
    assert progress_of(supervisor, 0).work[0].longest > LINKS.seconds
    assert works(supervisor, 0, 1)
    world.at(1).checks = 10
    finish(world, supervisor)
    assert all(progress_of(supervisor, gpu).work[0].given_up is None for gpu in (0, 1))


def test_a_newcomer_interrupts_the_group_and_all_begin_again() -> None:
    world, supervisor = running(LINKS, LAST, gpus=3)
    world.run(supervisor, lambda: works(supervisor, 0, 1, 2))
    world.run_for(supervisor, 5)
    job = world.newcomer(1)
    world.run(supervisor, lambda: all(world.at(gpu).child is None for gpu in range(3)))
    told = world.events("burnin.ungrouped")
    assert [one.gpu for one in told] == ["GPU-0", "GPU-2"]
    assert {one.fields["reason"] for one in told} == {
        "GPU 1 left its group: a foreign process needed it"
    }
    assert len(world.spawner.killed) == 1, "the others are asked to stop"
    world.run_for(supervisor, 30)
    assert all(world.at(gpu).child is None for gpu in range(3))
    world.at(1).foreign.remove(job)
    finish(world, supervisor)
    assert [group for _, group in ranks(world)[3:]] == [
        StressorGroup(number=2, rank=rank, gpus=(0, 1, 2)) for rank in range(3)
    ]
    for gpu in range(3):
        work = progress_of(supervisor, gpu).work[0]
        assert work.interruptions == 1
        assert work.longest >= LINKS.seconds, "in one stretch"


def test_a_newcomer_before_the_start_breaks_the_group_up() -> None:
    world, supervisor = running(LINKS, LAST)
    world.run(supervisor, lambda: progress_of(supervisor, 1).group is not None)
    supervisor.state = reconfigured(supervisor, max_gpus=1)
    job = world.newcomer(1)
    world.run(supervisor, lambda: progress_of(supervisor, 0).group is None)
    world.at(1).foreign.remove(job)
    supervisor.state = reconfigured(supervisor, max_gpus=None)
    finish(world, supervisor)
    assert all(progress_of(supervisor, gpu).work[0].given_up is None for gpu in (0, 1))


def test_a_phase_is_given_up_after_some_broken_groups() -> None:
    world, supervisor = running(LINKS, LAST)
    for _ in range(3):
        world.run(supervisor, lambda: works(supervisor, 0, 1), within=200)
        job = world.newcomer(0)
        world.run(supervisor, lambda: world.at(1).child is None, within=50)
        world.at(0).foreign.remove(job)
    finish(world, supervisor)
    for gpu in (0, 1):
        why = progress_of(supervisor, gpu).work[0].given_up
        assert why is not None
        assert why.startswith("its group was broken up 3 times; the last time, GPU 0 left")
        assert progress_of(supervisor, gpu).work[1].seconds >= LAST.seconds


def test_failures_of_one_member_end_the_phase_for_all() -> None:
    world, supervisor = running(LINKS, LAST)
    for _ in range(3):
        world.run(supervisor, lambda: works(supervisor, 0, 1), within=500)
        child = world.at(0).child
        assert child is not None
        reason = "rank 1 went"
        child.outbox.append(Failed(kind=FailureKind.PEERS, reason=reason))
        child.dies_at, child.code = world.now, 82
        world.run(supervisor, lambda: world.at(0).child is None, within=50)
    finish(world, supervisor)
    for gpu in (0, 1):
        assert "rank 1 went" in str(progress_of(supervisor, gpu).work[0].given_up)


@pytest.mark.long
def test_a_gpu_that_waits_for_too_long_goes_on_without_the_busy_ones() -> None:
    world, supervisor = running(LINKS, LAST, gpus=3)
    job = world.newcomer(2)
    world.run(supervisor, lambda: works(supervisor, 0, 1), within=700)
    (waited,) = {event.fields["waited_s"] for event in world.events("burnin.grouped")}
    assert groups.MAX_WAIT_S <= float(str(waited)) < groups.MAX_WAIT_S + 5
    assert {str(event.fields["missing"]) for event in world.events("burnin.grouped")} == {"[2]"}
    world.at(2).foreign.remove(job)
    world.run_for(supervisor, 5)
    assert works(supervisor, 0, 1), "a latecomer disturbs no group"
    finish(world, supervisor)
    assert ranks(world)[2] == ("GPU-2", StressorGroup(number=2, rank=0, gpus=(2,)))


def test_a_gpu_that_cannot_be_read_does_not_keep_the_others_waiting() -> None:
    world, supervisor = running(FIRST, LINKS, LAST)
    world.run(supervisor, lambda: world.at(0).child is not None)
    world.at(1).fault = "the GPU is lost"
    finish(world, supervisor, within=200)
    assert progress_of(supervisor, 0).ended is None
    assert [group.size for _, group in ranks(world)] == [1]


@pytest.mark.parametrize("ready", [[], ["GPU-0"], ["GPU-1"], ["GPU-0", "GPU-1"]])
def test_a_group_forms_only_of_gpus_that_could_start(ready: list[str]) -> None:
    world, supervisor = running(LINKS, LAST)
    world.run(
        supervisor,
        lambda: all(gpu_state.burnin for gpu_state in supervisor.state.gpu_states.values()),
    )
    state = _ungrouped(supervisor.state)
    step = groups.form(state, world.now, ready)
    formed = {gpu_state.progress.group for gpu_state in step.state.gpu_states.values()}
    complete = len(ready) == 2
    expected = {Group(number=1, members=("GPU-0", "GPU-1"), indices=(0, 1))} if complete else {None}
    assert formed == expected
    waiting = [event.gpu for event in step.events if event.name == "burnin.waiting"]
    assert waiting == ([] if complete else ready)


@pytest.mark.parametrize(
    ("occupancy", "since"),
    [
        (Idle(since=0.0), 5.0),
        (Unknown(reason="not read for 6 s"), 5.0),
        (Busy(rule="process", reason="used by foreign processes"), None),
    ],
)
def test_a_late_reading_ends_no_wait(occupancy: Occupancy, since: float | None) -> None:
    world, supervisor = running(LINKS, LAST)
    state = supervisor.state.with_gpu_states(
        {
            uuid: replace(
                gpu_state, occupancy=occupancy, burnin=Burnin(begun=True, waiting_since=5.0)
            )
            for uuid, gpu_state in supervisor.state.gpu_states.items()
        }
    )
    step = groups.form(state, world.now, [])
    found = [gpu_state.burnin for gpu_state in step.state.gpu_states.values()]
    assert [one and one.waiting_since for one in found] == [since, since]
    assert not step.events


def _ungrouped(state: State) -> State:
    return state.with_gpu_states(
        {
            uuid: replace(gpu_state, burnin=Burnin(begun=True))
            for uuid, gpu_state in state.gpu_states.items()
        }
    )


@pytest.mark.long
@given(
    jobs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 20)), max_size=6)
)
def test_every_run_comes_to_its_end_and_groups_are_whole(jobs: list[tuple[int, int, int]]) -> None:
    world, supervisor = running(FIRST, LINKS, LAST, gpus=3)
    world.tick = 0.25
    for gpu, after, stay in jobs:
        for _ in range(after * 2):
            supervisor.turn()
            check_groups(supervisor)
        job = world.newcomer(gpu)
        for _ in range(stay * 2):
            supervisor.turn()
            check_groups(supervisor)
        world.at(gpu).foreign.remove(job)
    finish(world, supervisor)
    for gpu in range(3):
        burnin = progress_of(supervisor, gpu)
        assert burnin.ended is None
        links = burnin.work[1]
        assert links.given_up is not None or links.longest >= LINKS.seconds


def check_groups(supervisor: Supervisor) -> None:
    """Check that the members of a group are in one phase, and that nothing else runs in it."""
    gpu_states = supervisor.state.gpu_states
    for uuid, gpu_state in gpu_states.items():
        burnin, spec = gpu_state.burnin, gpu_state.launch.spec
        if burnin is None or burnin.group is None:
            live = isinstance(gpu_state.stressor, Starting | Running)
            assert not (live and spec is not None and spec.group is not None)
            continue
        assert uuid in burnin.group.members
        for other in burnin.group.members:
            found = gpu_states[other].burnin
            assert found is not None
            assert (found.group, found.phase) == (burnin.group, burnin.phase)
