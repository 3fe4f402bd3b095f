"""When a GPU is occupied and when it is not."""

from __future__ import annotations

import pytest

from sentinel.core.gpu_state import Busy, Idle, Running, Starting, Unknown
from sentinel.core.step import Kill, Start
from tests.harness.core_scenarios import occupied, on_stressors
from tests.harness.world import World


def test_an_idle_gpu_is_occupied() -> None:
    world = occupied()
    assert isinstance(world.gpu_state().stressor, Running)


def test_a_start_needs_a_second_idle_reading() -> None:
    world = World()
    while not isinstance(world.gpu_state().occupancy, Idle):
        assert not world.spawner.started
        world.pass_time(0.025)
        world.supervisor.tick()
    assert not world.spawner.started
    world.run_for(0.1)
    assert isinstance(world.gpu_state().stressor, Starting)


def test_at_most_one_start_per_tick_and_it_comes_last() -> None:
    world = World(gpus=4)
    decisions = world.run_for(2)
    starts = [[a for a in d.actions if isinstance(a, Start)] for d in decisions]
    assert max(map(len, starts)) == 1
    assert sum(map(len, starts)) == 4
    assert all(
        isinstance(d.actions[-1], Start) for d, s in zip(decisions, starts, strict=True) if s
    )


def test_no_stressor_starts_on_a_busy_gpu() -> None:
    world = World(gpus=2)
    world.newcomer(0)
    world.run(lambda: world.events("stressor.ready"))
    assert [uuid for uuid, _ in world.spawner.started] == ["GPU-1"]


@pytest.mark.parametrize("fault", ["Unknown Error", "GPU is lost"])
def test_no_stressor_starts_on_an_unreadable_gpu(fault: str) -> None:
    world = World()
    world.at(0).fault = fault
    world.run_for(10)
    assert not world.spawner.started
    assert world.gpu_state().occupancy == Unknown(reason=fault)


@pytest.mark.parametrize("trait", ["exclusive", "mig"])
def test_no_stressor_starts_on_a_gpu_that_cannot_be_shared(trait: str) -> None:
    world = World()
    setattr(world.at(0), trait, True)
    world.run_for(5)
    assert not world.spawner.started
    assert isinstance(world.gpu_state().occupancy, Busy)


def test_the_child_of_a_gpu_that_becomes_unknown_is_killed_at_once() -> None:
    world = occupied()
    world.at(0).fault = "Unknown Error"
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)
    world.run_for(3)
    assert not world.events("stressor.failed")


def test_a_gpu_without_readings_becomes_unknown_and_the_other_stays_held() -> None:
    world = occupied(gpus=2)
    world.at(0).silent = True
    world.run(lambda: world.events("gpu.unknown"), within=5.2)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(world.gpu_state(1).stressor, Running)
