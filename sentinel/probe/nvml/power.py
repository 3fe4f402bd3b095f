"""What a GPU draws, of late, in the best way that it tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: The shortest time over which power is told from the energy, and the longest, in seconds. The
#: counter moves in steps of up to some 100 ms.
_ENERGY_OVER = (0.5, 10.0)


class Meter:
    """Tells the power of GPUs.

    Args:
        ask: Returns what a function of NVML says of a GPU, or ``None`` where it has no such thing.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        #: When the energy of a GPU was read last, in seconds, and what it was, in millijoules.
        self._energy: dict[str, tuple[float, int]] = {}

    def power(self, nvml: Any, uuid: str) -> float | None:
        """Return the mean power of the last second in watts, where the GPU tells that.

        That is so from Ampere on, but for the A100. Elsewhere it is the mean since the last call,
        told from the energy, which takes milliseconds of CPU; and where there is no such counter,
        at the first call and after a long pause, what NVML says of the power, which on some cards
        is of a moment and on others a mean over a second.
        """
        field = getattr(nvml, "NVML_FI_DEV_POWER_AVERAGE", None)
        told = self._ask("nvmlDeviceGetFieldValues", uuid, [field]) if field else None
        if told and told[0].nvmlReturn == 0:
            return float(told[0].value.uiVal / 1000)
        by_energy = self._by_energy(uuid)
        if by_energy is not None:
            return by_energy
        milliwatts: int | None = self._ask("nvmlDeviceGetPowerUsage", uuid)
        return None if milliwatts is None else milliwatts / 1000

    def _by_energy(self, uuid: str) -> float | None:
        """Return the mean since the last call, where there was one and not long ago."""
        now = time.monotonic()
        energy: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption", uuid)
        if energy is None:
            return None
        before, had = self._energy.get(uuid, (0.0, 0))
        least, most = _ENERGY_OVER
        if now - before < least:
            return None
        self._energy[uuid] = now, energy
        # The counter begins anew when the driver is loaded anew.
        if now - before > most or energy < had:
            return None
        return (energy - had) / 1000 / (now - before)
