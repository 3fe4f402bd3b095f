"""What the supervisor publishes: GPUs, host, reservations, allocations and log records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from sentinel.protocol.commands import Caller, Given, GrantKind
from sentinel.protocol.gpu import Gpu, GpuProcess, Telemetry

#: How the reason begins why a plan has ended if the GPU itself is at fault, not the driver.
FAULTY = "it is lost, or hangs"

#: The texts of faults that may stand since before a burn-in; the second has a number.
ROW_IN_USE = "a faulty row of its memory is in use until a reset"
UNCORRECTABLE = "{} uncorrectable errors of its memory since the driver was loaded"


def described(text: str) -> dict[str, str]:
    """Build a field's metadata with a description for the OpenAPI document."""
    return {"description": text}


class Phase(StrEnum):
    """The state of the daemon as a whole."""

    STARTING = "starting"
    WAITING = "waiting"
    """No GPU is idle."""
    OCCUPYING = "occupying"
    PAUSED = "paused"
    """An operator paused all GPUs."""
    RELEASED = "released"
    """Paused, and the driver is released, too."""
    STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True)
class _Grant:
    """What every grant has."""

    kind: ClassVar[GrantKind]
    id: str
    by: Caller
    #: When it was granted; while it waits in the queue, when it entered that.
    since: float
    #: When it ends; None without a limit.
    until: float | None = None
    #: When it ends unless it is extended; None once its client has the answer.
    lease: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reservation(_Grant):
    """GPUs kept free for a user, or a request that waits for them."""

    kind = GrantKind.RESERVATION
    #: UUIDs; empty while it waits.
    gpus: tuple[str, ...] = ()
    #: The GPUs that the client has named; empty for any.
    named: tuple[str, ...] = ()
    #: How many of them.
    count: int
    reason: str
    #: How long it lasts from ``since`` on; None without a limit.
    seconds: float | None = None
    #: Whether it ends with the process ``by``.
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class Allocation(_Grant):
    """GPU memory granted to a process and its children."""

    kind = GrantKind.ALLOCATION
    gpu: str
    size: int

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPU."""
        return (self.gpu,)

    @property
    def bound(self) -> bool:
        """Whether it ends with the process ``by``; one that is not visible has to end it."""
        return self.by.started is not None


Grant = Reservation | Allocation


@dataclass(frozen=True, kw_only=True)
class Session:
    """Settings of some GPUs under a name, laid over the daemon's until the session ends."""

    name: str
    gpus: tuple[str, ...]
    #: The texts of its settings, by key.
    settings: Mapping[str, str]
    by: Caller
    since: float
    #: When it ends, or None.
    until: float | None = None
    #: Why its settings are not in effect, or None if they are. An earlier daemon has accepted it.
    suspended: str | None = None

    def given(self, gpu: str) -> tuple[Given, ...]:
        """Return its settings for one of its GPUs."""
        return tuple(
            Given(key=key, text=text, source=f"session {self.name}: {key}", gpu=gpu)
            for key, text in self.settings.items()
        )


@dataclass(frozen=True, kw_only=True)
class SessionsView:
    """All sessions, in the order in which they were started."""

    sessions: tuple[Session, ...] = ()


class GpuHealth(StrEnum):
    """The health of a GPU, by its temperature, its hardware and the memory in foreign use."""

    OPTIMAL = "optimal"
    NORMAL = "normal"
    THROTTLED = "throttled"
    CRITICAL = "critical"


class HealthCause(StrEnum):
    """Why the health of a GPU is not OPTIMAL."""

    TEMPERATURE = "temperature"
    MEMORY = "memory"
    """Foreign processes use much of it; counts only with `throttle.pace` = `full`."""
    HARDWARE = "hardware"
    """A finding, a known fault, or a power brake."""


class FaultKind(StrEnum):
    """A fault of a GPU that is known, worst first."""

    LOST = "lost"
    """The driver has lost it."""
    XID = "xid"
    """The driver has reported an XID that means a hardware fault."""
    RECOVERY = "recovery"
    """The driver demands a reset, a reboot or the like."""
    UNCORRECTABLE = "uncorrectable"
    """Its memory has uncorrectable errors."""
    UNREAD = "unread"
    """Its memory errors can no longer be counted."""


#: The faults that an acknowledgement ends; the others last as long as their cause.
ACKNOWLEDGED = frozenset({FaultKind.XID, FaultKind.UNCORRECTABLE})


@dataclass(frozen=True, kw_only=True)
class GpuFault:
    """A known fault of a GPU."""

    kind: FaultKind
    #: What was seen.
    text: str
    #: What to do about it.
    remedy: str


@dataclass(frozen=True, kw_only=True)
class KnownFaults:
    """The faults of a GPU that a new daemon cannot find out by reading it."""

    gpu: Gpu
    #: The driver has lost it.
    lost: bool = False
    #: The XIDs that mean a hardware fault, in ascending order.
    xids: tuple[int, ...] = ()
    #: The GPU's energy in joules when the last of them came, it was lost or its memory errors could
    #: not be counted any more; None if it could not be read.
    energy_j: float | None = None
    #: Its memory errors could no longer be counted.
    unread: bool = False


#: The share of full speed that each level allows: from the GPU Management System's table of states.
MULTIPLIERS = {
    GpuHealth.OPTIMAL: 1.0,
    GpuHealth.NORMAL: 0.8,
    GpuHealth.THROTTLED: 0.5,
    GpuHealth.CRITICAL: 0.0,
}


def is_throttled(multiplier: float) -> bool:
    """Check whether work on a GPU should be slowed down, by the share that its health permits.

    The share of a NORMAL GPU is no reason: one under load may stay NORMAL, and work that waits for
    the end of a slowdown would wait forever.
    """
    return multiplier <= MULTIPLIERS[GpuHealth.THROTTLED]


@dataclass(frozen=True, kw_only=True)
class BurninRunView:
    """A burn-in that a client has asked for."""

    id: str
    #: The name of the plan.
    plan: str
    #: UUIDs.
    gpus: tuple[str, ...]
    by: Caller
    since: float
    #: Whether it ends with the process ``by``.
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class BurninFields:
    """How far a GPU is in the plan of a burn-in."""

    #: The name of the plan, and of the current or last phase.
    plan: str
    phase: str
    #: The number of the phase from 1, and how many there are.
    number: int
    phases: int
    #: Seconds of work of this phase that count, and that it asks for.
    done_s: float
    quota_s: float
    #: Passes over the memory.
    passes: int
    quota_passes: int
    #: Seconds of work left in all phases at least: without warming up and passes not yet measured.
    left_s: float
    #: Work of all phases, also what does not count.
    seconds: float
    iterations: int
    flops: float
    bytes: float
    checks: int
    errors: int
    #: Why nothing counts at the moment, or None.
    waiting: str | None = None
    #: The GPU does no more of the plan.
    over: bool = False
    #: Why phases are missing, or None.
    ended: str | None = None


@dataclass(frozen=True, kw_only=True)
class VerifiedCounts:
    """Work of which results were checked, and what was found."""

    #: Seconds of work, without starts and interruptions.
    seconds: float = 0.0
    #: Checked results, and the wrong ones among them.
    checks: int = 0
    errors: int = 0
    #: Wrong results and memory that were traced to a place.
    findings: int = 0


@dataclass(frozen=True, kw_only=True)
class VerifiedWork:
    """The verified work on a GPU since the start of the daemon."""

    counts: VerifiedCounts = field(default_factory=VerifiedCounts)
    #: When the last of it was reported, and of which workload; None if there was none.
    at: float | None = None
    workload: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostView:
    """The view of the daemon as a whole."""

    at: float
    pid: int
    phase: Phase
    driver: str
    simulated: bool
    workload: str
    gpus: tuple[str, ...]
    #: In the order in which they came, also those that wait.
    reservations: tuple[Reservation, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    burnin: BurninRunView | None = None
    #: How many GPUs the node must have; None if that is not declared.
    expected_gpus: int | None = None
    #: What a file keeps for the next daemon.
    known_faults: tuple[KnownFaults, ...] = ()
    ending: str | None = None

    @property
    def grants(self) -> tuple[Grant, ...]:
        """All reservations and allocations."""
        return (*self.reservations, *self.allocations)


@dataclass(frozen=True, kw_only=True)
class HandoverTimes:
    """The last hand-over of a GPU, in seconds from the evidence."""

    evidence: str
    exit: float
    #: When the kill was sent, or None if the stressor was asked to stop.
    kill: float | None = None
    #: When the memory was free, or None if the newcomer's memory replaced it at once.
    memory_back: float | None = None


@dataclass(frozen=True, kw_only=True)
class HandoverView(HandoverTimes):
    """The last hand-over of a GPU, and the time of its evidence."""

    at: float


@dataclass(frozen=True, kw_only=True)
class GpuFields(Gpu):
    """The fields of a GPU that its view and the API's response share; None is unknown.

    Rates are per second, shares are of 1, sizes are bytes. The index is nvidia-smi's at the start
    of the daemon.
    """

    #: IDLE, BUSY or UNKNOWN.
    occupancy: str
    #: The state of the stressor, such as RUNNING.
    stressor: str
    #: The operator's hold: ENABLED, PAUSED, RESERVED or RELEASED.
    admin: str
    #: The rule that keeps the GPU from being occupied, or "running" (see
    #: docs/reference/events.md); and the reason as a sentence.
    rule: str
    reason: str
    renumbered: str | None = field(
        default=None,
        metadata=described(
            "What nvidia-smi's numbers are now, if `index` is not its number any more: then no"
            " number selects the GPU. Else null."
        ),
    )
    findings: int = 0
    findings_acknowledged: int = field(
        default=0, metadata=described("How many of `findings` no longer count.")
    )
    faults: tuple[GpuFault, ...] = field(
        default=(), metadata=described("Its known faults, worst first; a pause hides none.")
    )
    #: The id of the reservation.
    reservation: str | None = None
    session: str | None = field(
        default=None, metadata=described("The session that has settings for the GPU.")
    )
    #: The PID of the stressor.
    pid: int | None = None
    memory_used: int | None = None
    #: The memory of the stressor.
    held: int | None = None
    utilization: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    workload: str | None = None
    note: str | None = None
    #: The share of time in which the stressor keeps the GPU busy.
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    #: Verified results, and the wrong ones among them.
    checks: int | None = None
    errors: int | None = None
    last_finding: str | None = None
    health: GpuHealth | None = None
    health_cause: HealthCause | None = field(
        default=None, metadata=described("Why the health is not optimal, or null if it is.")
    )
    multiplier: float = field(
        default=1.0,
        metadata=described(
            "The share of full speed that the GPU's health permits: by its temperature, and beside"
            " a stressor by its memory."
        ),
    )
    memory_foreign: int | None = field(
        default=None, metadata=described("Memory in use that is not the stressor's.")
    )
    budget: int = field(default=0, metadata=described("Memory that allocations may use in all."))
    #: Yields to newcomers, and starts of stressors, since the daemon's start.
    yields: int = 0
    starts: int = 0


@dataclass(frozen=True, kw_only=True)
class GpuView(GpuFields):
    """The view of one GPU."""

    at: float
    #: When ``stressor`` became what it is.
    since: float | None = None
    #: When the GPU was read last.
    read: float | None = None
    #: When the last stressor was gone.
    ended: float | None = None
    #: Whether memory stayed in use by no process after that.
    leaked: bool = False
    #: When the pause or reservation ends.
    until: float | None = None
    #: When ``rule`` may decide otherwise, as far as it is known.
    rule_until: float | None = None
    #: The foreign processes.
    processes: tuple[GpuProcess, ...] = ()
    handover: HandoverView | None = None
    #: Since when ``health`` holds.
    health_since: float | None = None
    memory_free: int | None = None
    #: What is allocated and not used yet.
    outstanding: int = 0
    burnin: BurninFields | None = None
    verified: VerifiedWork = field(default_factory=VerifiedWork)
    #: Processes that hold an allocation.
    allocated_processes: tuple[GpuProcess, ...] = ()
    telemetry: Telemetry | None = None


View = HostView | GpuView | SessionsView


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One event of the log."""

    #: Counts all records; a gap shows a loss.
    number: int
    #: The event as a JSON object: event, time, at, gpu, index and its own fields.
    event: Mapping[str, Any]
