"""What is on this host: real GPUs through NVML, or pretended ones."""

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
from sentinel.protocol.version import __version__


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU: its identity, its index for people, its size in bytes."""

    uuid: str
    index: int
    name: str
    total: int


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """How a GPU is: joules since its driver was loaded, watts, watts, MHz and degrees Celsius.

    ``utilization`` is the share of the time, of late, in which a kernel ran.

    ``None`` stands where the GPU does not tell.
    """

    energy: float | None = None
    power: float | None = None
    limit: float | None = None
    sm_clock: int | None = None
    temperature: int | None = None
    utilization: float | None = None


class Host(Protocol):
    """The GPUs of a host and what can be read of them."""

    cards: tuple[Card, ...]
    simulation: str | None

    def used(self, uuid: str) -> int:
        """Return the bytes in use on a GPU."""
        ...

    def telemetry(self, uuid: str) -> Telemetry:
        """Return how a GPU is."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what a reader of the results must know of the machine."""
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
    """The host as NVML shows it.

    Args:
        only: The GPUs to use, by nvidia-smi's index; none takes all.
    """

    simulation: str | None = None

    def __init__(self, only: Collection[int] = ()) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles: dict[str, Any] = {}
        cards = []
        for index in sorted(only) or range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            self._handles[uuid] = handle
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            cards.append(Card(uuid=uuid, index=index, name=name, total=memory.total))
        self.cards = tuple(cards)

    def used(self, uuid: str) -> int:
        """Return the bytes in use, without what the driver reserves for itself."""
        nvml = self._nvml
        info = nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid], version=nvml.nvmlMemory_v2)
        return int(info.used)

    def telemetry(self, uuid: str) -> Telemetry:
        """Return how a GPU is."""
        nvml, handle = self._nvml, self._handles[uuid]

        def asked(function: str, *more: int) -> Any:
            try:
                return getattr(nvml, function)(handle, *more)
            except nvml.NVMLError:  # this card does not tell
                return None

        energy = asked("nvmlDeviceGetTotalEnergyConsumption")
        power = asked("nvmlDeviceGetPowerUsage")
        limit = asked("nvmlDeviceGetEnforcedPowerLimit")
        rates = asked("nvmlDeviceGetUtilizationRates")
        return Telemetry(
            energy=None if energy is None else energy / 1000,
            power=None if power is None else power / 1000,
            limit=None if limit is None else limit / 1000,
            sm_clock=asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            temperature=asked("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            utilization=None if rates is None else rates.gpu / 100,
        )

    def describe(self) -> dict[str, object]:
        """Return the machine in a few values."""
        driver = self._nvml.nvmlSystemGetDriverVersion()
        return {**_describe(self.cards), "driver": driver, "simulated": False}


class SimulatedHost:
    """Pretended GPUs, to try the benchmark itself without one.

    Args:
        folder: Where their registry lives.
        count: How many there are.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.simulation: str | None = str(folder)
        self._registry = Registry.create(folder, count)
        self._driver = SimulatedDriver(self._registry)
        self.cards = tuple(
            Card(uuid=gpu.uuid, index=gpu.index, name=gpu.name, total=gpu.memory_total)
            for gpu in self._registry.gpus()[:count]
        )

    def used(self, uuid: str) -> int:
        """Return the pretended bytes in use."""
        return self._registry.memory(uuid).used

    def telemetry(self, uuid: str) -> Telemetry:
        """Return for how much of the time there was work since the last call; the power follows."""
        return Telemetry(utilization=self._driver.utilization(uuid), power=self._driver.power(uuid))

    def describe(self) -> dict[str, object]:
        """Return the machine in a few values."""
        return {**_describe(self.cards), "driver": "none", "simulated": True}
