"""Messages of one-shot processes: the counters of a GPU and its users, and the workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

#: NVML's recovery actions by number (nvml.h, nvmlDeviceGpuRecoveryAction_t).
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}

#: NVML's states of the registration with the NVLink fabric by number; ``failed`` is one that is
#: completed with an error.
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}

#: NVML's summaries of the fabric's health by number.
FABRIC_HEALTH = {0: "not_supported", 1: "healthy", 2: "unhealthy", 3: "limited_capacity"}


@dataclass(frozen=True, kw_only=True)
class NvLink:
    """One NVLink of a GPU; a ``_total`` counts since the driver was loaded."""

    #: Its number on this GPU.
    link: int
    active: bool | None = None
    speed_mbps: int | None = None
    #: Retransmissions.
    replays_total: int | None = None
    #: Retrainings.
    recoveries_total: int | None = None
    crc_errors_total: int | None = None
    #: The share of wrong bits after error correction.
    effective_ber: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """The counters, modes and limits of one GPU at one time.

    Names end with their units as in ``protocol/gpu.py``, whose names are used for its values.
    """

    #: Empty if it could not be read.
    uuid: str
    #: NVML's index.
    index: int
    #: The model.
    name: str
    #: When it was read, by the monotonic clock.
    at: float
    driver: str | None = None
    #: Of the board.
    serial: str | None = None
    pci_bus_id: str | None = None
    vbios: str | None = None
    #: The version of the InfoROM's image.
    inforom: str | None = None
    #: In bytes.
    memory_total: int | None = None

    # --- modes -------------------------------------------------------------------------------
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None
    #: The mode after the next reset.
    ecc_pending: bool | None = None
    #: Whether the checksum of the InfoROM is right.
    inforom_valid: bool | None = None

    # --- memory ------------------------------------------------------------------------------
    #: Volatile: since the driver was loaded or the GPU was reset.
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    #: Aggregate: over the card's lifetime.
    ecc_corrected_lifetime_total: int | None = None
    ecc_uncorrected_lifetime_total: int | None = None
    sram_corrected_lifetime_total: int | None = None
    #: Parity and SEC-DED errors together.
    sram_uncorrected_lifetime_total: int | None = None
    #: Whether the driver calls the number of uncorrectable SRAM errors too high.
    sram_threshold_exceeded: bool | None = None
    #: Rows of memory replaced after correctable errors.
    remapped_corrected_total: int | None = None
    remapped_uncorrected_total: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    #: Banks of memory with few spare rows left, and with none.
    remap_banks_low: int | None = None
    remap_banks_none: int | None = None
    #: Pages retired on GPUs without remapping: after correctable and after uncorrectable errors.
    retired_corrected_total: int | None = None
    retired_uncorrected_total: int | None = None
    retirement_pending: bool | None = None
    #: Whether a memory channel or a group of multiprocessors is repaired at the next reset.
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    memory_unrepairable: bool | None = None
    #: What the driver wants done with the GPU, as in RECOVERY_ACTIONS.
    recovery_action: str | None = None

    # --- throttling, since the driver was loaded -----------------------------------------------
    power_throttled_s: float | None = None
    #: By any heat: older drivers count no more than this.
    thermal_throttled_s: float | None = None
    software_thermal_throttled_s: float | None = None
    hardware_thermal_throttled_s: float | None = None
    power_brake_throttled_s: float | None = None

    # --- clocks, power, temperature ------------------------------------------------------------
    #: Why the clocks are what they are; see EVENT_REASONS in protocol/gpu.py.
    reasons: tuple[str, ...] | None = None
    sm_clock_mhz: int | None = None
    sm_clock_maximum_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_maximum_mhz: int | None = None
    #: The limit in force.
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    slowdown_c: int | None = None
    maximum_c: int | None = None
    shutdown_c: int | None = None
    memory_maximum_c: int | None = None
    #: How far it is from its limit (T.Limit).
    temperature_margin_c: int | None = None
    #: The margin at which it begins to slow itself down; mostly negative.
    slowdown_margin_c: int | None = None

    # --- links -------------------------------------------------------------------------------
    pcie_generation: int | None = None
    #: What the GPU and its slot allow together.
    pcie_generation_maximum: int | None = None
    #: What the GPU allows by itself.
    pcie_generation_own_maximum: int | None = None
    pcie_width: int | None = None
    #: What the GPU and its slot allow together.
    pcie_width_maximum: int | None = None
    pcie_replays_total: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric_state: str | None = None
    fabric_health: str | None = None

    # --- failures ----------------------------------------------------------------------------
    #: Why the whole GPU could not be read: it is lost, or a call hung or crashed the process.
    lost: str | None = None
    #: Whether that was a call of ours that hung or crashed; else it is the driver's word.
    unanswered: bool | None = None
    #: The errors of the calls that failed, by field.
    failed: Mapping[str, str] = field(default_factory=dict)

    def unread(self, why: str) -> Counters:
        """Build the counters of this GPU after a failure of all its calls for the same reason."""
        return replace(self, failed=dict.fromkeys(READ_FIELDS, why))

    @property
    def is_simulated(self) -> bool:
        """Whether it is of a simulated GPU."""
        return self.driver == "simulated"

    @property
    def why_unread(self) -> str | None:
        """Why nothing of this GPU could be read, or None if something was."""
        return next(iter(self.failed.values())) if self.failed.keys() >= set(READ_FIELDS) else None


#: The fields that are read by calls for one GPU once it is identified.
READ_FIELDS = tuple(
    field.name
    for field in fields(Counters)
    if field.name not in {"uuid", "index", "name", "at", "driver", "lost", "unanswered", "failed"}
)


@dataclass(frozen=True, kw_only=True)
class CountersSpec:
    """What the process that reads the counters needs to know."""

    #: The folder of simulated GPUs, or None for the driver.
    simulation: str | None = None
    #: The GPUs to read, or None for all.
    uuids: tuple[str, ...] | None = None
    #: The indices of GPUs that must not be touched.
    skip: tuple[int, ...] = ()
    #: Whether to read for each GPU who may use it and who does, too.
    access: bool = False
    #: Where the kernel lists the devices on the PCI bus, and the driver its GPUs and their nodes.
    sysfs: str = "/sys/bus/pci/devices"
    procfs: str = "/proc/driver/nvidia/gpus"
    devices: str = "/dev"


@dataclass(frozen=True, kw_only=True)
class GpuAccess:
    """Who may use a GPU, and who does."""

    index: int
    #: The number of its device node.
    minor: int | None = None
    #: All of its memory, in bytes.
    memory: int | None = None
    #: As NVML numbers the modes.
    compute_mode: int | None = None
    #: Whether MIG is on after the next reset.
    mig_pending: bool | None = None
    #: Whether a display uses it.
    display: bool | None = None
    #: The PIDs in the lists of computing processes and of MPS clients.
    computing: tuple[int, ...] | None = None
    mps: tuple[int, ...] | None = None
    #: The errors of the calls that failed, by field.
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DriverVersion:
    """The version of the driver."""

    version: str
    #: The newest supported CUDA, 1000 times the major version and 10 times the minor, or None.
    cuda: int | None = None
    #: How many GPUs it lists; None if that is not known yet.
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class DriverFailed:
    """The driver as a whole is unusable."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Port:
    """One port of an InfiniBand adapter; what could not be read is None or missing."""

    #: Such as ``mlx5_0/1``.
    name: str
    #: Such as ``ACTIVE`` and ``DOWN``.
    state: str | None = None
    #: Such as ``400 Gb/sec (4X NDR)``.
    rate: str | None = None
    #: ``InfiniBand`` or ``Ethernet``.
    layer: str | None = None
    #: Counters of errors by name; old adapters stop at 255 or 65,535.
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HostCounters:
    """What the kernel counts of the host around the GPUs."""

    ports: tuple[Port, ...] = ()
    #: Errors of the host's memory since its start, by controller and counter.
    memory: Mapping[str, int] = field(default_factory=dict)
    #: Why nothing was read, or None.
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class PciInventory:
    """The addresses of the GPUs on the PCI bus that NVML should list, in NVML's form."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CountersDone:
    """All counters were sent."""


# --- the catalog of workloads ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkloadOption:
    """One option of a workload, for people."""

    name: str
    kind: str
    #: The default as text, or None if the option is required.
    default: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class WorkloadInfo:
    """The description of the workload of this number, or the error that its import raised."""

    number: int
    summary: str = ""
    options: tuple[WorkloadOption, ...] = ()
    error: str | None = None
