"""Leaks: memory or load that remains after a stressor is reported, not idle, and cleared."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sentinel.config.model import Config
from sentinel.config.schedule import parse_hours
from sentinel.core.gpu_state import Busy, Running
from sentinel.core.teardown import MAX_CLEARINGS
from sentinel.supervisor.loop import Supervisor
from tests.harness.world import GIB, World

MIB = 2**20


def held(supervisor: Supervisor) -> bool:
    """Check whether a stressor runs on the first GPU."""
    return isinstance(supervisor.state.gpu_states["GPU-0"].stressor, Running)


def occupied(hidden: str | None = None, config: Config | None = None) -> tuple[World, Supervisor]:
    """Build a world with a stressor on the only GPU."""
    world = World(hidden=hidden)
    supervisor = world.supervisor(config or Config(rearm=1.0))
    world.run(supervisor, lambda: held(supervisor))
    world.run_for(supervisor, 5)
    return world, supervisor


def yielded(world: World, supervisor: Supervisor) -> None:
    """Start a foreign process and end it at once."""
    newcomer = world.newcomer(0)
    world.run(supervisor, lambda: world.at(0).child is None)
    world.at(0).foreign.remove(newcomer)


def long_after(world: World, supervisor: Supervisor, seconds: float) -> None:
    """Run for many seconds, a tick per second."""
    world.tick = 1.0
    world.run_for(supervisor, seconds)


def rule(supervisor: Supervisor) -> str | None:
    occupancy = supervisor.state.gpu_states["GPU-0"].occupancy
    return occupancy.rule if isinstance(occupancy, Busy) else None


@pytest.mark.parametrize("left", [2 * MIB, 700 * MIB])
def test_leaked_memory_is_reported_and_not_idle(left: int) -> None:
    world, supervisor = occupied()
    world.at(0).leaked = left
    yielded(world, supervisor)
    world.run(supervisor, lambda: world.events("gpu.memory_leaked"), within=10)
    assert world.events("gpu.memory_leaked")[0].fields == {"bytes": left, "utilization": None}
    long_after(world, supervisor, 600)
    assert rule(supervisor) == "leak"
    assert len(world.events("stressor.ready")) == 1
    world.at(0).unlisted = 0
    world.run(supervisor, lambda: held(supervisor), within=10)


def test_leaked_memory_shows_beside_a_newcomer() -> None:
    world, supervisor = occupied()
    world.at(0).leaked = 700 * MIB
    world.newcomer(0)
    world.run(supervisor, lambda: world.events("gpu.memory_leaked"), within=10)
    assert world.events("gpu.memory_leaked")[0].fields["bytes"] == 700 * MIB
    long_after(world, supervisor, 600)
    assert not world.spawner.cleared, "a process is listed"


def test_memory_of_a_newcomer_is_no_leak() -> None:
    world, supervisor = occupied()
    newcomer = world.newcomer(0, memory=50 * GIB)
    world.run(supervisor, lambda: world.events("gpu.handed_over"), within=10)
    world.at(0).foreign.remove(newcomer)
    world.run(supervisor, lambda: held(supervisor), within=10)
    assert not world.events("gpu.memory_leaked")


def test_memory_that_is_unlisted_for_a_moment_is_no_leak() -> None:
    world, supervisor = occupied()
    world.at(0).leaked = 20 * GIB
    yielded(world, supervisor)
    world.run(supervisor, lambda: rule(supervisor) == "leak", within=10)
    world.at(0).unlisted = 0
    world.run(supervisor, lambda: held(supervisor), within=10)
    assert not world.events("gpu.memory_leaked")


def test_with_an_incomplete_list_unattributed_memory_is_no_leak() -> None:
    world, supervisor = occupied(hidden="a container")
    world.at(0).leaked = 700 * MIB
    world.at(0).unlisted = 2 * MIB
    world.run(supervisor, lambda: world.at(0).child is None)
    long_after(world, supervisor, 300)
    assert rule(supervisor) == "idle.memory"
    assert not world.events("gpu.memory_leaked")
    assert not world.spawner.cleared


def test_a_load_without_processes_is_a_leak() -> None:
    world, supervisor = occupied(config=Config(rearm=5.0))
    world.at(0).utilization = 1.0
    yielded(world, supervisor)
    world.run(supervisor, lambda: world.events("gpu.memory_leaked"), within=10)
    assert world.events("gpu.memory_leaked")[0].fields == {"bytes": 0, "utilization": 1.0}
    long_after(world, supervisor, 600)
    assert rule(supervisor) == "leak"
    world.at(0).utilization = 0.0
    world.run(supervisor, lambda: held(supervisor), within=20)


def test_the_load_of_a_process_that_has_just_ended_is_no_leak() -> None:
    world, supervisor = occupied(config=Config(rearm=5.0))
    yielded(world, supervisor)
    world.run_for(supervisor, 3)
    world.at(0).utilization = 1.0
    world.run_for(supervisor, 0.9)
    world.at(0).utilization = 0.0
    world.run(supervisor, lambda: held(supervisor), within=20)
    assert not world.events("gpu.memory_leaked")


@pytest.mark.parametrize("utilization", [None, 0.0, 0.5])
def test_a_lower_load_is_no_leak(utilization: float | None) -> None:
    world, supervisor = occupied()
    world.at(0).utilization = utilization
    yielded(world, supervisor)
    world.run(supervisor, lambda: held(supervisor), within=20)
    assert not world.events("gpu.memory_leaked")


@pytest.mark.parametrize("load", [False, True])
def test_a_leak_is_cleared_by_opening_and_closing_a_context(*, load: bool) -> None:
    world, supervisor = occupied(config=Config(rearm=5.0))
    world.at(0).can_be_cleared = True
    if load:
        world.at(0).utilization = 1.0
    else:
        world.at(0).leaked = 700 * MIB
    yielded(world, supervisor)
    world.run(supervisor, lambda: world.spawner.cleared, within=30)
    assert [event.fields["attempt"] for event in world.events("gpu.cleanup_started")] == [1]
    world.run(supervisor, lambda: held(supervisor), within=20)
    assert not world.events("stressor.failed")


def test_attempts_to_clear_a_leak_become_rarer_and_end() -> None:
    world, supervisor = occupied()
    world.at(0).leaked = 700 * MIB
    yielded(world, supervisor)
    long_after(world, supervisor, 1000)
    times = [at for _, at in world.spawner.cleared]
    assert len(times) == MAX_CLEARINGS
    first, second = (later - earlier for earlier, later in pairwise(times))
    assert second > 3 * first
    busy = [event.fields["reason"] for event in world.events("gpu.busy")]
    assert sum("the last stressor ended" in str(reason) for reason in busy) == 1, "reported once"
    assert not world.events("stressor.failed")


def test_a_newcomer_during_the_clearing_gets_the_gpu() -> None:
    world, supervisor = occupied()
    world.at(0).leaked = 700 * MIB
    yielded(world, supervisor)
    world.run(supervisor, lambda: world.spawner.cleared, within=30)
    world.newcomer(0)
    world.run(supervisor, lambda: len(world.spawner.killed) == 2, within=0.1)


def test_nothing_is_cleared_in_quiet_hours_or_in_a_dry_run() -> None:
    # Noon is 12:00 in this world; the yield is over by 12:01.
    world, supervisor = occupied(config=Config(rearm=1.0, quiet=parse_hours("12:01-24:00")))
    world.at(0).leaked = 700 * MIB
    long_after(world, supervisor, 600)
    assert rule(supervisor) == "leak"
    assert not world.spawner.cleared


def test_memory_of_processes_that_are_only_counted_is_no_leak() -> None:
    world, supervisor = occupied()
    world.at(0).omitted_processes, world.at(0).unlisted = 2000, 20 * GIB
    world.run(supervisor, lambda: world.events("gpu.handed_over"), within=10)
    assert world.events("gpu.handed_over")[0].fields["memory_back_s"] is None
    long_after(world, supervisor, 100)
    assert not world.events("gpu.memory_leaked")
    assert not world.spawner.cleared
