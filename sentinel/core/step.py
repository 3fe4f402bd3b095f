"""The one result of a decision: a new state, actions, events, and when to run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, TypeVarTuple

from sentinel.core.gpu_state import Busy, GpuState
from sentinel.protocol.commands import CommandReply
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import Watch
from sentinel.protocol.stressor import MemoryLimit, Progress, StressorGroup


@dataclass(frozen=True, kw_only=True)
class _ChildAction:
    """The fields of every action on a stressor child."""

    uuid: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Kill(_ChildAction):
    """SIGKILL the child's process group."""


@dataclass(frozen=True, kw_only=True)
class RequestStop(_ChildAction):
    """Request the child to end by itself."""


@dataclass(frozen=True, kw_only=True)
class Acknowledge(_ChildAction):
    """Acknowledge the child's finding of this number."""

    number: int


@dataclass(frozen=True, kw_only=True)
class SetPace(_ChildAction):
    """Set the share of time, from 0 to 1, for which the child keeps its GPU busy."""

    share: float


@dataclass(frozen=True, kw_only=True)
class LimitMemory(_ChildAction):
    """Tell the child from which used memory of its GPU on it is to yield by itself."""

    limit: MemoryLimit


@dataclass(frozen=True, kw_only=True)
class Start(_ChildAction):
    """Spawn a child on this GPU."""

    #: The child only opens and closes a context.
    clearing: bool = False
    #: Free memory to leave to allocations, in bytes, besides the configured reserve.
    committed: int = 0
    #: Whether the standby stressor becomes this child.
    standby: bool = False
    #: Its place in a group of stressors, or None if it works alone.
    group: StressorGroup | None = None


@dataclass(frozen=True, kw_only=True)
class KillProbe:
    """SIGKILL the probe."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class StartProbe:
    """Spawn a probe."""

    generation: int
    #: The UUIDs of the GPUs that it must not read.
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StartSpareProbe:
    """Spawn a spare probe."""


@dataclass(frozen=True, kw_only=True)
class KillSpareProbe:
    """SIGKILL the spare probe."""


@dataclass(frozen=True, kw_only=True)
class StartStandby:
    """Spawn a standby stressor."""


@dataclass(frozen=True, kw_only=True)
class KillStandby:
    """SIGKILL the standby stressor."""


@dataclass(frozen=True, kw_only=True)
class WatchGpus:
    """Tell the probe what to read."""

    watch: Watch


@dataclass(frozen=True, kw_only=True)
class KillApi:
    """SIGKILL the API process."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class StartApi:
    """Spawn an API process."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Answer a command, after the views that show its effect."""

    answer: CommandReply


@dataclass(frozen=True, kw_only=True)
class RequestReload:
    """Request the API process to reload the settings."""


Action = (
    Kill
    | RequestStop
    | Acknowledge
    | SetPace
    | LimitMemory
    | Start
    | KillProbe
    | StartProbe
    | WatchGpus
    | StartSpareProbe
    | KillSpareProbe
    | StartStandby
    | KillStandby
    | KillApi
    | StartApi
    | Reply
    | RequestReload
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, under a dotted name that is public API."""

    name: str
    at: float
    #: The UUID of the GPU; None for an event about the node.
    gpu: str | None = None
    #: JSON values only.
    fields: Mapping[str, object] = field(default_factory=dict)


def rank(action: Action) -> int:
    """Rank an action in the order of a tick: kills first, starts last."""
    match action:
        case Kill():
            return 0
        case KillProbe() | KillSpareProbe() | KillStandby() | KillApi():
            return 1
        case RequestStop() | Acknowledge() | SetPace() | LimitMemory() | Reply() | RequestReload():
            return 2
        case StartProbe() | WatchGpus() | StartSpareProbe() | StartStandby() | StartApi():
            return 3
        case Start():
            return 4


S = TypeVar("S")
Context = TypeVarTuple("Context")


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
    for rule in rules:
        step = step.then(rule, *context)
    return step


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
    """Return memory, utilisation and load of a GPU as fields of an event or a view."""
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
