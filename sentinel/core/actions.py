"""The actions and events that a tick results in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.protocol.commands import CommandReply
from sentinel.protocol.probe import Watch
from sentinel.protocol.stressor import MemoryLimit, StressorGroup


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
