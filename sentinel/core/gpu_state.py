"""The state of one GPU: occupancy, attribution, stressor, health, pause and history.

A held GPU has a stressor. Reservations, which keep a GPU free, are in ``state.State``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.core.burnin.progress import Burnin, Group
from sentinel.core.observation import ChildExit, Identity, IdentityMode, OwnChild, ResidentProcess
from sentinel.protocol.commands import Caller
from sentinel.protocol.gpu import Gpu, GpuProcess, Telemetry
from sentinel.protocol.stressor import (
    Announcement,
    Failed,
    Finding,
    MemoryContention,
    MemoryLimit,
    MemoryTarget,
    Progress,
    Ready,
)
from sentinel.protocol.views import Allocation, GpuFault, GpuHealth, VerifiedWork
from sentinel.protocol.xids import OwnEnd

#: The reason why a GPU is unknown at first.
NOT_READ = "not read yet"


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

    since: float
    #: When the child began to create its CUDA context.
    attaching: float | None = None
    #: What the child has announced last, and when.
    announced: Announcement | None = None
    announced_at: float = 0.0
    #: The most used memory that was explained while the announcement was valid, in bytes.
    level: int = 0
    #: How many events reported that it takes long; the second one, that its workload does.
    slow_reports: int = 0
    #: It was told that only the supervisor can tell a newcomer.
    limited: bool = False
    #: What the child saw of another process that took memory meanwhile.
    contention: MemoryContention | None = None


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The targets of a stressor's pace; by default full speed."""

    #: Target utilization, as a share of time.
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
    #: The share of busy time that the utilization loop asks for.
    util: float = 1.0
    #: The share of busy time that the power loop asks for.
    power: float = 1.0
    #: The share last sent to the child.
    sent: float = 1.0
    sent_at: float = 0.0
    sampled_at: float = 0.0
    #: Utilization and power read since the last message or correction.
    samples: tuple[tuple[float | None, float | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A child that holds its memory and works."""

    since: float
    ready: Ready
    last_progress: float
    #: Beyond which used memory a newcomer is there until the first reading after Ready, in bytes;
    #: None if the start did not announce all that it took.
    at_ready: int | None = None
    #: Used memory with the child on the GPU, in bytes; None until that reading. Lowered when
    #: another process frees memory.
    expected: int | None = None
    #: The part of ``expected`` that ignored processes held, in bytes.
    ignored_memory: int = 0
    #: Beyond which memory the child yields by itself, and how, as last sent to it; None if nothing
    #: was sent since Ready, so that what the start announced holds.
    memory_limit: MemoryLimit | None = None
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

    since: float
    cause: StopCause
    #: When to send SIGKILL if the child still runs.
    kill_at: float
    #: The child as it ran; None if it was still starting.
    running: Running | None = None
    evidence: Evidence | None = None
    kill_sent: bool = False
    killed_at: float | None = None
    exit: ChildExit | None = None
    failed: Failed | None = None
    #: The child survived SIGKILL, and an event reported it.
    reported: bool = False


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """A pause after a failure, or after the end on a GPU that was unknown or not watched."""

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


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The GPU cannot be read. Never treated as idle."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A foreign process uses the GPU, or a rule forbids to share it."""

    rule: str
    reason: str
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Idle:
    """No foreign process has used the GPU since then."""

    since: float


Occupancy = Unknown | Busy | Idle


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The owners of the processes and the memory in the latest reading of one GPU."""

    #: Processes of Sentinel's own stressor.
    own: tuple[GpuProcess, ...] = ()
    #: Processes that make the GPU busy: neither own nor ignored.
    foreign: tuple[GpuProcess, ...] = ()
    #: The reason for each ignored process, by PID.
    ignored: Mapping[int, str] = field(default_factory=dict)
    #: The allocation of each allocated process, by PID. These are ignored, too.
    allocated: Mapping[int, str] = field(default_factory=dict)
    #: Memory of own processes, in bytes; 0 if the driver does not report it.
    own_memory: int = 0
    #: Memory of ignored processes, in bytes; an MPS server's is left out: a client makes it grow.
    ignored_memory: int = 0
    #: There are ignored processes that may grow by more than is allocated to them.
    may_grow: bool = False
    #: Memory of allocated processes without their contexts, in bytes.
    allocated_memory: int = 0
    #: Used memory that no listed process holds, in bytes.
    unattributed: int = 0


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Memory or load that remained after the last stressor and belongs to no process."""

    #: Unattributed memory before that stressor, in bytes; None if no memory leaked.
    unattributed: int | None = None
    #: When that memory was seen first, and whether it was reported.
    since: float = 0.0
    reported: bool = False
    #: The GPU is fully used although no process is listed.
    load: bool = False
    #: When it was seen so first, or None; the load of a process that has just ended looks the same.
    load_since: float | None = None
    #: How often a context was opened and closed to clear the leak.
    clearings: int = 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of a GPU's stressors."""

    total: int = 0
    #: The child that sent the last finding.
    generation: int = 0
    #: That child's number of the last finding.
    number: int = 0
    last: Finding | None = None
    #: How many of them no longer count, since an administrator has acknowledged them.
    acknowledged: int = 0

    @property
    def standing(self) -> int:
        """How many of them count."""
        return self.total - self.acknowledged


@dataclass(frozen=True, kw_only=True)
class HealthState:
    """The health of a GPU: the worst of its temperature, its hardware and its foreign memory."""

    level: GpuHealth
    since: float
    #: Health by temperature.
    heat: GpuHealth
    heat_since: float
    #: Health by foreign memory; OPTIMAL unless ``throttle.pace`` is ``full``.
    memory: GpuHealth
    #: Health by findings, known faults and the power brake.
    hardware: GpuHealth = GpuHealth.OPTIMAL
    #: When a temperature was last read.
    temperature_at: float = float("-inf")
    #: The temperature is above the critical limit.
    overheats: bool = False
    #: The temperature was above the device's own limit, and health has been CRITICAL since.
    at_limit: bool = False


@dataclass(frozen=True, kw_only=True)
class Pause:
    """An operator's pause; it lasts until ended by a command if ``until`` is None."""

    since: float
    until: float | None = None
    #: Who paused it.
    by: Caller


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """The settings that a stressor is started with and cannot change while it runs."""

    workload: str
    memory: MemoryTarget
    chunk: int
    reserve: int
    goldens: str | None
    #: The group that it works in; None unless its phase is done together.
    group: Group | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The last start of a stressor, its child, and what the GPU was like before."""

    at: float = 0.0
    #: The child; None until it was spawned.
    child: OwnChild | None = None
    #: It only opens and closes a context, and never becomes Ready.
    clearing: bool = False
    #: It was the standby stressor, and has torch loaded.
    standby: bool = False
    #: None before the first start.
    spec: LaunchSpec | None = None
    #: Memory that it left to allocations, in bytes.
    committed: int = 0
    #: Used memory of the idle GPU, in bytes; lowered when another process frees memory.
    baseline: int = 0
    #: The most used memory that the start can explain, in bytes.
    most: int = 0
    #: The part of ``baseline`` that no listed process held, in bytes.
    unattributed: int = 0
    #: The PIDs that were listed.
    before: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class XidWindow:
    """The time in which the XIDs of a GPU were watched without a break."""

    first: float
    #: When the watch was last confirmed.
    last: float


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """Everything known of one GPU, as separate facts."""

    gpu: Gpu
    occupancy: Occupancy = field(default_factory=lambda: Unknown(reason=NOT_READ))
    #: Of the latest reading.
    attribution: Attribution = field(default_factory=Attribution)
    stressor: Stressor = field(default_factory=Stopped)
    #: How NVML names the stressor, as far as learned.
    identity: Identity = field(default_factory=Identity)
    #: Processes of steady size, by PID; empty unless an ignore rule by size is set.
    resident_processes: Mapping[int, ResidentProcess] = field(default_factory=dict)
    leak: Leak = field(default_factory=Leak)
    findings: Findings = field(default_factory=Findings)
    #: The number of the last child.
    generation: int = 0
    #: How long the GPU must stay idle before the next start, in seconds: drawn from the setting of
    #: this name at the last newcomer, so a change of the setting counts from the next one on.
    rearm: float = 0.0
    #: The start of the last child.
    launch: Launch = field(default_factory=Launch)
    #: When the last stressor was gone.
    ended: float = float("-inf")
    #: When newcomers appeared, within the last hour.
    newcomers: tuple[float, ...] = ()
    #: When stressors failed, within the last hour.
    failures: tuple[float, ...] = ()
    #: Why the last of them has failed.
    last_failure: str = ""
    #: Failures since a stressor last ran well.
    streak: int = 0
    handover: Handover | None = None
    #: The share of busy time that the GPU's health allows.
    health_pace: float = 1.0
    pause: Pause | None = None
    #: When the last pause ended.
    resumed: float = float("-inf")
    #: When the occupancy or the stressor last changed its state.
    changed: float = 0.0
    #: The latest that was read.
    telemetry: Telemetry | None = None
    health: HealthState | None = None
    #: Worst first.
    faults: tuple[GpuFault, ...] = ()
    #: The XIDs that mean a hardware fault, since the last reset or acknowledgement.
    fault_xids: frozenset[int] = frozenset()
    #: The energy when the last of them came, in joules; less than that shows a reset.
    fault_energy_j: float | None = None
    #: So many uncorrectable memory errors are acknowledged.
    known_uncorrectable: int = 0
    #: When its memory errors could last be counted, since the last reset; None if not yet.
    counted_at: float | None = None
    #: By id.
    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    allocations_changed: float = 0.0
    #: How many hand-overs there were.
    yields: int = 0
    #: None without a plan.
    burnin: Burnin | None = None
    #: What stressors have verified since the start; findings are counted in ``findings``.
    verified: VerifiedWork = field(default_factory=VerifiedWork)
    #: Of the last stressor that Sentinel ended.
    own_end: OwnEnd | None = None
    #: Since when NVML's XIDs are watched, or None if they are not.
    xids_watched: XidWindow | None = None

    @property
    def is_live(self) -> bool:
        """Whether a child lives that is not ending."""
        return isinstance(self.stressor, Starting | Running)

    @property
    def is_held(self) -> bool:
        """Whether there is a child, or one whose memory is not free yet."""
        return isinstance(self.stressor, Starting | Running | Stopping)

    @property
    def progress(self) -> Burnin:
        """The progress through the plan, also of a GPU that has not begun it."""
        return self.burnin or Burnin()

    @property
    def child(self) -> OwnChild | None:
        """The child on this GPU; it may be dead while its memory is not free yet."""
        return self.launch.child if self.is_held else None

    @property
    def child_is_listed(self) -> bool:
        """Whether the current child was found in NVML's list of processes."""
        if self.identity.generation != self.generation:
            return False
        return self.identity.mode in {IdentityMode.DIRECT, IdentityMode.MAPPED}

    @property
    def leaks(self) -> bool:
        """Whether leaked memory or load alone makes the GPU busy."""
        return isinstance(self.occupancy, Busy) and self.occupancy.rule == "leak"
