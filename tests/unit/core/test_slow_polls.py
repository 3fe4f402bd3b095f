"""At a slow poll, GPUs that others use are read rarely, and those that matter are not."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.gpu_state import Busy, Pause
from sentinel.protocol.commands import Caller
from sentinel.protocol.probe import Watch
from tests.harness.core_scenarios import times
from tests.harness.world import World

SLOW = Config(poll=600.0)


def watch_of(world: World) -> Watch:
    assert world.probe.watched is not None
    return world.probe.watched


def test_a_gpu_in_use_is_slow_and_a_held_one_is_not() -> None:
    world = World(gpus=2, config=SLOW)
    world.newcomer(0)
    world.run(times(world, "stressor.ready", 1))
    world.run_for(1.0)
    assert watch_of(world).slow == ("GPU-0",)
    assert watch_of(world).held == ("GPU-1",)
    assert isinstance(world.gpu_state().occupancy, Busy)


def test_an_idle_gpu_that_may_be_occupied_is_not_slow() -> None:
    world = World(config=Config(poll=600.0, idle_wait=30.0))
    world.run_for(20.0)
    assert watch_of(world).slow == ()
    world.run(times(world, "stressor.ready", 1))


def test_a_paused_gpu_is_slow_until_it_may_be_occupied() -> None:
    world = World(config=Config(poll=600.0))
    (gpu_state,) = world.state.gpu_states.values()
    paused = replace(gpu_state, pause=Pause(since=0.0, by=Caller(via="unix")))
    world.state = replace(world.state, gpu_states={"GPU-0": paused})
    world.run_for(2.0)
    assert watch_of(world).slow == ("GPU-0",)
    resumed = replace(world.gpu_state(), pause=None)
    world.state = replace(world.state, gpu_states={"GPU-0": resumed})
    world.run(times(world, "stressor.ready", 1))
    assert watch_of(world).slow == ()


def test_at_the_usual_polls_none_is_slow() -> None:
    world = World(config=Config(poll=2.0))
    world.newcomer(0)
    world.run_for(5.0)
    assert watch_of(world).slow == ()
