"""Measure the recent power of a GPU by the best method that it supports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
