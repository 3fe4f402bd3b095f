"""What a GPU tells of itself once a second, for those who watch it.

Nothing is decided by most of it. ``None`` is what a GPU does not have, or does not tell; it is
never taken for zero.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class TelemetryFields:
    """The telemetry of one GPU, without its time.

    Memory is in bytes, temperatures in degrees Celsius, power in watts, energy in joules, clocks in
    MHz, shares of 1; ``_s`` is seconds and ``_total`` counts since the driver was loaded, or since
    the card was made for what it remembers.

    Attributes:
        memory_reserved: What the driver keeps for itself.
        utilization: The share of the last second or less in which a kernel ran.
        memory_utilization: That in which memory was read or written.
        temperature_margin_c: How far it is from slowing itself down.
        slowdown_c: Where it begins to slow itself down.
        maximum_c: The most that it may have in operation.
        shutdown_c: Where it turns itself off.
        memory_maximum_c: The most that its memory may have.
        power_limit_w: The limit in force.
        energy_j: What it used since the driver was loaded; seldom read, since NVML takes 4 ms of
            CPU for it on an H200.
        reasons: Why its clocks are what they are, by name; see EVENT_REASONS.
        power_throttled_s: For how long power has kept its clocks down, since the driver was loaded.
        thermal_throttled_s: For how long heat has.
        pcie_generation: That of its link as it is now, which falls while there is nothing to do.
        pcie_replays_total: How often something had to be sent again on its link.
        nvlink_tx_bytes_total: What it sent over all NVLinks, where it has some that work.
        ecc_corrected_total: Errors of its memories since the driver was loaded.
        remapped_corrected_total: Rows of its memory that were replaced after correctable errors.
        remap_pending: Whether a row waits for a reset to be replaced.
        remap_failed: Whether a row could not be replaced.
        fan_share: The speed of its fan, of 1.
        performance_state: 0 is the fastest.
    """

    memory_reserved: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    temperature_margin_c: int | None = None
    slowdown_c: int | None = None
    maximum_c: int | None = None
    shutdown_c: int | None = None
    memory_maximum_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    reasons: tuple[str, ...] | None = None
    power_throttled_s: float | None = None
    thermal_throttled_s: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_replays_total: int | None = None
    nvlink_tx_bytes_total: int | None = None
    nvlink_rx_bytes_total: int | None = None
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    remapped_corrected_total: int | None = None
    remapped_uncorrected_total: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    fan_share: float | None = None
    performance_state: int | None = None


@dataclass(frozen=True, kw_only=True)
class Telemetry(TelemetryFields):
    """The telemetry of one GPU, read at the time ``at`` of the monotonic clock."""

    at: float


def reasons_of(bits: int) -> tuple[str, ...]:
    """Return the names of clocks event reasons; a bit without a name is called by its value."""
    found = [name for bit, name in EVENT_REASONS.items() if bits & bit]
    unknown = bits & ~sum(EVENT_REASONS)
    return (*found, *([f"0x{unknown:x}"] if unknown else []))
