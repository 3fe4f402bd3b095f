"""The counters of simulated GPUs: plausible values of a healthy GPU, and those of a test."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import Any

from sentinel.host.gpus.simulation import Registry
from sentinel.probe.driver import ReadError
from sentinel.probe.nvml.counters import Announce
from sentinel.probe.simulated_driver import SimulatedDriver
from sentinel.protocol.codec import from_json
from sentinel.protocol.counters import Counters

_FIELDS = {one.name for one in fields(Counters)}

#: The mean power of the energy counter in watts.
_MEAN_POWER = 80.0

#: What a healthy GPU reports, about as an H200 without NVLink; the rest is telemetry.
_HEALTHY: dict[str, Any] = {
    "vbios": "96.00.00.00.01",
    "inforom": "G520.0000.00.01",
    "persistence": True,
    "mig": False,
    "ecc": True,
    "ecc_pending": True,
    "inforom_valid": True,
    "ecc_corrected_lifetime_total": 0,
    "ecc_uncorrected_lifetime_total": 0,
    "sram_corrected_lifetime_total": 0,
    "sram_uncorrected_lifetime_total": 0,
    "sram_threshold_exceeded": False,
    "remap_banks_low": 0,
    "remap_banks_none": 0,
    "channel_repair_pending": False,
    "tpc_repair_pending": False,
    "memory_unrepairable": False,
    "recovery_action": "none",
    "software_thermal_throttled_s": 0.0,
    "hardware_thermal_throttled_s": 0.0,
    "power_brake_throttled_s": 0.0,
    "sm_clock_maximum_mhz": 1980,
    "memory_clock_maximum_mhz": 3201,
    "memory_maximum_c": 95,
    "slowdown_margin_c": -2,
    "pcie_generation_maximum": 5,
    "pcie_generation_own_maximum": 5,
    "pcie_width_maximum": 16,
}


class SimulatedCounters:
    """Counts for the simulated GPUs of one registry, which may replace any figure.

    Args:
        registry: The simulated GPUs; its faults and figures are what tests inject.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._driver = SimulatedDriver(registry)

    def open(self) -> None:
        """Check that the registry exists."""
        self._driver.open()

    def version(self) -> str:
        """Return a version that cannot be taken for a real one."""
        return self._driver.version()

    def count(self) -> int:
        """Count the GPUs."""
        return len(self._driver.gpus(()))

    def identity(self, index: int, driver: str, announce: Announce) -> Counters:
        """Return the UUID and the name of a GPU."""
        del announce
        gpu = self._driver.gpus(())[index]
        return Counters(
            uuid=gpu.uuid, index=index, name=gpu.name, at=time.monotonic(), driver=driver
        )

    def read(self, identity: Counters, announce: Announce) -> Counters:
        """Return the counters of a GPU.

        Raises:
            DriverError: A fault is injected, or the injected figures are invalid.
        """
        uuid = identity.uuid
        announce("memory", lambda: self._driver.memory(uuid))
        telemetry = vars(self._driver.telemetry(uuid))
        known = {name: value for name, value in telemetry.items() if name in _FIELDS}
        values = vars(identity) | known | _HEALTHY
        gpu = self._driver.gpus(())[identity.index]
        values |= {"pci_bus_id": gpu.pci_bus_id, "serial": gpu.serial}
        values["power_limit_default_w"] = values["power_limit_w"]
        values["energy_j"] = _MEAN_POWER * values["at"]
        return self._with_figures(uuid, values)

    def _with_figures(self, uuid: str, values: dict[str, Any]) -> Counters:
        """Replace the figures that a test injected."""
        try:
            figures = self._registry.figures(uuid)
            replaced = from_json(Counters, json.loads(json.dumps({**values, **figures})))
        except (OSError, ValueError) as error:
            raise ReadError("garbage", f"the injected figures are invalid: {error}") from error
        if unknown := sorted(figures.keys() - _FIELDS):
            raise ReadError("garbage", f"there are no counters {', '.join(unknown)}")
        return replaced
