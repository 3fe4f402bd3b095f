"""The GPUs of this host: real ones through NVML, or simulated ones."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from sentinel.host.simulation import Registry
from sentinel.probe.simulated_driver import SimulatedDriver
from sentinel.protocol import __version__


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU: its UUID, its index for users, and its size in bytes."""

    uuid: str
    index: int
    name: str
    total: int


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The telemetry of a GPU: joules since the driver was loaded, watts, MHz and degrees Celsius.

    ``utilization`` is the recent share of the time in which a kernel ran. A value that the GPU does
    not report is None.
    """

    energy: float | None = None
    power: float | None = None
    limit: float | None = None
    sm_clock: int | None = None
    temperature: int | None = None
    utilization: float | None = None


class Host(Protocol):
    """The GPUs of a host and their readings."""

    cards: tuple[Card, ...]
    simulation: str | None
    #: How many GPUs it has, with those that are not used.
    count: int

    def used(self, uuid: str) -> int:
        """Return the used bytes of a GPU."""
        ...

    def telemetry(self, uuid: str) -> Telemetry:
        """Return the telemetry of a GPU."""
        ...

    def power_now(self, uuid: str) -> float | None:
        """Return the power of this moment in watts, where ``telemetry`` may average a second."""
        ...

    def describe(self) -> dict[str, object]:
        """Describe the machine for readers of the results."""
        ...


def _describe(cards: tuple[Card, ...]) -> dict[str, object]:
    return {
        "gpus": len(cards),
        "gpu": cards[0].name,
        "memory_mib": cards[0].total >> 20,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "sentinel": __version__,
    }


class RealHost:
    """The real GPUs, as NVML reports them.

    Args:
        only: The GPUs to use, by nvidia-smi's index; empty for all.
    """

    simulation: str | None = None

    def __init__(self, only: Collection[int] = ()) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self.count = pynvml.nvmlDeviceGetCount()
        self._handles: dict[str, Any] = {}
        cards = []
        for index in sorted(only) or range(self.count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            self._handles[uuid] = handle
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            cards.append(Card(uuid=uuid, index=index, name=name, total=memory.total))
        self.cards = tuple(cards)

    def used(self, uuid: str) -> int:
        """Return the used bytes, without those that the driver reserves for itself."""
        nvml = self._nvml
        info = nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid], version=nvml.nvmlMemory_v2)
        return int(info.used)

    def telemetry(self, uuid: str) -> Telemetry:
        """Return the telemetry of a GPU."""
        nvml, handle = self._nvml, self._handles[uuid]

        def query(function: str, *more: int) -> Any:
            try:
                return getattr(nvml, function)(handle, *more)
            except nvml.NVMLError:  # not supported by this card
                return None

        energy = query("nvmlDeviceGetTotalEnergyConsumption")
        power = query("nvmlDeviceGetPowerUsage")
        limit = query("nvmlDeviceGetEnforcedPowerLimit")
        rates = query("nvmlDeviceGetUtilizationRates")
        return Telemetry(
            energy=None if energy is None else energy / 1000,
            power=None if power is None else power / 1000,
            limit=None if limit is None else limit / 1000,
            sm_clock=query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            temperature=query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            utilization=None if rates is None else rates.gpu / 100,
        )

    def power_now(self, uuid: str) -> float | None:
        """Return the instantaneous power in watts."""
        (value,) = self._nvml.nvmlDeviceGetFieldValues(
            self._handles[uuid], [self._nvml.NVML_FI_DEV_POWER_INSTANT]
        )
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            return self.telemetry(uuid).power
        return float(value.value.uiVal) / 1000

    def describe(self) -> dict[str, object]:
        """Describe the machine."""
        driver = self._nvml.nvmlSystemGetDriverVersion()
        return {**_describe(self.cards), "driver": driver, "simulated": False}


class SimulatedHost:
    """Simulated GPUs, to try the benchmark without a real one.

    Args:
        folder: The folder of their registry.
        count: Their number.
        only: The GPUs to use, by index; empty for all.
    """

    def __init__(self, folder: Path, count: int, only: Collection[int] = ()) -> None:
        self.simulation: str | None = str(folder)
        self.count = count
        self._registry = Registry.create(folder, count)
        self._driver = SimulatedDriver(self._registry)
        self.cards = tuple(
            Card(uuid=gpu.uuid, index=gpu.index, name=gpu.name, total=gpu.memory_total)
            for gpu in self._registry.gpus()
            if gpu.index in (only or range(count))
        )

    def used(self, uuid: str) -> int:
        """Return the simulated used bytes."""
        return self._registry.memory(uuid).used

    def telemetry(self, uuid: str) -> Telemetry:
        """Return the share of the time with work since the last call, and the power from it."""
        return Telemetry(utilization=self._driver.utilization(uuid), power=self._driver.power(uuid))

    def power_now(self, uuid: str) -> float | None:
        """Return the power by the share of the time with work since the last call."""
        return self._driver.power(uuid)

    def describe(self) -> dict[str, object]:
        """Describe the machine."""
        return {**_describe(self.cards), "driver": "none", "simulated": True}
