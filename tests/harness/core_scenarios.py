"""Scenarios for tests of decisions, and conditions for their waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.gpu.attribution import attribute
from sentinel.core.gpu_state import GpuState
from sentinel.protocol.gpu import Reading
from sentinel.supervisor.loop import Supervisor
from sentinel.testing import World


def occupied(gpus: int = 1, config: Config | None = None) -> tuple[World, Supervisor]:
    """Build a world with a stressor on every GPU."""
    world = World(gpus=gpus)
    supervisor = world.supervisor(config or Config())
    world.run(supervisor, lambda: len(world.events("stressor.ready")) == gpus)
    world.run_for(supervisor, 0.2)
    return world, supervisor


def times(world: World, name: str, count: int) -> Callable[[], bool]:
    """Build a condition: the event was published ``count`` times."""
    return lambda: len(world.events(name)) >= count


def started(world: World, count: int) -> Callable[[], bool]:
    """Build a condition: ``count`` children were started."""
    return lambda: len(world.spawner.started) >= count


def watched(world: World) -> list[str]:
    """List the GPUs that the probe must read."""
    assert world.probe.watched is not None
    return list(world.probe.watched.gpus)


def attributed(gpu_state: GpuState, reading: Reading, config: Config | None = None) -> GpuState:
    """Attribute a reading to its processes."""
    attribution = attribute(gpu_state, reading, config or Config())
    return replace(gpu_state, attribution=attribution)


def stressor(supervisor: Supervisor, index: int = 0) -> object:
    return supervisor.state.gpu_states[f"GPU-{index}"].stressor
