"""Leaks: memory or load that remains after a stressor is reported, not idle, and cleared."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sentinel.config.model import Config
from sentinel.config.schedule import parse_hours
from sentinel.core.gpu_state import Busy, Running
from sentinel.core.teardown import MAX_CLEARINGS
from tests.harness.world import GIB, World

MIB = 2**20


def held(world: World) -> bool:
    """Check whether a stressor runs on the first GPU."""
    return isinstance(world.gpu_state().stressor, Running)


def occupied(hidden: str | None = None, config: Config | None = None) -> World:
    """Build a world with a stressor on the only GPU."""
    world = World(hidden=hidden, config=config or Config(rearm=1.0))
    world.run(lambda: held(world))
    world.run_for(5)
    return world


def long_after(world: World, seconds: float) -> None:
    """Run for many seconds, a tick per second."""
    world.tick = 1.0
    world.run_for(seconds)


def rule(world: World) -> str | None:
    occupancy = world.gpu_state().occupancy
    return occupancy.rule if isinstance(occupancy, Busy) else None


@pytest.mark.long
@pytest.mark.parametrize(("left", "load"), [(2 * MIB, None), (700 * MIB, None), (0, 1.0)])
def test_leaked_memory_and_a_load_without_processes_are_reported_and_not_idle(
    left: int, load: float | None
) -> None:
    world = occupied(config=Config(rearm=5.0))
    world.at(0).leaked, world.at(0).utilization = left, load
    world.come_and_go()
    world.run(lambda: world.events("gpu.memory_leaked"), within=10)
    assert world.events("gpu.memory_leaked")[0].fields == {"bytes": left, "utilization": load}
    long_after(world, 600)
    assert rule(world) == "leak"
    assert len(world.events("stressor.ready")) == 1
    world.at(0).unlisted, world.at(0).utilization = 0, 0.0
    world.run(lambda: held(world), within=20)


def test_leaked_memory_shows_beside_a_newcomer() -> None:
    world = occupied()
    world.at(0).leaked = 700 * MIB
    world.newcomer(0)
    world.run(lambda: world.events("gpu.memory_leaked"), within=10)
    assert world.events("gpu.memory_leaked")[0].fields["bytes"] == 700 * MIB
    long_after(world, 600)
    assert not world.spawner.cleared, "a process is listed"


def test_memory_of_a_newcomer_is_no_leak() -> None:
    world = occupied()
    newcomer = world.newcomer(0, memory=50 * GIB)
    world.run(lambda: world.events("gpu.handed_over"), within=10)
    world.at(0).foreign.remove(newcomer)
    world.run(lambda: held(world), within=10)
    assert not world.events("gpu.memory_leaked")


def test_memory_that_is_unlisted_for_a_moment_is_no_leak() -> None:
    world = occupied()
    world.at(0).leaked = 20 * GIB
    world.come_and_go()
    world.run(lambda: rule(world) == "leak", within=10)
    world.at(0).unlisted = 0
    world.run(lambda: held(world), within=10)
    assert not world.events("gpu.memory_leaked")


def test_with_an_incomplete_list_unattributed_memory_is_no_leak() -> None:
    world = occupied(hidden="a container")
    world.at(0).leaked = 700 * MIB
    world.at(0).unlisted = 2 * MIB
    world.run(lambda: world.at(0).child is None)
    long_after(world, 300)
    assert rule(world) == "idle.memory"
    assert not world.events("gpu.memory_leaked")
    assert not world.spawner.cleared


@pytest.mark.parametrize("utilization", [None, 0.0, 0.5])
def test_a_lower_load_is_no_leak_nor_that_of_a_process_that_has_just_ended(
    utilization: float | None,
) -> None:
    world = occupied(config=Config(rearm=5.0))
    world.come_and_go()
    world.run_for(3)
    world.at(0).utilization = 1.0
    world.run_for(0.9)
    world.at(0).utilization = utilization
    world.run(lambda: held(world), within=20)
    assert not world.events("gpu.memory_leaked")


@pytest.mark.parametrize("load", [False, True])
def test_a_leak_is_cleared_by_opening_and_closing_a_context(*, load: bool) -> None:
    world = occupied(config=Config(rearm=5.0))
    world.at(0).can_be_cleared = True
    if load:
        world.at(0).utilization = 1.0
    else:
        world.at(0).leaked = 700 * MIB
    world.come_and_go()
    world.run(lambda: world.spawner.cleared, within=30)
    assert [event.fields["attempt"] for event in world.events("gpu.cleanup_started")] == [1]
    world.run(lambda: held(world), within=20)
    assert not world.events("stressor.failed")


@pytest.mark.long
def test_attempts_to_clear_a_leak_become_rarer_and_end() -> None:
    world = occupied()
    world.at(0).leaked = 700 * MIB
    world.come_and_go()
    long_after(world, 1000)
    times = [at for _, at in world.spawner.cleared]
    assert len(times) == MAX_CLEARINGS
    first, second = (later - earlier for earlier, later in pairwise(times))
    assert second > 3 * first
    busy = [event.fields["reason"] for event in world.events("gpu.busy")]
    assert sum("the last stressor ended" in str(reason) for reason in busy) == 1, "reported once"
    assert not world.events("stressor.failed")


def test_a_newcomer_during_the_clearing_gets_the_gpu() -> None:
    world = occupied()
    world.at(0).leaked = 700 * MIB
    world.come_and_go()
    world.run(lambda: world.spawner.cleared, within=30)
    world.newcomer(0)
    world.run(lambda: len(world.spawner.killed) == 2, within=0.1)


def test_nothing_is_cleared_in_quiet_hours_or_in_a_dry_run() -> None:
    # Noon is 12:00 in this world; the yield is over by 12:01.
    world = occupied(config=Config(rearm=1.0, quiet=parse_hours("12:01-24:00")))
    world.at(0).leaked = 700 * MIB
    long_after(world, 120)
    assert rule(world) == "leak"
    assert not world.spawner.cleared


def test_memory_of_processes_that_are_only_counted_is_no_leak() -> None:
    world = occupied()
    world.at(0).omitted_processes, world.at(0).unlisted = 2000, 20 * GIB
    world.run(lambda: world.events("gpu.handed_over"), within=10)
    assert world.events("gpu.handed_over")[0].fields["memory_back_s"] is None
    long_after(world, 100)
    assert not world.events("gpu.memory_leaked")
    assert not world.spawner.cleared
