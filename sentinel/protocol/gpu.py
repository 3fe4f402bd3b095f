"""A GPU, its processes and its memory, as one reading of the probe contains them."""

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
    #: The serial number of the board; None if it has none.
    serial: str | None = None


class ProcessKind(StrEnum):
    """NVML's three lists of processes."""

    COMPUTE = "compute"
    MPS = "mps"
    GRAPHICS = "graphics"


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process on a GPU, with its facts from /proc; None is unknown."""

    pid: int
    kind: ProcessKind = ProcessKind.COMPUTE
    memory: int | None = None
    #: Its start in clock ticks since boot, which distinguishes the PID from a later use of it.
    started: int | None = None
    #: The leader of its session; it shows whether a stressor started the process.
    session: int | None = None
    name: str | None = None
    user: str | None = None
    #: The PIDs of its parent, that one's parent and so on, as of the first sight of it.
    ancestors: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one GPU in bytes, without what the driver reserves for itself."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What NVML returned for one GPU; None is unknown or not supported.

    A reading with a ``fault`` failed three times in a row, or the GPU is lost; no stressor is
    started because of it.
    """

    uuid: str
    #: The time before the first call.
    at: float
    #: How long the memory call took, in seconds; above a millisecond, the driver was busy.
    took: float = 0.0
    memory: Memory | None = None
    processes: tuple[GpuProcess, ...] | None = None
    #: How many more processes there are than a message has room for.
    omitted_processes: int = 0
    #: When ``processes`` were read; they may be older than ``memory``.
    processes_at: float = 0.0
    exclusive: bool | None = None
    mig: bool | None = None
    display: bool | None = None
    #: The share of the last second or less in which a kernel ran.
    utilization: float | None = None
    #: The PIDs in the host's namespace that used the GPU since the last such reading.
    computing: tuple[int, ...] | None = None
    #: Degrees Celsius.
    temperature: int | None = None
    #: Watts.
    power: float | None = None
    #: MHz.
    sm_clock: int | None = None
    #: When utilization, temperature, power and clock were read.
    load_at: float = 0.0
    #: New telemetry; it comes with one reading only.
    telemetry: Telemetry | None = None
    fault: str | None = None
    lost: bool = False
