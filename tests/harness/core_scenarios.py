"""Scenarios for tests of decisions, and conditions for their waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sentinel.config.model import Config
from sentinel.core.attribution import attribute
from sentinel.core.gpu_state import GpuState, Running, Starting, Stopping
from sentinel.core.state import Orders, State
from sentinel.core.step import Action, SendTo, Step
from sentinel.protocol.commands import Command, CommandReply, Refusal
from sentinel.protocol.gpu import Reading
from tests.harness.world import World


def occupied(gpus: int = 1, config: Config | None = None) -> World:
    """Build a world with a stressor on every GPU."""
    world = World(gpus=gpus, config=config or Config())
    world.run(lambda: len(world.events("stressor.ready")) == gpus)
    world.run_for(0.2)
    return world


def served(gpus: int = 2, config: Config | None = None, *, checks: int = 0) -> World:
    """Build a world with an API process and a stressor on every GPU.

    Args:
        gpus: How many GPUs.
        config: The settings.
        checks: How many results each stressor has checked.
    """
    orders = Orders(repeat=config is not None and config.plan is not None)
    world = World(gpus=gpus, config=config or Config(), orders=orders, with_api=True)
    for fake in world.gpus.values():
        fake.checks = checks
    world.run(lambda: len(world.events("stressor.ready")) == gpus)
    return world


def reply_to(world: World, command: type[Command], **arguments: object) -> CommandReply:
    """Post a command, and return the reply of the next tick."""
    number = world.api.post(command, **arguments)
    world.supervisor.turn()
    (reply,) = [reply for reply in world.api.replies if reply.number == number]
    assert reply.text
    return reply


def send(world: World, command: type[Command], **arguments: object) -> Refusal | None:
    """Post a command, and return why the next tick refused it, or None."""
    return reply_to(world, command, **arguments).refused


def times(world: World, name: str, count: int) -> Callable[[], bool]:
    """Build a condition: the event was published ``count`` times."""
    return lambda: len(world.events(name)) >= count


def started(world: World, count: int) -> Callable[[], bool]:
    """Build a condition: ``count`` children were started."""
    return lambda: len(world.spawner.started) >= count


def held(world: World) -> list[int]:
    """List the indices of the GPUs with a running stressor."""
    gpu_states = world.state.gpu_states.values()
    return [
        gpu_state.gpu.index for gpu_state in gpu_states if isinstance(gpu_state.stressor, Running)
    ]


def watched(world: World) -> list[str]:
    """List the GPUs that the probe must read."""
    assert world.probe.watched is not None
    return list(world.probe.watched.gpus)


def attributed(gpu_state: GpuState, reading: Reading, config: Config | None = None) -> GpuState:
    """Attribute a reading to its processes."""
    attribution = attribute(gpu_state, reading, config or Config())
    return replace(gpu_state, attribution=attribution)


def on_stressors(step: Step[State]) -> tuple[Action, ...]:
    """Return the actions of a tick but for the list of what the probe reads."""
    return tuple(action for action in step.actions if not isinstance(action, SendTo))


def reconfigured(world: World, **changes: Any) -> State:
    """Return the state with other settings, as if they had been so for long."""
    return replace(world.state, config=replace(world.state.config, **changes))


def finish(world: World, within: float = 1500.0) -> None:
    """Run until every GPU has done the plan of the settings, and its stressor has ended."""

    def is_done() -> bool:
        plan, gpu_states = world.state.config.plan, world.state.gpu_states.values()
        return all(
            plan is not None
            and gpu_state.burnin is not None
            and gpu_state.burnin.finished(plan)
            and not isinstance(gpu_state.stressor, Starting | Running | Stopping)
            for gpu_state in gpu_states
        )

    world.run(is_done, within=within)
