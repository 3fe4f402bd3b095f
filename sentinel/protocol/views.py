"""What the supervisor publishes: GPUs, host, reservations, allocations and log records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sentinel.protocol.caller import Caller
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.telemetry import Telemetry


class Phase(StrEnum):
    """The state of the daemon as a whole."""

    STARTING = "starting"
    WAITING = "waiting"
    """No GPU is idle."""
    OCCUPYING = "occupying"
    DRAINED = "drained"
    """An operator drained the daemon."""
    RELEASED = "released"
    """Drained, and the driver is released, too."""
    STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """GPUs kept free for a user."""

    id: str
    gpus: tuple[str, ...]
    reason: str
    by: Caller
    since: float
    #: When it ends, or None.
    until: float | None = None
    #: Whether it ends with the process ``by``.
    bound: bool = False
    #: Whether its client knows the id; if not, it ends with the API process.
    confirmed: bool = False


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """GPU memory granted to a process and its children."""

    id: str
    gpu: str
    size: int
    #: The process; if it is not visible (``started`` is None), the allocation lasts until it is
    #: returned.
    by: Caller
    since: float
    #: Whether its client knows the id; if not, it ends with the API process.
    confirmed: bool = False


class GpuHealth(StrEnum):
    """The health of a GPU, by its temperature and by the memory in foreign use."""

    OPTIMAL = "optimal"
    NORMAL = "normal"
    THROTTLED = "throttled"
    CRITICAL = "critical"


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
    reservations: tuple[Reservation, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    ending: str | None = None


@dataclass(frozen=True, kw_only=True)
class HandoverView:
    """The last hand-over of a GPU, in seconds from the evidence."""

    #: The time of the evidence.
    at: float
    evidence: str
    exit: float
    #: When the kill was sent, or None if the stressor was asked to stop.
    kill: float | None = None
    #: When the memory was free, or None if unknown.
    memory_back: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """The view of one GPU; None is unknown. Rates are per second, shares are of 1."""

    at: float
    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int
    #: The names of states.
    occupancy: str
    stressor: str
    admin: str
    #: The rule that keeps the GPU from being occupied, or "running"; and why.
    rule: str
    reason: str
    findings: int
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
    reservation: str | None = None
    processes: tuple[GpuProcess, ...] = ()
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
    #: The share of the time for which the stressor keeps the GPU busy.
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    checks: int | None = None
    errors: int | None = None
    handover: HandoverView | None = None
    last_finding: str | None = None
    health: GpuHealth | None = None
    #: Since when ``health`` holds.
    health_since: float | None = None
    #: The share of its speed that ``health`` leaves to jobs.
    multiplier: float = 1.0
    memory_free: int | None = None
    #: What is allocated and not used yet.
    outstanding: int = 0
    #: Used memory that is not the stressor's.
    memory_foreign: int | None = None
    #: How much may be allocated in all.
    budget: int = 0
    #: Processes that hold an allocation.
    allocated_processes: tuple[GpuProcess, ...] = ()
    #: How often a newcomer took the GPU from a stressor, since the daemon started.
    yields: int = 0
    #: How many stressors were started, since the daemon started.
    starts: int = 0
    telemetry: Telemetry | None = None


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One event of the log."""

    #: Counts all records; a gap shows a loss.
    number: int
    #: The event as a JSON object: event, time, at, gpu, index and its own fields.
    event: Mapping[str, Any]
