"""A GPU, its processes and its memory, as one reading of the probe has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.telemetry import Telemetry

# --- what a host has -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. The UUID is its identity; the index is nvidia-smi's and only for people."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int


class ProcessKind(StrEnum):
    """In which of NVML's three lists a process stands."""

    COMPUTE = "compute"
    MPS = "mps"
    GRAPHICS = "graphics"


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process on a GPU, with what /proc says of it.

    ``started`` is in clock ticks since boot and tells a PID from a later use of the same number;
    ``session`` is its session's leader, by which what a stressor started is known as ours.
    ``ancestors`` are the PIDs of its parent, of the parent of that and so on, as they were when it
    was seen first. All but ``pid`` and ``kind`` are ``None`` where nobody says.
    """

    pid: int
    kind: ProcessKind = ProcessKind.COMPUTE
    memory: int | None = None
    started: int | None = None
    session: int | None = None
    name: str | None = None
    user: str | None = None
    ancestors: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one GPU as NVML counts it, without what the driver reserves for itself."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What NVML said of one GPU, stamped before the first call was made.

    ``took`` is how long the call for the memory took, in seconds: above a millisecond, the driver
    was at work on something else. ``processes`` may be older than ``memory``: it was read at
    ``processes_at``. A reading with a ``fault`` failed three times in a row, or the GPU is lost; it
    is never grounds to start. ``utilization`` is the share of the last second or less in which a
    kernel ran, ``computing`` the PIDs, in the host's namespace, of those who used the GPU since the
    last such reading; both where somebody asked for it and the GPU tells. ``temperature`` is in
    degrees Celsius, ``power`` in watts, ``sm_clock`` in MHz, each where the GPU tells. These and
    the utilisation were read at ``load_at``, and may be older than the rest. ``telemetry`` comes
    with the reading after which it is new, and with no other.
    """

    uuid: str
    at: float
    took: float = 0.0
    memory: Memory | None = None
    processes: tuple[GpuProcess, ...] | None = None
    processes_at: float = 0.0
    exclusive: bool | None = None
    mig: bool | None = None
    display: bool | None = None
    utilization: float | None = None
    computing: tuple[int, ...] | None = None
    temperature: int | None = None
    power: float | None = None
    sm_clock: int | None = None
    load_at: float = 0.0
    telemetry: Telemetry | None = None
    fault: str | None = None
    lost: bool = False
