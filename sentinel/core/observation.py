"""The observation of one tick: everything new since the last, and the latest readings.

Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sentinel.protocol.commands import Command, ServiceWarning
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.probe import Inventory, Listed, Unavailable, XidReport, XidsWatched
from sentinel.protocol.stressor import ChildMessage


@dataclass(frozen=True, kw_only=True)
class OwnChild:
    """A child that the supervisor started and whose end was not seen yet."""

    pid: int
    #: Its start time in clock ticks, as in /proc.
    started: int | None
    #: The PID under which NVML lists it, if that differs from its own.
    listed_as: int | None = None


class IdentityMode(StrEnum):
    """How NVML lists the stressor of a GPU."""

    #: Not known yet.
    UNLEARNED = "unlearned"
    #: By its PID.
    DIRECT = "direct"
    #: By a PID of another namespace, which appeared together with it.
    MAPPED = "mapped"
    #: Not at all.
    BLIND = "blind"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How far the list of processes of one GPU can be trusted."""

    mode: IdentityMode = IdentityMode.UNLEARNED
    #: The reason for ``mode``.
    reason: str = "no stressor has run here yet"
    #: Why foreign processes may be missing from the list; None if they are not.
    hidden: str | None = None
    #: The child from which ``mode`` was learned.
    generation: int = 0

    @property
    def complete(self) -> bool:
        """Whether the list contains every process; if not, memory is the main evidence."""
        return self.hidden is None and self.mode in {IdentityMode.UNLEARNED, IdentityMode.DIRECT}

    @property
    def names_known(self) -> bool:
        """Whether /proc describes the listed processes."""
        return self.complete or self.mode is IdentityMode.DIRECT


@dataclass(frozen=True, kw_only=True)
class ResidentProcess:
    """A process whose memory on a GPU has been steady."""

    started: int | None
    since: float
    #: In bytes; None if it could not be read.
    memory: int | None


def is_own(process: GpuProcess, child: OwnChild | None) -> bool:
    """Check whether a process is the child, or was started by it within its session."""
    if child is None:
        return False
    if child.listed_as is not None:
        return process.pid == child.listed_as
    if process.pid == child.pid:
        return process.started is None or process.started == child.started
    return process.session == child.pid


@dataclass(frozen=True, kw_only=True)
class Call:
    """A driver call that the probe announced and that has not returned."""

    #: None while the driver is initialised or the GPUs are enumerated.
    uuid: str | None
    name: str
    since: float


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """The end of a child."""

    #: The exit code; negative for a signal.
    code: int
    #: When it was seen.
    at: float


@dataclass(frozen=True, kw_only=True)
class ChildFacts:
    """New facts about one stressor child."""

    #: Distinguishes it from earlier children on the same GPU.
    generation: int
    child: OwnChild | None = None
    messages: tuple[ChildMessage, ...] = ()
    #: When SIGKILL was sent.
    killed_at: float | None = None
    exit: ChildExit | None = None
    #: The first invalid message.
    garbage: str | None = None


@dataclass(frozen=True, kw_only=True)
class WatchTimes:
    """When the memory of a held GPU was last read; 0.0 if never."""

    #: By the probe.
    probe: float = 0.0
    #: By the stressor itself, with a result within its limit.
    stressor: float = 0.0
    #: Since when the supervisor has looked at these times without a pause: the processes may have
    #: been stopped with it before.
    supervised: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """New facts about a process beside the stressors."""

    #: Distinguishes it from earlier ones.
    generation: int
    #: It reported that it works: it waits to replace another process, or serves clients.
    works: bool = False
    #: The error that ends it, or why it could not be spawned.
    failed: str | None = None
    #: The first invalid message.
    garbage: str | None = None
    exit: ChildExit | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeFacts(ProcessFacts):
    """New facts about the probe, its newest readings and its calls in flight."""

    inventory: Inventory | None = None
    listed: Listed | None = None
    unavailable: Unavailable | None = None
    #: By UUID of the GPU.
    readings: Mapping[str, Reading] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    xids: tuple[XidReport, ...] = ()
    xids_watched: XidsWatched | None = None


@dataclass(frozen=True, kw_only=True)
class ApiFacts(ProcessFacts):
    """New facts about the API process."""

    commands: tuple[Command, ...] = ()
    warnings: tuple[ServiceWarning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The input of one tick."""

    now: float
    #: The local wall-clock time; None if unknown.
    local: datetime | None = None
    #: Uniform in [0, 1), drawn for this tick.
    random_value: float = 0.5
    #: The latest reading of each GPU, old or new.
    readings: Mapping[str, Reading] = field(default_factory=dict)
    #: By UUID of the GPU.
    children: Mapping[str, ChildFacts] = field(default_factory=dict)
    #: When the memory of each held GPU was last read.
    watched: Mapping[str, WatchTimes] = field(default_factory=dict)
    probe: ProbeFacts | None = None
    #: None without a spare probe.
    spare_probe: ProcessFacts | None = None
    #: None without a standby stressor.
    standby: ProcessFacts | None = None
    #: The host has memory left for a standby stressor.
    memory_left: bool = True
    api: ApiFacts | None = None
    #: A reload of the settings was requested.
    reload_requested: bool = False
    #: No probe process is left, not even a replaced one.
    probe_gone: bool = False
    #: The reason of a requested shutdown.
    stop: str | None = None
    #: Kill at once instead of requesting stops first.
    at_once: bool = False
    #: How long the supervisor did not run beyond the planned wait, in seconds.
    stalled: float = 0.0

    @property
    def next_minute(self) -> float | None:
        """When the next minute of the wall clock begins; None if its time is unknown."""
        if self.local is None:
            return None
        return self.now + 60.0 - self.local.second - self.local.microsecond / 1e6
