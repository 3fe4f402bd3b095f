"""Phases together: who waits for whom, what breaks a group up, and that none waits forever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.core.burnin import groups
from sentinel.core.burnin.progress import Burnin, Group
from sentinel.core.gpu_state import Busy, Idle, Occupancy, Running, Starting, Unknown
from sentinel.core.state import State
from sentinel.protocol.stressor import Failed, FailureKind, StressorGroup
from tests.harness.core_scenarios import finish, reconfigured
from tests.harness.narrowing import not_none
from tests.harness.world import World

FIRST = Phase(name="first", workload="gemm", seconds=5)
LINKS = Phase(name="links", workload="links", seconds=10, together=True, mandatory=False)
LAST = Phase(name="last", workload="gemm:dtype=fp64", seconds=5)


def running(*phases: Phase, gpus: int = 2) -> World:
    plan = Plan(name="test", phases=phases)
    world = World(gpus=gpus, config=Config(rearm=1.0, rearm_longest=1.0, plan=plan))
    for fake in world.gpus.values():
        fake.checks = 10
    return world


def progress_of(world: World, gpu: int) -> Burnin:
    return world.gpu_state(gpu).burnin or Burnin()


def works(world: World, *gpus: int) -> bool:
    """Check that the GPUs work in a group."""
    return all(
        isinstance(world.gpu_state(gpu).stressor, Running)
        and progress_of(world, gpu).group is not None
        for gpu in gpus
    )


def ranks(world: World) -> list[tuple[str, StressorGroup]]:
    return [(uuid, group) for uuid, group in world.spawner.groups if group is not None]


def test_gpus_begin_a_phase_together_and_end_it_together() -> None:
    world = running(FIRST, LINKS, LAST)
    world.at(1).checks = 0  # the first phase of GPU 1 does not count for a while
    world.run(lambda: world.events("burnin.waiting"), within=100)
    assert [event.gpu for event in world.events("burnin.waiting")] == ["GPU-0"]
    assert world.events("burnin.waiting")[0].fields["missing"] == [1]
    world.run_for(30)
    assert world.at(0).child is None, "a GPU that waits holds nothing"
    world.at(1).checks = 10
    finish(world)
    assert ranks(world) == [
        ("GPU-0", StressorGroup(number=1, rank=0, gpus=(0, 1))),
        ("GPU-1", StressorGroup(number=1, rank=1, gpus=(0, 1))),
    ]
    ended = [
        event for event in world.events("burnin.phase_ended") if event.fields["phase"] == "links"
    ]
    assert len({one.at for one in ended}) == 1
    for gpu in (0, 1):
        assert progress_of(world, gpu).work[1].longest >= LINKS.seconds
        assert progress_of(world, gpu).ended is None


def test_a_gpu_alone_begins_at_once() -> None:
    world = running(LINKS, LAST, gpus=1)
    finish(world)
    assert ranks(world) == [("GPU-0", StressorGroup(number=1, rank=0, gpus=(0,)))]
    assert not world.events("burnin.waiting")


def test_other_phases_have_no_group() -> None:
    world = running(FIRST, LAST)
    finish(world)
    assert not ranks(world)


def test_a_member_goes_on_until_all_have_done_the_phase() -> None:
    world = running(LINKS, LAST)
    world.at(1).checks = 0
    world.run(lambda: works(world, 0, 1))
    world.run_for(30)
    assert progress_of(world, 0).work[0].longest > LINKS.seconds
    assert works(world, 0, 1)
    world.at(1).checks = 10
    finish(world)
    assert all(progress_of(world, gpu).work[0].given_up is None for gpu in (0, 1))


def test_a_newcomer_interrupts_the_group_and_all_begin_again() -> None:
    world = running(LINKS, LAST, gpus=3)
    world.run(lambda: works(world, 0, 1, 2))
    world.run_for(5)
    job = world.newcomer(1)
    world.run(lambda: all(world.at(gpu).child is None for gpu in range(3)))
    told = world.events("burnin.ungrouped")
    assert [one.gpu for one in told] == ["GPU-0", "GPU-2"]
    assert {one.fields["reason"] for one in told} == {
        "GPU 1 left its group: a foreign process needed it"
    }
    assert len(world.spawner.killed) == 1, "the others are asked to stop"
    world.run_for(30)
    assert all(world.at(gpu).child is None for gpu in range(3))
    world.at(1).foreign.remove(job)
    finish(world)
    assert [group for _, group in ranks(world)[3:]] == [
        StressorGroup(number=2, rank=rank, gpus=(0, 1, 2)) for rank in range(3)
    ]
    for gpu in range(3):
        work = progress_of(world, gpu).work[0]
        assert work.interruptions == 1
        assert work.longest >= LINKS.seconds, "in one stretch"


def test_a_newcomer_before_the_start_breaks_the_group_up() -> None:
    world = running(LINKS, LAST)
    world.run(lambda: progress_of(world, 1).group is not None)
    world.state = reconfigured(world, max_gpus=1)
    job = world.newcomer(1)
    world.run(lambda: progress_of(world, 0).group is None)
    world.at(1).foreign.remove(job)
    world.state = reconfigured(world, max_gpus=None)
    finish(world)
    assert all(progress_of(world, gpu).work[0].given_up is None for gpu in (0, 1))


def test_a_phase_is_given_up_after_some_broken_groups() -> None:
    world = running(LINKS, LAST)
    for _ in range(3):
        world.run(lambda: works(world, 0, 1), within=200)
        job = world.newcomer(0)
        world.run(lambda: world.at(1).child is None, within=50)
        world.at(0).foreign.remove(job)
    finish(world)
    for gpu in (0, 1):
        why = not_none(progress_of(world, gpu).work[0].given_up)
        assert why.startswith("its group was broken up 3 times; the last time, GPU 0 left")
        assert progress_of(world, gpu).work[1].seconds >= LAST.seconds


def test_failures_of_one_member_end_the_phase_for_all() -> None:
    world = running(LINKS, LAST)
    for _ in range(3):
        world.run(lambda: works(world, 0, 1), within=500)
        child = world.child()
        reason = "rank 1 went"
        child.outbox.append(Failed(kind=FailureKind.PEERS, reason=reason))
        child.dies_at, child.code = world.now, 82
        world.run(lambda: world.at(0).child is None, within=50)
    finish(world)
    for gpu in (0, 1):
        assert "rank 1 went" in str(progress_of(world, gpu).work[0].given_up)


@pytest.mark.long
def test_a_gpu_that_waits_for_too_long_goes_on_without_the_busy_ones() -> None:
    world = running(LINKS, LAST, gpus=3)
    job = world.newcomer(2)
    world.run(lambda: works(world, 0, 1), within=700)
    (waited,) = {event.fields["waited_s"] for event in world.events("burnin.grouped")}
    assert groups.MAX_WAIT_S <= float(str(waited)) < groups.MAX_WAIT_S + 5
    assert {str(event.fields["missing"]) for event in world.events("burnin.grouped")} == {"[2]"}
    world.at(2).foreign.remove(job)
    world.run_for(5)
    assert works(world, 0, 1), "a latecomer disturbs no group"
    finish(world)
    assert ranks(world)[2] == ("GPU-2", StressorGroup(number=2, rank=0, gpus=(2,)))


def test_a_gpu_that_cannot_be_read_does_not_keep_the_others_waiting() -> None:
    world = running(FIRST, LINKS, LAST)
    world.run(lambda: world.at(0).child is not None)
    world.at(1).fault = "the GPU is lost"
    finish(world, within=200)
    assert progress_of(world, 0).ended is None
    assert [group.size for _, group in ranks(world)] == [1]


@pytest.mark.parametrize("ready", [[], ["GPU-0"], ["GPU-1"], ["GPU-0", "GPU-1"]])
def test_a_group_forms_only_of_gpus_that_could_start(ready: list[str]) -> None:
    world = running(LINKS, LAST)
    world.run(
        lambda: all(gpu_state.burnin for gpu_state in world.state.gpu_states.values()),
    )
    state = _ungrouped(world.state)
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
    world = running(LINKS, LAST)
    state = world.state.with_gpu_states(
        {
            uuid: replace(
                gpu_state, occupancy=occupancy, burnin=Burnin(begun=True, waiting_since=5.0)
            )
            for uuid, gpu_state in world.state.gpu_states.items()
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
    world = running(FIRST, LINKS, LAST, gpus=3)
    world.tick = 0.25
    for gpu, after, stay in jobs:
        for _ in range(after * 2):
            world.supervisor.turn()
            check_groups(world)
        job = world.newcomer(gpu)
        for _ in range(stay * 2):
            world.supervisor.turn()
            check_groups(world)
        world.at(gpu).foreign.remove(job)
    finish(world)
    for gpu in range(3):
        burnin = progress_of(world, gpu)
        assert burnin.ended is None
        links = burnin.work[1]
        assert links.given_up is not None or links.longest >= LINKS.seconds


def check_groups(world: World) -> None:
    """Check that the members of a group are in one phase, and that nothing else runs in it."""
    gpu_states = world.state.gpu_states
    for uuid, gpu_state in gpu_states.items():
        burnin, spec = gpu_state.burnin, gpu_state.launch.spec
        if burnin is None or burnin.group is None:
            live = isinstance(gpu_state.stressor, Starting | Running)
            assert not (live and spec is not None and spec.group is not None)
            continue
        assert uuid in burnin.group.members
        for other in burnin.group.members:
            found = not_none(gpu_states[other].burnin)
            assert (found.group, found.phase) == (burnin.group, burnin.phase)
