"""What the supervisor publishes: GPUs, host, reservations, allocations and log records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.caller import Caller
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.telemetry import Telemetry


class Phase(StrEnum):
    """What the daemon as a whole is at.

    WAITING: it would occupy and no GPU is idle. DRAINED: it was told to hold nothing. RELEASED: it
    has let go of the driver, too.
    """

    STARTING = "starting"
    WAITING = "waiting"
    OCCUPYING = "occupying"
    DRAINED = "drained"
    RELEASED = "released"
    STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """GPUs that are kept free for somebody, until ``until`` or for as long as ``by`` lives.

    One that is not ``confirmed`` ends with the service that was to tell its client of it.
    """

    id: str
    gpus: tuple[str, ...]
    reason: str
    by: Caller
    since: float
    until: float | None = None
    bound: bool = False
    confirmed: bool = False


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Memory of a GPU that was promised to the process ``by`` and its children.

    One that is not ``confirmed`` ends with the service that was to tell its client of it. One whose
    process cannot be seen (``by.started`` is ``None``) lasts until it is given back.
    """

    id: str
    gpu: str
    size: int
    by: Caller
    since: float
    confirmed: bool = False


class GpuHealth(StrEnum):
    """How a GPU does, by its temperature and by the memory on it that is not ours."""

    OPTIMAL = "optimal"
    NORMAL = "normal"
    THROTTLED = "throttled"
    CRITICAL = "critical"


@dataclass(frozen=True, kw_only=True)
class HostView:
    """What is shown of the daemon as a whole, at the time ``at``."""

    at: float
    pid: int
    phase: Phase
    driver: str
    simulated: bool
    workload: str
    gpus: tuple[str, ...]
    reservations: tuple[Reservation, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    ending: str | None = None


@dataclass(frozen=True, kw_only=True)
class HandoverView:
    """The last hand-over of a GPU: when the first sign came, and what followed, in seconds."""

    at: float
    evidence: str
    exit: float
    kill: float | None = None
    memory_back: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """What is shown of one GPU, at the time ``at``.

    ``occupancy``, ``stressor`` and ``admin`` are the names of states, ``rule`` and ``reason`` say
    why it is not occupied, or "running". ``since`` is when it became what it is, ``read`` when the
    GPU was read last, ``ended`` when our last stressor on it was gone; ``ghost``: something stayed
    in use by nobody after that. ``held`` is the memory of our stressor, ``until`` when the pause or
    reservation ends. Rates are per second; ``share`` is of the time. ``None`` is not known.
    ``condition`` has held since ``health_since``, and ``multiplier`` is the share of its speed
    that it leaves to whoever works there. ``memory_foreign`` is what of the used memory is not our
    stressor's, ``budget`` how much may be promised in all, and ``outstanding`` what of it was
    promised and is not taken yet; ``guests`` are the processes of those to whom memory was
    promised. ``yields`` counts how often a newcomer got the GPU of us, ``starts`` our stressors,
    since the daemon began.
    """

    at: float
    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int
    occupancy: str
    stressor: str
    admin: str
    rule: str
    reason: str
    findings: int
    since: float | None = None
    read: float | None = None
    ended: float | None = None
    leaked: bool = False
    until: float | None = None
    reservation: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    pid: int | None = None
    memory_used: int | None = None
    held: int | None = None
    utilization: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    workload: str | None = None
    note: str | None = None
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    checks: int | None = None
    errors: int | None = None
    handover: HandoverView | None = None
    last_finding: str | None = None
    health: GpuHealth | None = None
    health_since: float | None = None
    multiplier: float = 1.0
    memory_free: int | None = None
    outstanding: int = 0
    memory_foreign: int | None = None
    budget: int = 0
    allocated_processes: tuple[GpuProcess, ...] = ()
    yields: int = 0
    starts: int = 0
    telemetry: Telemetry | None = None


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One event of the journal, as its line of JSON; ``number`` counts them."""

    number: int
    line: str
