"""A GPU, its processes and its memory, as one reading of the probe contains them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Why a GPU's clocks are what they are, by the bits of NVML's clocks event reasons (nvml.h,
#: nvmlClocksEventReason*), under the names that nvidia-smi has for them.
EVENT_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}

#: The highest temperature that a GPU can have, in degrees Celsius: it shuts down well below the
#: 125 for which silicon is made. Broken sensors of 8 bits read 127 and 255.
HIGHEST_C = 125
IMPOSSIBLE = "it reads {:g} C, which no GPU can have"

#: A pebibyte, more than any GPU has: a higher figure is no memory.
MAX_MEMORY_BYTES = 2**50


@dataclass(frozen=True, kw_only=True)
class TelemetryFields:
    """The telemetry of one GPU, without the time.

    A name ends with its unit: ``_c`` is degrees Celsius, ``_w`` watts, ``_j`` joules, ``_mhz`` MHz,
    ``_s`` seconds. A ``_total`` counts since the driver was loaded, or over the card's lifetime if
    the card stores it. Memory is in bytes; shares are of 1.
    """

    #: What the driver reserves for itself.
    memory_reserved: int | None = None
    #: The share of the last second or less in which a kernel ran.
    utilization: float | None = None
    #: The share in which memory was read or written.
    memory_utilization: float | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    #: How far it is from slowing itself down.
    temperature_margin_c: int | None = None
    #: Where it begins to slow itself down.
    slowdown_c: int | None = None
    #: The highest temperature allowed in operation.
    maximum_c: int | None = None
    #: Where it turns itself off.
    shutdown_c: int | None = None
    #: The highest temperature allowed for its memory.
    memory_maximum_c: int | None = None
    power_w: float | None = None
    #: The limit in force.
    power_limit_w: float | None = None
    #: Since the driver was loaded; rarely read, since NVML takes 4 ms of CPU for it on an H200.
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    #: Why the clocks are what they are; see EVENT_REASONS.
    reasons: tuple[str, ...] | None = None
    #: How long power has kept the clocks down, since the driver was loaded.
    power_throttled_s: float | None = None
    #: How long heat has.
    thermal_throttled_s: float | None = None
    #: The current generation of the link, which falls while the GPU is idle.
    pcie_generation: int | None = None
    pcie_width: int | None = None
    #: Retransmissions on the link.
    pcie_replays_total: int | None = None
    #: Over all NVLinks that work.
    nvlink_tx_bytes_total: int | None = None
    nvlink_rx_bytes_total: int | None = None
    #: Since the driver was loaded.
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    #: Rows of memory replaced after correctable errors.
    remapped_corrected_total: int | None = None
    remapped_uncorrected_total: int | None = None
    #: Whether a row is replaced at the next reset.
    remap_pending: bool | None = None
    #: Whether a row could not be replaced.
    remap_failed: bool | None = None
    #: What the driver wants done with the GPU, as in RECOVERY_ACTIONS of protocol/counters.py.
    recovery_action: str | None = None
    #: The speed of the fan.
    fan_share: float | None = None
    #: 0 is the fastest.
    performance_state: int | None = None


@dataclass(frozen=True, kw_only=True)
class Telemetry(TelemetryFields):
    """The telemetry of one GPU, and the time of its reading."""

    #: When it was read, by the monotonic clock.
    at: float


def reasons_of(bits: int) -> tuple[str, ...]:
    """Name the bits of NVML's clocks event reasons; an unknown bit is named by its value."""
    found = [name for bit, name in EVENT_REASONS.items() if bits & bit]
    unknown = bits & ~sum(EVENT_REASONS)
    return (*found, *([f"0x{unknown:x}"] if unknown else []))


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
    #: What nvidia-smi's numbers are now, if the index is not its number any more.
    renumbered: str | None = None


@dataclass(frozen=True, kw_only=True)
class HeldGpu:
    """A selected GPU that is not used before the next start, since it was held at this one."""

    uuid: str
    index: int
    pci_bus_id: str
    #: Another sentinel, or a process that one left behind, with its PID.
    holder: str
    #: How to free the GPU, as a sentence without its stop.
    remedy: str


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

    @property
    def plausible(self) -> bool:
        """Whether a GPU can have such memory: used and free are from 0 to total, which is not 0."""
        possible = 0 < self.total <= MAX_MEMORY_BYTES
        return possible and all(0 <= part <= self.total for part in (self.used, self.free))


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
