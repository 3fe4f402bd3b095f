"""The one result of a decision: a new state, actions, events, and when to run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar, TypeVarTuple

from sentinel.core.gpu_state import Busy, GpuState
from sentinel.protocol.commands import CommandReply, ReloadConfig
from sentinel.protocol.events import Event as Event  # noqa: PLC0414 - part of a step
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Watch
from sentinel.protocol.stressor import Progress, StressorCommand, StressorGroup

S = TypeVar("S")
Context = TypeVarTuple("Context")


class Role(StrEnum):
    """What a process beside the stressors is for."""

    PROBE = "probe"
    #: Becomes the next probe.
    SPARE_PROBE = "spare probe"
    #: Becomes the next stressor.
    STANDBY = "standby"
    API = "api"


@dataclass(frozen=True, kw_only=True)
class _OnStressor:
    """The fields of every action on a stressor."""

    uuid: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Kill(_OnStressor):
    """SIGKILL the process group of a stressor."""


@dataclass(frozen=True, kw_only=True)
class Send(_OnStressor):
    """Send a message to a stressor."""

    message: StressorCommand


@dataclass(frozen=True, kw_only=True)
class Start(_OnStressor):
    """Spawn a stressor."""

    #: It only opens and closes a context.
    clearing: bool = False
    #: Free memory to leave to allocations, in bytes, besides the configured reserve.
    committed: int = 0
    #: Whether nothing beside it may grow but a newcomer.
    exact: bool = True
    #: Whether the standby stressor becomes this one.
    standby: bool = False
    #: Its place in a group of stressors, or None if it works alone.
    group: StressorGroup | None = None


@dataclass(frozen=True, kw_only=True)
class _OnProcess:
    """The fields of every action on a process beside the stressors."""

    role: Role


@dataclass(frozen=True, kw_only=True)
class KillProcess(_OnProcess):
    """SIGKILL a process, and forget it."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class StartProcess(_OnProcess):
    """Spawn a process."""

    generation: int
    #: The UUIDs of the GPUs that a probe must not read.
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SendTo(_OnProcess):
    """Send a message to a process; an answer follows the views that show its effect."""

    message: CommandReply | ReloadConfig | Watch


Action = Kill | Send | Start | KillProcess | StartProcess | SendTo


def rank(action: Action) -> int:
    """Rank an action in the order of a tick: kills first, starts last."""
    match action:
        case Kill():
            return 0
        case KillProcess():
            return 1
        case StartProcess() | SendTo(role=Role.PROBE):  # a new probe is told what to read
            return 3
        case Send() | SendTo():
            return 2
        case Start():
            return 4


class Step(NamedTuple, Generic[S]):
    """The result of a rule, or of several rules in a row, for the whole state or one GPU.

    A tuple, since a tick makes hundreds, and a frozen dataclass takes three times as long.
    """

    state: S
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    #: When to run again without any news: a rule that compares times names the next one here.
    due: float = math.inf

    def then(self, rule: Callable[[S, *Context], Step[S]], *context: *Context) -> Step[S]:
        """Apply another rule to the new state."""
        done = rule(self.state, *context)
        due = min(done.due, self.due)
        return Step(done.state, self.actions + done.actions, self.events + done.events, due)


def chain(
    step: Step[S], rules: Iterable[Callable[[S, *Context], Step[S]]], *context: *Context
) -> Step[S]:
    """Apply rules one after another, each to the state that the one before has left.

    Args:
        step: What was decided before.
        rules: The rules.
        context: Further arguments of every rule.

    Returns:
        The last state, all actions and events in order, and the earliest time to run again.
    """
    state, actions, events, due = step
    for rule in rules:  # without a step in between, which a tick would make by the dozen
        state, acted, happened, later = rule(state, *context)
        actions += acted
        events += happened
        due = min(due, later)
    return Step(state, actions, events, due)


def upcoming(now: float, *times: float | None) -> float:
    """Return the earliest of the times that have not come; infinity if there is none."""
    earliest = math.inf
    for time in times:
        if time is not None and now < time < earliest:
            earliest = time
    return earliest


def gpu_event(name: str, gpu_state: GpuState, now: float, **fields: object) -> Event:
    """Build an event about one GPU."""
    return Event(name=name, at=now, gpu=gpu_state.gpu.uuid, fields=fields)


def gpu_fields(gpus: Iterable[Gpu]) -> list[dict[str, object]]:
    """Return GPUs as a field of an event."""
    return [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in gpus]


def process_fields(gpu_state: GpuState) -> list[dict[str, object]]:
    """Return the foreign processes on a GPU as a field of an event."""
    if not isinstance(gpu_state.occupancy, Busy):
        return []
    return [
        {"pid": process.pid, "name": process.name, "user": process.user}
        for process in gpu_state.occupancy.processes
    ]


def sensor_fields(reading: Reading | None) -> dict[str, object]:
    """Return the load of a GPU as fields of an event or a view."""
    return {
        "power_w": reading.power if reading else None,
        "temperature_c": reading.temperature if reading else None,
        "sm_clock_mhz": reading.sm_clock if reading else None,
    }


def usage_fields(reading: Reading | None) -> dict[str, object]:
    """Return memory, utilization and load of a GPU as fields of an event or a view."""
    return {
        "memory_used": reading.memory.used if reading and reading.memory else None,
        "utilization": reading.utilization if reading else None,
        **sensor_fields(reading),
    }


def progress_fields(progress: Progress | None) -> dict[str, object]:
    """Return the rates and checks of a stressor as fields; empty before its first report."""
    if progress is None or progress.seconds <= 0:
        return {}
    return {
        "iterations_per_s": progress.iterations / progress.seconds,
        "flops_per_s": progress.flops / progress.seconds,
        "bytes_per_s": progress.bytes / progress.seconds,
        "checks": progress.checks,
        "errors": progress.errors,
    }
