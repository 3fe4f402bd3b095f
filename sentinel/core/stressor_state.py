"""The states of one GPU's stressor, from its spawn to the end of its hand-over."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.core.identity import OwnChild
from sentinel.core.observation import ChildExit
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.stressor import Failed, MemoryContention, MemoryLimit, Progress, Ready


class EvidenceKind(StrEnum):
    """The kind of observation that showed a newcomer."""

    MEMORY = "memory"
    PROCESS = "process"
    COMPUTING = "computing"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The first observation that shows a newcomer on a held GPU."""

    kind: EvidenceKind
    #: When the reading was stamped.
    at: float
    #: How long the reading took, in seconds.
    took: float = 0.0
    #: Unexplained memory, in bytes.
    grown: int = 0
    #: The foreign processes, if they were listed.
    processes: tuple[GpuProcess, ...] = ()


class StopCause(StrEnum):
    """Why a child ends or ended."""

    YIELD = "yield"
    UNKNOWN = "unknown"
    UNWATCHED = "unwatched"
    SHUTDOWN = "shutdown"
    POLICY = "policy"
    START_TIMEOUT = "start_timeout"
    HANG = "hang"
    GARBAGE = "garbage"
    EXITED = "exited"


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """No child; one may be started."""


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A spawned child that has not sent Ready."""

    generation: int
    since: float
    #: Used memory of the idle GPU before the spawn, in bytes.
    baseline: int
    #: The part of ``baseline`` that no listed process held, in bytes.
    unattributed: int = 0
    #: PIDs that were listed before the spawn.
    before: tuple[int, ...] = ()
    child: OwnChild | None = None
    #: When the child began to create its CUDA context.
    attaching: float | None = None
    #: It has taken its memory, and the workload prepares.
    preparing: bool = False
    #: An event reported that it takes long.
    slow: bool = False
    #: What the child saw of another process that took memory while it filled its own.
    contention: MemoryContention | None = None
    #: The child only opens and closes a context, and never becomes Ready.
    clearing: bool = False


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The targets of a stressor's pace; by default full speed."""

    #: Target utilisation, as a share of time.
    util: float | None = None
    #: Target power, in watts.
    power: float | None = None
    #: A duty cycle is in its rest.
    rests: bool = False
    #: The share of busy time that the GPU's health allows.
    health: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """The state of the pace controller."""

    targets: Targets = field(default_factory=Targets)
    #: The share of busy time that the utilisation loop asks for.
    util: float = 1.0
    #: The share of busy time that the power loop asks for.
    power: float = 1.0
    #: The share last sent to the child.
    sent: float = 1.0
    sent_at: float = 0.0
    sampled_at: float = 0.0
    #: Utilisation and power read since the last message or correction.
    samples: tuple[tuple[float | None, float | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A child that holds its memory and works."""

    generation: int
    since: float
    baseline: int
    unattributed: int
    before: tuple[int, ...]
    child: OwnChild | None
    ready: Ready
    last_progress: float
    #: Used memory with the child on the GPU, in bytes; None until the first reading after Ready.
    #: Lowered when another process frees memory.
    expected: int | None = None
    #: The part of ``expected`` that ignored processes held, in bytes.
    ignored_memory: int = 0
    #: Beyond which memory the child yields by itself, and how, as last sent to it.
    memory_limit: MemoryLimit = field(default_factory=lambda: MemoryLimit(used=None))
    #: What the child saw of a newcomer.
    contention: MemoryContention | None = None
    #: Since when there is unexplained memory.
    grown_since: float | None = None
    progress: Progress | None = None
    #: The workload's own description of its current phase.
    note: str | None = None
    pacing: Pacing = field(default_factory=Pacing)


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A child that must end or has ended, until its memory is free."""

    generation: int
    since: float
    cause: StopCause
    baseline: int
    unattributed: int
    child: OwnChild | None
    #: When to send SIGKILL if the child still runs.
    kill_at: float
    #: The child ran long enough to reset the back-off.
    ran: bool = False
    clearing: bool = False
    evidence: Evidence | None = None
    kill_sent: bool = False
    killed_at: float | None = None
    exit: ChildExit | None = None
    failed: Failed | None = None
    #: The child survived SIGKILL, and an event reported it.
    reported: bool = False


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """A pause after a failure."""

    until: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fatal:
    """Too many failures, or a permanent one; lasts until an operator restarts the GPU."""

    reason: str
    #: The failure was permanent: the setup is wrong, not the GPU.
    unusable: bool = False


Stressor = Stopped | Starting | Running | Stopping | Backoff | Fatal


@dataclass(frozen=True, kw_only=True)
class Handover:
    """The times of one yield, in seconds after the evidence."""

    evidence: Evidence
    #: None if the child ended on request.
    kill: float | None
    exit: float
    #: None if the newcomer's memory could not be read.
    memory_back: float | None
