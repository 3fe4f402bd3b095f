"""Read a GPU's telemetry through NVML: cheap fields every second, expensive ones every 30 s.

Measured on an H200 with driver 580.159: most calls take 2 to 10 us of CPU and are made each time.
The energy takes 4.2 ms, the temperature margin 1.0 ms, each thermal throttling time 0.6 ms, a
temperature threshold up to 0.24 ms, and PCIe and fans 0.15 ms. PCIe throughput is not read: the
call blocks for 20 ms. The 32-bit counters of PCIe bytes overflow within a fraction of a second, so
they are not read either. Since the smallest margin is judged, it is also read when the GPU has
become hotter than at its last reading.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from sentinel.probe.driver import ReadError
from sentinel.probe.nvml_calls import CALLS_BY_NAME, FIELDS, field_number
from sentinel.protocol.gpu import Telemetry

#: The shortest and the longest period over which power is derived from energy. The counter
#: advances in steps of up to some 100 ms.
_ENERGY_PERIOD_S = (0.5, 10.0)

#: The interval of expensive fields.
SLOW_INTERVAL_S = 30.0
#: The offset between the slow reads of two GPUs.
SLOW_OFFSET_S = 1.5

#: All links of a GPU together, as the scope of a field.
_ALL_LINKS = 0xFFFFFFFF

#: The fields of every read, and of slow reads; some of these are sums over all links.
_FAST_FIELDS = (3, 4, 74, 82, 142, 143, 144, 145)
_SLOW_FIELDS = (83, 94, 138, 139, 230, 269, 270)
_SUMS = {138, 139}
#: The time slowed by heat: of the driver and of the hardware, or on older drivers of field 75.
#: On an H100, that is the hardware's alone.
_HEAT = ("software_thermal_throttled_s", "hardware_thermal_throttled_s")
_ALL_HEAT = 75

#: The figures of every read that have a call of their own, and those of slow reads.
_FAST = ("reasons", "power_limit_w", "temperature_c", "sm_clock_mhz", "memory_clock_mhz")
_SLOW = (
    *("slowdown_c", "maximum_c", "shutdown_c", "memory_maximum_c", "temperature_margin_c"),
    *("pcie_generation", "pcie_width"),
)

#: NVML's value for an unknown performance state.
_NO_STATE = 32


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
        #: The temperature by UUID when the margin was read.
        self._margin_read_at: dict[str, float] = {}

    def read(self, nvml: Any, uuid: str) -> Telemetry:
        """Read one GPU; slow fields may be up to 30 s old.

        Args:
            nvml: The binding.
            uuid: The GPU.
        """
        now = time.monotonic()
        fast = self._read_fast(nvml, uuid)
        degrees = fast.get("temperature_c", 0)
        due, slow = self._slow.get(uuid, (0.0, {}))
        if now >= due:
            slow = self._read_slow(nvml, uuid)
            self._margin_read_at[uuid] = degrees
            # Not all GPUs in the same second: each slow read delays the next GPU by up to 2 ms.
            first = not due
            self._slow[uuid] = (
                now + SLOW_INTERVAL_S + (SLOW_OFFSET_S * len(self._slow) if first else 0.0),
                slow,
            )
        elif degrees > self._margin_read_at[uuid]:
            slow |= self._calls(nvml, uuid, ("temperature_margin_c",))
            self._margin_read_at[uuid] = degrees
        return Telemetry(at=now, **fast, **slow)

    def _read_fast(self, nvml: Any, uuid: str) -> dict[str, Any]:
        found = self._fields(nvml, uuid, _FAST_FIELDS) | self._calls(nvml, uuid, _FAST)
        rates = self._query("nvmlDeviceGetUtilizationRates", uuid)
        if rates is not None:
            found |= {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}
        state = self._query("nvmlDeviceGetPerformanceState", uuid)
        return found | {"performance_state": None if state in {None, _NO_STATE} else int(state)}

    def _read_slow(self, nvml: Any, uuid: str) -> dict[str, Any]:
        found = self._fields(nvml, uuid, _SLOW_FIELDS) | self._calls(nvml, uuid, _SLOW)
        heat = [found.pop(name) for name in _HEAT if name in found]
        if len(heat) == len(_HEAT):
            found["thermal_throttled_s"] = sum(heat)
        else:
            found |= self._fields(nvml, uuid, (_ALL_HEAT,))
        memory = self._query("nvmlDeviceGetMemoryInfo", uuid, nvml.nvmlMemory_v2)
        fan = self._query("nvmlDeviceGetFanSpeed", uuid)
        return found | {
            "memory_reserved": None if memory is None else int(memory.reserved),
            "fan_share": None if fan is None else fan / 100,
        }

    def _calls(self, nvml: Any, uuid: str, names: Iterable[str]) -> dict[str, Any]:
        """Return the figures that the GPU, its driver and the binding support."""
        found = {}
        for name in names:
            call = CALLS_BY_NAME[name]
            arguments = call.arguments(nvml)
            value = None if arguments is None else self._query(call.function, uuid, *arguments)
            if value is not None:
                with contextlib.suppress(ReadError):
                    found[name] = call.into[name](value)
        return found

    def _fields(self, nvml: Any, uuid: str, numbers: Iterable[int]) -> dict[str, Any]:
        """Return the fields that the GPU and its driver support."""
        wanted = [(number, _ALL_LINKS) if number in _SUMS else number for number in numbers]
        found = {}
        for sample in self._query("nvmlDeviceGetFieldValues", uuid, wanted) or ():
            if sample.fieldId in FIELDS and sample.nvmlReturn == 0:
                name, convert = FIELDS[sample.fieldId]
                with contextlib.suppress(ReadError):
                    found[name] = convert(field_number(nvml, sample))
        return found
