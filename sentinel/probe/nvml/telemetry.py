"""What NVML tells of a GPU for those who watch it: cheap things each second, dear ones seldom.

Measured on an H200 with driver 580.159: most calls take 2 to 10 us of CPU and are made each time.
The energy takes 4.2 ms, the margin 1.0 ms, each time of throttling by heat 0.6 ms, a threshold of
temperature up to 0.24 ms, what concerns PCIe and fans 0.15 ms. PCIe throughput is never asked for:
the call waits for 20 ms. The counters of bytes over PCIe have 32 bits and turn over within a
fraction of a second, so they tell nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sentinel.protocol.telemetry import Telemetry, reasons_of

#: How often the dear things are asked for, in seconds.
SELDOM = 30.0
#: By how much each GPU's turn for these is after the one before it, in seconds.
APART = 1.5

#: All links of a GPU together, as the scope of a field.
_ALL_LINKS = 0xFFFFFFFF

#: The fields that are asked for each time, in one call: NVML's names and ours.
_OFTEN = {
    "NVML_FI_DEV_MEMORY_TEMP": "memory_temperature_c",
    "NVML_FI_DEV_PERF_POLICY_POWER": "power_throttled_s",
    "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_corrected_total",
    "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrected_total",
    "NVML_FI_DEV_REMAPPED_COR": "remapped_corrected_total",
    "NVML_FI_DEV_REMAPPED_UNC": "remapped_uncorrected_total",
    "NVML_FI_DEV_REMAPPED_PENDING": "remap_pending",
    "NVML_FI_DEV_REMAPPED_FAILURE": "remap_failed",
}
#: Those that are asked for seldom, and which of them are sums over all links.
_SELDOM = {
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "energy_j",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "thermal_throttled_s",
    "NVML_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays_total",
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": "nvlink_tx_bytes_total",
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": "nvlink_rx_bytes_total",
}
_SUMS = {"nvlink_tx_bytes_total", "nvlink_rx_bytes_total"}

#: What a field's value is made of: NVML counts nanoseconds, millijoules, KiB, and 0 or 1.
_MAKES: dict[str, Callable[[int], Any]] = {
    "power_throttled_s": lambda value: value / 1e9,
    "thermal_throttled_s": lambda value: value / 1e9,
    "energy_j": lambda value: value / 1e3,
    "nvlink_tx_bytes_total": lambda value: value * 1024,
    "nvlink_rx_bytes_total": lambda value: value * 1024,
    "remap_pending": bool,
    "remap_failed": bool,
}

#: Thresholds of temperature: NVML's names and ours.
_THRESHOLDS = {
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": "slowdown_c",
    "NVML_TEMPERATURE_THRESHOLD_GPU_MAX": "maximum_c",
    "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": "shutdown_c",
    "NVML_TEMPERATURE_THRESHOLD_MEM_MAX": "memory_maximum_c",
}

#: NVML's word for a performance state that it does not know.
_NO_STATE = 32


class TelemetryReader:
    """Asks NVML for all that GPUs tell of themselves.

    Args:
        ask: Returns what a function says of a GPU, or ``None`` where it has no such thing; of one
            that failed, too, unless that means the GPU or the driver as a whole.
    """

    def __init__(
        self,
        ask: Callable[..., Any],
    ) -> None:
        self._ask = ask
        #: What was asked for seldom, by UUID, with when it is due again.
        self._slow: dict[str, tuple[float, dict[str, Any]]] = {}

    def tell(self, nvml: Any, uuid: str) -> Telemetry:
        """Return what one GPU tells now, and of some things what it told some seconds ago.

        Args:
            nvml: The binding.
            uuid: The GPU.
        """
        now = time.monotonic()
        due, slow = self._slow.get(uuid, (0.0, {}))
        if now >= due:
            slow = self._seldom(nvml, uuid)
            # Not all GPUs in the same second: while one is asked, the next waits up to 2 ms.
            first = not due
            self._slow[uuid] = now + SELDOM + (APART * len(self._slow) if first else 0.0), slow
        return Telemetry(at=now, **self._often(nvml, uuid), **slow)

    def _often(self, nvml: Any, uuid: str) -> dict[str, Any]:
        ask = self._ask
        found = self._fields(nvml, uuid, _OFTEN)
        rates = ask("nvmlDeviceGetUtilizationRates", uuid)
        if rates is not None:
            found |= {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", uuid)
        if reasons is not None:
            found["reasons"] = reasons_of(int(reasons))
        limit = ask("nvmlDeviceGetEnforcedPowerLimit", uuid)
        state = ask("nvmlDeviceGetPerformanceState", uuid)
        return found | {
            "temperature_c": ask("nvmlDeviceGetTemperature", uuid, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", uuid, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", uuid, nvml.NVML_CLOCK_MEM),
            "power_limit_w": None if limit is None else limit / 1000,
            "performance_state": None if state in {None, _NO_STATE} else int(state),
        }

    def _seldom(self, nvml: Any, uuid: str) -> dict[str, Any]:
        ask = self._ask
        found = self._fields(nvml, uuid, _SELDOM)
        for name, ours in _THRESHOLDS.items():
            which = getattr(nvml, name, None)
            if which is not None:
                # 0 is what cards say that have none: a limit of 0 degrees is no limit.
                found[ours] = ask("nvmlDeviceGetTemperatureThreshold", uuid, which) or None
        memory = ask("nvmlDeviceGetMemoryInfo", uuid, nvml.nvmlMemory_v2)
        fan = ask("nvmlDeviceGetFanSpeed", uuid)
        return found | {
            "memory_reserved": None if memory is None else int(memory.reserved),
            "temperature_margin_c": ask("nvmlDeviceGetMarginTemperature", uuid),
            "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration", uuid),
            "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", uuid),
            "fan_share": None if fan is None else fan / 100,
        }

    def _fields(self, nvml: Any, uuid: str, fields: dict[str, str]) -> dict[str, Any]:
        """Return those of NVML's fields that this GPU, its driver and the binding have."""
        ids = {getattr(nvml, name, None): ours for name, ours in fields.items()}
        ids.pop(None, None)
        wanted = [(one, _ALL_LINKS) if ours in _SUMS else one for one, ours in ids.items()]
        told = self._ask("nvmlDeviceGetFieldValues", uuid, wanted)
        found = {}
        for one in told or ():
            ours = ids.get(one.fieldId)
            if ours is not None and one.nvmlReturn == 0:
                found[ours] = _MAKES.get(ours, int)(_value(nvml, one))
        return found


def _value(nvml: Any, told: Any) -> int:
    """Return the number in a field, which is one of several kinds."""
    value = told.value
    kinds = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: value.uiVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: value.ulVal,
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.ullVal,
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: value.sllVal,
    }
    return int(kinds.get(told.valueType, value.ullVal))
