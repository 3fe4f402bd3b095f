"""The supervisor's frozen vocabulary: all that it knows.

Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.core.identity import Identity, IdentityMode, OwnChild, ResidentProcess
from sentinel.core.observation import ChildExit
from sentinel.protocol.gpu import Gpu, GpuProcess
from sentinel.protocol.stressor import Failed, Finding, MemoryTarget, Progress, Ready
from sentinel.protocol.telemetry import Telemetry
from sentinel.protocol.views import Allocation, GpuHealth, Reservation


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Nobody can say who uses the GPU. Never idle."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Somebody else uses the GPU, or it may not be shared, by which rule."""

    rule: str
    reason: str
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Nobody but us has used the GPU since then."""

    since: float


Occupancy = Unknown | Busy | Idle


class EvidenceKind(StrEnum):
    """Which witness saw the newcomer first."""

    MEMORY = "memory"
    PROCESS = "process"
    COMPUTING = "computing"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The first evidence of somebody else on a GPU that we hold; its reading ``took`` seconds."""

    kind: EvidenceKind
    at: float
    took: float = 0.0
    grown: int = 0
    processes: tuple[GpuProcess, ...] = ()


class StopCause(StrEnum):
    """Why a child ends, or ended."""

    YIELD = "yield"
    UNKNOWN = "unknown"
    SHUTDOWN = "shutdown"
    POLICY = "policy"
    START_TIMEOUT = "start_timeout"
    HANG = "hang"
    GARBAGE = "garbage"
    EXITED = "exited"


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """No child, and nothing against one."""


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A child was spawned and has not said Ready.

    ``baseline`` is the used memory of the idle GPU before the spawn, ``unattributed`` what of it no
    listed process held, in bytes; ``before`` are the PIDs that were listed. ``contention`` is how
    many bytes more than the child took were gone while it filled its memory, where it saw that.
    ``clearing``: it only opens and closes a context, and never is Ready.
    """

    generation: int
    since: float
    baseline: int
    unattributed: int = 0
    before: tuple[int, ...] = ()
    child: OwnChild | None = None
    attaching: bool = False
    contention: int | None = None
    clearing: bool = False


@dataclass(frozen=True, kw_only=True)
class Targets:
    """How hard a stressor is to work; by default as hard as it can.

    ``util`` is a share of busy time, ``power`` is in watts. ``rests``: a cycle of work and rest is
    at its rest. ``health`` is the share that the GPU's health leaves.
    """

    util: float | None = None
    power: float | None = None
    rests: bool = False
    health: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """How hard a stressor works.

    ``util`` and ``power`` are the shares of busy time that the loops on these two ask for, ``sent``
    is what the child was told last, at ``sent_at``. ``samples`` are utilisation and power as read
    since then or since the last correction, the last of them at ``sampled_at``.
    """

    targets: Targets = field(default_factory=Targets)
    util: float = 1.0
    power: float = 1.0
    sent: float = 1.0
    sent_at: float = 0.0
    sampled_at: float = 0.0
    samples: tuple[tuple[float | None, float | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A child holds its memory and works.

    ``expected`` is the used memory of the GPU with our child on it: the first reading after
    Ready, and lower when somebody else frees some. ``None`` until that reading. ``spared`` is what
    of it those held who are let be, ``grown_at`` since when there is more than explained.
    ``note`` is what the workload says that it is at.
    """

    generation: int
    since: float
    baseline: int
    unattributed: int
    before: tuple[int, ...]
    child: OwnChild | None
    ready: Ready
    last_progress: float
    expected: int | None = None
    spared: int = 0
    grown_at: float | None = None
    progress: Progress | None = None
    note: str | None = None
    pacing: Pacing = field(default_factory=Pacing)


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A child was told or made to end, or ended, and its memory is not yet known to be back.

    It is killed at ``kill_at`` if it has not ended by then. ``ran`` says that it had been RUNNING
    long enough for its earlier failures to be forgotten; ``reported`` that it survived a SIGKILL
    and that this was said.
    """

    generation: int
    since: float
    cause: StopCause
    baseline: int
    unattributed: int
    child: OwnChild | None
    kill_at: float
    ran: bool = False
    clearing: bool = False
    evidence: Evidence | None = None
    kill_sent: bool = False
    killed_at: float | None = None
    exit: ChildExit | None = None
    failed: Failed | None = None
    reported: bool = False


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """A pause after a failure."""

    until: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fatal:
    """Too many failures, or one that no retry can mend: stays so until restarted by hand.

    ``unusable``: it was the second, so what is wrong is how it was set up and not the GPU.
    """

    reason: str
    unusable: bool = False


Stressor = Stopped | Starting | Running | Stopping | Backoff | Fatal


@dataclass(frozen=True, kw_only=True)
class Handover:
    """One yield with its times, in seconds after the first sign.

    ``kill`` is ``None`` where the child was asked and ended by itself, ``memory_back`` where the
    newcomer's own memory could not be told from ours.
    """

    evidence: Evidence
    kill: float | None
    exit: float
    memory_back: float | None


@dataclass(frozen=True, kw_only=True)
class Leak:
    """What stayed on a GPU and is nobody's since our last stressor has gone.

    ``unattributed`` is how much memory nobody was known to hold before that came, in bytes, where
    there is more now. ``load`` says that the GPU is used all the time, ``clearings`` how often a
    context was opened and closed because of it.
    """

    unattributed: int | None = None
    load: bool = False
    clearings: int = 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What stressors found wrong with a GPU: how often, and the last of it.

    ``number`` is that of the last finding of the child of ``generation``.
    """

    total: int = 0
    generation: int = 0
    number: int = 0
    last: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class HealthState:
    """The condition of a GPU since then: the worse of what its heat and its memory say.

    ``heat`` has been what it is since ``heat_since``, and a temperature was told last at
    ``told_at``; ``overheats``: it is hotter than it ever should be.
    """

    level: GpuHealth
    since: float
    heat: GpuHealth
    heat_since: float
    memory: GpuHealth
    told_at: float = float("-inf")
    overheats: bool = False


@dataclass(frozen=True, kw_only=True)
class Paused:
    """We are to keep off since and until then, or until somebody says otherwise."""

    since: float
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What a stressor is started with, and cannot change while it lives."""

    workload: str
    memory: MemoryTarget
    chunk: int
    reserve: int
    goldens: str | None


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """Everything known of one GPU: separate facts, never one big state.

    ``identity`` is how processes are told apart on it, ``resident_processes`` since when others are
    on it, by PID, where a rule asks. ``generation`` counts its children. ``rearm`` is how long it
    must stay idle before the next start. ``started`` and ``ended`` are when its last stressor was
    started and was gone. ``claims`` are the times of the last hour at which somebody came,
    ``failures`` those at which a stressor failed, ``streak`` how many since it last ran well.
    ``health_pace`` is the share of busy time that the GPU's health leaves to a stressor.
    ``launch_spec`` are those of its last stressor, ``paused`` is set while we were told to keep
    off. ``changed`` is when its occupancy or its stressor became another. ``telemetry`` is what it
    told last of itself, ``judged`` how it does by that; ``allocations`` is the memory that was
    promised to guests, by id, which changed at ``allocations_changed``, and ``left_out`` how much
    was promised when the last stressor was started. ``yields`` counts its hand-overs.
    """

    gpu: Gpu
    occupancy: Occupancy = field(default_factory=lambda: Unknown(reason="not read yet"))
    stressor: Stressor = field(default_factory=Stopped)
    identity: Identity = field(default_factory=Identity)
    resident_processes: Mapping[int, ResidentProcess] = field(default_factory=dict)
    leak: Leak = field(default_factory=Leak)
    findings: Findings = field(default_factory=Findings)
    generation: int = 0
    rearm: float = 0.0
    started: float = 0.0
    ended: float = float("-inf")
    claims: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()
    streak: int = 0
    handover: Handover | None = None
    health_pace: float = 1.0
    launch_spec: LaunchSpec | None = None
    paused: Paused | None = None
    changed: float = 0.0
    telemetry: Telemetry | None = None
    health: HealthState | None = None
    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    allocations_changed: float = 0.0
    left_out: int = 0
    yields: int = 0

    @property
    def child(self) -> OwnChild | None:
        """Our child on this GPU, which may be dead but not yet settled."""
        match self.stressor:
            case Starting(child=child) | Running(child=child) | Stopping(child=child):
                return child
            case _:
                return None

    @property
    def child_is_listed(self) -> bool:
        """Whether our present child was found in NVML's list."""
        if self.identity.generation != self.generation:
            return False
        return self.identity.mode in {IdentityMode.DIRECT, IdentityMode.MAPPED}


@dataclass(frozen=True, kw_only=True)
class ProbeUp:
    """A probe process runs, ``heard`` and ``since`` the time when it said what GPUs there are.

    ``unasked`` is when it last had no GPU to read.
    """

    generation: int
    since: float
    heard: bool = False
    unasked: float = float("-inf")


@dataclass(frozen=True, kw_only=True)
class ProbeDown:
    """No probe runs; the next, of the next generation, is started then.

    ``gone``: no earlier one is left either, which may take its time in the driver.
    """

    generation: int
    until: float
    reason: str
    gone: bool = False


ProbeState = ProbeUp | ProbeDown


@dataclass(frozen=True, kw_only=True)
class ServiceUp:
    """A service process runs; ``heard`` is when it last said that it answers clients."""

    generation: int
    since: float
    heard: float | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceDown:
    """No service process runs; the next, of this generation, is started at ``until``."""

    generation: int
    until: float


ServiceState = ServiceUp | ServiceDown


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A GPU on which a call hung, or crashed the probe: left out until then."""

    until: float
    strikes: int
    call: str
    crashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Shutdown:
    """We are ending: children are asked, killed at ``kill_at`` and given up at ``give_up_at``."""

    reason: str
    kill_at: float
    give_up_at: float


@dataclass(frozen=True, kw_only=True)
class State:
    """The whole of what the supervisor knows. Replaced by every tick, never changed.

    ``explained`` has the rule by GPU that was last said to decide, where that is wanted.
    ``service`` is ``None`` where nobody is to be served; until it has ``served`` once, nothing is
    started that nobody could control. ``occupying`` is whether we may hold anything at all,
    ``released`` is set while nothing of ours is to use the driver either. ``reconfigured``: other
    settings were taken over than those of the beginning; ``reread``: they are still to be read
    anew. ``counted_from`` is when the time began for which to run, where that is set.
    """

    gpu_states: Mapping[str, GpuState]
    started: float
    probe: ProbeState
    counted_from: float = 0.0
    probe_failures: int = 0
    suspects: Mapping[str, Suspect] = field(default_factory=dict)
    stalled_at: float | None = None
    last_start: float | None = None
    explained: Mapping[str, str] = field(default_factory=dict)
    next_status: float = 0.0
    service: ServiceState | None = None
    service_failures: int = 0
    served: bool = False
    occupying: bool = True
    reconfigured: bool = False
    reread: bool = False
    released: Paused | None = None
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    shutdown: Shutdown | None = None
    finished: bool = False
