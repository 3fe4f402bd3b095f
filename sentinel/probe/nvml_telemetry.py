"""Read a GPU's telemetry through NVML: cheap fields every second, expensive ones every 30 s.

Measured on an H200 with driver 580.159: most calls take 2 to 10 us of CPU and are made each time.
The energy takes 4.2 ms, the temperature margin 1.0 ms, each thermal throttling time 0.6 ms, a
temperature threshold up to 0.24 ms, and PCIe and fans 0.15 ms. PCIe throughput is not read: the
call blocks for 20 ms. The 32-bit counters of PCIe bytes overflow within a fraction of a second, so
they are not read either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sentinel.probe.nvml_errors import ABSENT
from sentinel.protocol.counters import NvLink
from sentinel.protocol.telemetry import Telemetry, reasons_of

_INVALID_ARGUMENT = 2  # the error of a link that the GPU does not have

#: The counters of each link, by NVML_FI_DEV_* of nvml.h; the newer ones replace the older.
_COUNTERS = {
    161: "replays_total",  # NVLINK_ERROR_DL_REPLAY
    162: "recoveries_total",  # NVLINK_ERROR_DL_RECOVERY
    163: "crc_errors_total",  # NVLINK_ERROR_DL_CRC
    164: "speed_mbps",  # NVLINK_GET_SPEED
    215: "recoveries_total",  # NVLINK_COUNT_LINK_RECOVERY_EVENTS, since Blackwell
    220: "effective_ber",  # NVLINK_COUNT_EFFECTIVE_BER
}


def read_nvlinks(nvml: Any, handle: Any) -> tuple[NvLink, ...]:
    """Read every NVLink of a GPU; none if it has none.

    Raises:
        NVMLError: A call failed in another way than "not supported".
    """
    links = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if error.value in ABSENT | {_INVALID_ARGUMENT}:
                break
            raise
        links.append(NvLink(link=link, active=bool(active), **_counters(nvml, handle, link)))
    return tuple(links)


def _counters(nvml: Any, handle: Any, link: int) -> dict[str, Any]:
    """Read the counters of one link that the GPU and its driver support."""
    found: dict[str, Any] = {}
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, [(number, link) for number in _COUNTERS])
    except nvml.NVMLError as error:
        if error.value not in ABSENT:
            raise
        return found
    for sample in values:
        field = _COUNTERS.get(sample.fieldId)
        if field is None or sample.nvmlReturn != 0:
            continue
        value = field_number(nvml, sample)
        if value not in {2**32 - 1, 2**64 - 1}:
            found[field] = decode_ber(value) if field == "effective_ber" else value
    return found


def decode_ber(value: int) -> float:
    """Decode a bit error rate: a mantissa of four bits over a negative decimal exponent."""
    mantissa, exponent = value >> 8 & 0xF, value & 0xFF
    return float(f"{mantissa}e-{exponent}")


#: The shortest and the longest period over which power is derived from energy. The counter
#: advances in steps of up to some 100 ms.
_ENERGY_PERIOD_S = (0.5, 10.0)


class PowerMeter:
    """Measures the power of GPUs.

    Args:
        query: Calls a function of NVML; returns None if the GPU does not support it.
    """

    def __init__(self, query: Callable[..., Any]) -> None:
        self._query = query
        #: By UUID: the time of the last energy reading, and its value in millijoules.
        self._energy: dict[str, tuple[float, int]] = {}

    def power(self, nvml: Any, uuid: str) -> float | None:
        """Return the mean power of the last second in watts, if the GPU supports that.

        GPUs since Ampere do, except for the A100. Otherwise it is the mean since the last call,
        derived from the energy, which takes milliseconds of CPU. Without an energy counter, at the
        first call and after a long pause, it is NVML's power usage: an instant value on some cards,
        the mean of a second on others.
        """
        field = getattr(nvml, "NVML_FI_DEV_POWER_AVERAGE", None)
        average = self._query("nvmlDeviceGetFieldValues", uuid, [field]) if field else None
        if average and average[0].nvmlReturn == 0:
            return float(average[0].value.uiVal / 1000)
        by_energy = self._by_energy(uuid)
        if by_energy is not None:
            return by_energy
        milliwatts: int | None = self._query("nvmlDeviceGetPowerUsage", uuid)
        return None if milliwatts is None else milliwatts / 1000

    def _by_energy(self, uuid: str) -> float | None:
        """Return the mean since the last call, or None if there is none or it is too long ago."""
        now = time.monotonic()
        energy: int | None = self._query("nvmlDeviceGetTotalEnergyConsumption", uuid)
        if energy is None:
            return None
        before, had = self._energy.get(uuid, (0.0, 0))
        least, most = _ENERGY_PERIOD_S
        if now - before < least:
            return None
        self._energy[uuid] = now, energy
        # The counter restarts when the driver is reloaded.
        if now - before > most or energy < had:
            return None
        return (energy - had) / 1000 / (now - before)


#: The interval of expensive fields.
SLOW_INTERVAL_S = 30.0
#: The offset between the slow reads of two GPUs.
SLOW_OFFSET_S = 1.5

#: All links of a GPU together, as the scope of a field.
_ALL_LINKS = 0xFFFFFFFF

#: The fields of every read, fetched in one call: NVML's names and Sentinel's.
_FAST_FIELDS = {
    "NVML_FI_DEV_MEMORY_TEMP": "memory_temperature_c",
    "NVML_FI_DEV_PERF_POLICY_POWER": "power_throttled_s",
    "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_corrected_total",
    "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrected_total",
    "NVML_FI_DEV_REMAPPED_COR": "remapped_corrected_total",
    "NVML_FI_DEV_REMAPPED_UNC": "remapped_uncorrected_total",
    "NVML_FI_DEV_REMAPPED_PENDING": "remap_pending",
    "NVML_FI_DEV_REMAPPED_FAILURE": "remap_failed",
}
#: The fields of slow reads, and which of them are sums over all links.
_SLOW_FIELDS = {
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "energy_j",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "thermal_throttled_s",
    "NVML_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays_total",
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": "nvlink_tx_bytes_total",
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": "nvlink_rx_bytes_total",
}
_SUMS = {"nvlink_tx_bytes_total", "nvlink_rx_bytes_total"}

#: Conversions of a field's value: NVML counts nanoseconds, millijoules, KiB, and 0 or 1.
_CONVERSIONS: dict[str, Callable[[int], Any]] = {
    "power_throttled_s": lambda value: value / 1e9,
    "thermal_throttled_s": lambda value: value / 1e9,
    "energy_j": lambda value: value / 1e3,
    "nvlink_tx_bytes_total": lambda value: value * 1024,
    "nvlink_rx_bytes_total": lambda value: value * 1024,
    "remap_pending": bool,
    "remap_failed": bool,
}

#: Temperature thresholds: NVML's names and Sentinel's.
_THRESHOLDS = {
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": "slowdown_c",
    "NVML_TEMPERATURE_THRESHOLD_GPU_MAX": "maximum_c",
    "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": "shutdown_c",
    "NVML_TEMPERATURE_THRESHOLD_MEM_MAX": "memory_maximum_c",
}

#: NVML_VALUE_TYPE_SIGNED_INT, which older bindings do not have.
_SIGNED_INT = 5

#: NVML's value for an unknown performance state.
_NO_STATE = 32


class TelemetryReader:
    """Reads the telemetry of GPUs.

    Args:
        query: Calls a function of NVML; returns None if it fails or is not supported, unless the
            GPU or the whole driver is gone.
    """

    def __init__(self, query: Callable[..., Any]) -> None:
        self._query = query
        #: The slow fields by UUID, with the time of the next slow read.
        self._slow: dict[str, tuple[float, dict[str, Any]]] = {}

    def read(self, nvml: Any, uuid: str) -> Telemetry:
        """Read one GPU; slow fields may be up to 30 s old.

        Args:
            nvml: The binding.
            uuid: The GPU.
        """
        now = time.monotonic()
        due, slow = self._slow.get(uuid, (0.0, {}))
        if now >= due:
            slow = self._read_slow(nvml, uuid)
            # Not all GPUs in the same second: each slow read delays the next GPU by up to 2 ms.
            first = not due
            self._slow[uuid] = (
                now + SLOW_INTERVAL_S + (SLOW_OFFSET_S * len(self._slow) if first else 0.0),
                slow,
            )
        return Telemetry(at=now, **self._read_fast(nvml, uuid), **slow)

    def _read_fast(self, nvml: Any, uuid: str) -> dict[str, Any]:
        query = self._query
        found = self._fields(nvml, uuid, _FAST_FIELDS)
        rates = query("nvmlDeviceGetUtilizationRates", uuid)
        if rates is not None:
            found |= {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}
        reasons = query("nvmlDeviceGetCurrentClocksEventReasons", uuid)
        if reasons is not None:
            found["reasons"] = reasons_of(int(reasons))
        limit = query("nvmlDeviceGetEnforcedPowerLimit", uuid)
        state = query("nvmlDeviceGetPerformanceState", uuid)
        return found | {
            "temperature_c": query("nvmlDeviceGetTemperature", uuid, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": query("nvmlDeviceGetClockInfo", uuid, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": query("nvmlDeviceGetClockInfo", uuid, nvml.NVML_CLOCK_MEM),
            "power_limit_w": None if limit is None else limit / 1000,
            "performance_state": None if state in {None, _NO_STATE} else int(state),
        }

    def _read_slow(self, nvml: Any, uuid: str) -> dict[str, Any]:
        query = self._query
        found = self._fields(nvml, uuid, _SLOW_FIELDS)
        for name, figure in _THRESHOLDS.items():
            which = getattr(nvml, name, None)
            if which is not None:
                # Cards without a threshold report 0.
                found[figure] = query("nvmlDeviceGetTemperatureThreshold", uuid, which) or None
        memory = query("nvmlDeviceGetMemoryInfo", uuid, nvml.nvmlMemory_v2)
        fan = query("nvmlDeviceGetFanSpeed", uuid)
        return found | {
            "memory_reserved": None if memory is None else int(memory.reserved),
            "temperature_margin_c": query("nvmlDeviceGetMarginTemperature", uuid),
            "pcie_generation": query("nvmlDeviceGetCurrPcieLinkGeneration", uuid),
            "pcie_width": query("nvmlDeviceGetCurrPcieLinkWidth", uuid),
            "fan_share": None if fan is None else fan / 100,
        }

    def _fields(self, nvml: Any, uuid: str, fields: dict[str, str]) -> dict[str, Any]:
        """Return the fields that the GPU, its driver and the binding support."""
        ids = {getattr(nvml, name, None): figure for name, figure in fields.items()}
        ids.pop(None, None)
        wanted = [
            (number, _ALL_LINKS) if figure in _SUMS else number for number, figure in ids.items()
        ]
        field = self._query("nvmlDeviceGetFieldValues", uuid, wanted)
        found = {}
        for sample in field or ():
            figure = ids.get(sample.fieldId)
            if figure is not None and sample.nvmlReturn == 0:
                found[figure] = _CONVERSIONS.get(figure, int)(field_number(nvml, sample))
        return found


def field_number(nvml: Any, field: Any, *, signed: bool = False) -> int:
    """Return the number in a field, which has one of several types.

    Args:
        nvml: The binding.
        field: NVML's struct.
        signed: Whether an unsigned type may hold a negative number, as some drivers have it.
    """
    value = field.value
    kinds = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: value.uiVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: value.ulVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.ullVal,
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: value.sllVal,
        _SIGNED_INT: value.uiVal,
    }
    number = int(kinds.get(field.valueType, value.ullVal))
    if signed and number >= 2**31:
        number -= 2**32 if number < 2**32 else 2**64
    return number
