"""A driver for pretended GPUs, with faults that tests plant on them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from sentinel.host.simulation import Registry
from sentinel.probe.driver import DriverGoneError, GpuLostError, ReadError
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory
from sentinel.protocol.telemetry import Telemetry

#: From here on no process has a PID: the kernel's PID_MAX_LIMIT.
_NOBODY = 2**22

#: How much memory a ghost holds.
_GHOST = 2**28

#: A utilisation is told of this time at least, in seconds; asked sooner, it is the last one.
_SAMPLING = 0.05

#: What a pretended GPU draws in watts and how warm it is in degrees: idle, and more at work.
_IDLE_POWER, _WORK_POWER = 80.0, 540.0
_IDLE_HEAT, _WORK_HEAT = 32, 30
#: Its clock at rest and at work, in MHz.
_SLOW, _FAST = 345, 1980
#: Where it would slow itself down, in degrees, and the clock of its memory, in MHz: an H200's.
_SLOWDOWN, _MEMORY_CLOCK = 89, 3201


class SimulatedDriver:
    """What a driver would say of the GPUs of one registry.

    Args:
        registry: The pretended GPUs. A fault planted there is ``error`` (calls fail), ``lost``
            (the GPU fell off the bus), ``hang`` (the next reading of its memory never returns),
            ``crash`` (that reading aborts the process), ``leaks`` (PIDs are those of another
            namespace, as drivers before 535.113 show them in a container) or ``blind`` (no process
            is listed, as under WSL) or ``haunted`` (some memory is in use by no process).

    How much a GPU is used follows from the work that stressors count; anybody else is taken to use
    it all the time. Power, temperature and clock are made of that by a rule of three, without any
    inertia: they are plausible and mean nothing. But a test may plant a temperature.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: When the utilisation of each GPU was told last, the work by then, and what was told.
        self._told: dict[str, tuple[float, dict[str, float | None], float]] = {}
        #: When the energy of each GPU was told last, and how much it was, in joules.
        self._energy: dict[str, tuple[float, float]] = {}

    def open(self) -> None:
        """Look whether the registry is there."""
        if not self._registry.folder.is_dir():
            reason = f"there are no simulated GPUs in {self._registry.folder}"
            raise DriverGoneError("no_registry", reason)

    def version(self) -> str:
        """Return a version that nobody takes for a real one."""
        return "simulated"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Return the pretended GPUs, none of which can hang when it is asked who it is."""
        del skip
        with _translated():
            return self._registry.gpus()

    def memory(self, uuid: str) -> Memory:
        """Return what the living processes hold, unless a fault is planted."""
        with _translated():
            self._stumble(uuid)
            now = self._registry.memory(uuid)
            if self._registry.fault(uuid) != "haunted":
                return now
            return Memory(total=now.total, used=now.used + _GHOST, free=now.free - _GHOST)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return who is on the GPU, by PID."""
        with _translated():
            listed = sorted(self._registry.processes(uuid), key=lambda process: process.pid)
            match self._registry.fault(uuid):
                case "blind":
                    return ()
                case "leaks":
                    return tuple(replace(one, pid=_NOBODY + one.pid) for one in listed)
            return tuple(listed)

    def exclusive(self, uuid: str) -> bool:
        """Return ``False``: pretended GPUs are always shared."""
        del uuid
        return False

    def mig(self, uuid: str) -> bool:
        """Return ``False``: pretended GPUs are never divided."""
        del uuid
        return False

    def display(self, uuid: str) -> bool:
        """Return ``False``: pretended GPUs have no display."""
        del uuid
        return False

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the time since the last call in which somebody worked.

        At the first call nothing is known yet of who counts, and that is as good as nothing.
        """
        with _translated():
            now, work = time.monotonic(), self._registry.work(uuid)
            before, had, share = self._told.get(uuid, (0.0, {}, 0.0))
            if now - before < _SAMPLING:
                return share
            shares = [_share(had.get(one), worked, now - before) for one, worked in work.items()]
            share = min(1.0, sum(shares))
            self._told[uuid] = now, work, share
            return share

    def temperature(self, uuid: str) -> int | None:
        """Return a pretended temperature in degrees Celsius."""
        planted = self._registry.heat(uuid)
        if planted is not None:
            return planted
        return _IDLE_HEAT + round(_WORK_HEAT * (self.utilization(uuid) or 0.0))

    def power(self, uuid: str) -> float | None:
        """Return a pretended power in watts."""
        return _IDLE_POWER + _WORK_POWER * (self.utilization(uuid) or 0.0)

    def sm_clock(self, uuid: str) -> int | None:
        """Return a pretended clock in MHz."""
        return _FAST if self.utilization(uuid) else _SLOW

    def telemetry(self, uuid: str) -> Telemetry:
        """Return what a pretended GPU tells: about as much as an H200 without NVLinks."""
        busy = self.utilization(uuid) or 0.0
        degrees = self.temperature(uuid)
        return Telemetry(
            at=time.monotonic(),
            memory_reserved=0,
            utilization=busy,
            memory_utilization=busy / 2,
            temperature_c=degrees,
            memory_temperature_c=degrees,
            temperature_margin_c=None if degrees is None else _SLOWDOWN - degrees,
            slowdown_c=_SLOWDOWN,
            maximum_c=_SLOWDOWN - 2,
            shutdown_c=_SLOWDOWN + 6,
            power_w=self.power(uuid),
            power_limit_w=_IDLE_POWER + _WORK_POWER,
            energy_j=self._spent(uuid),
            sm_clock_mhz=self.sm_clock(uuid),
            memory_clock_mhz=_MEMORY_CLOCK,
            reasons=() if busy else ("gpu_idle",),
            power_throttled_s=0.0,
            thermal_throttled_s=0.0,
            pcie_generation=5,
            pcie_width=16,
            pcie_replays_total=0,
            ecc_corrected_total=0,
            ecc_uncorrected_total=0,
            remapped_corrected_total=0,
            remapped_uncorrected_total=0,
            remap_pending=False,
            remap_failed=False,
            performance_state=0,
        )

    def _spent(self, uuid: str) -> float:
        """Return a counter of energy that grows by the pretended power."""
        now, drawn = time.monotonic(), self.power(uuid) or 0.0
        before, energy = self._energy.get(uuid, (now, 0.0))
        self._energy[uuid] = now, energy + drawn * (now - before)
        return self._energy[uuid][1]

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return that everyone does who is on it; who is hidden has a PID that nobody has here."""
        with _translated():
            listed = [process.pid for process in self._registry.processes(uuid)]
            hidden = range(_NOBODY, _NOBODY + self._registry.hidden(uuid))
            return (*listed, *hidden)

    def node(self, uuid: str) -> str | None:
        """Return the pretended device node."""
        return str(self._registry.node(uuid))

    def _stumble(self, uuid: str) -> None:
        """Do what the planted fault says."""
        match self._registry.fault(uuid):
            case "error":
                raise ReadError("unknown", "a simulated error")
            case "lost":
                raise GpuLostError("gpu_is_lost", "the simulated GPU fell off the bus")
            case "hang":
                threading.Event().wait()
            case "crash":
                os.abort()


def _share(before: float | None, worked: float | None, seconds: float) -> float:
    """Return for which share of the time one process worked."""
    if worked is None:
        return 1.0
    return min(1.0, max(0.0, (worked - (before or 0.0)) / seconds))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn what a half-removed registry raises into a driver's error."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise ReadError("no_registry", f"the simulated GPUs cannot be read: {error}") from error
