"""A driver for simulated GPUs, with faults that tests inject."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sentinel.host.simulation import Registry
from sentinel.probe.driver import BasicDriver, DriverGoneError, GpuLostError, ReadError, Xid
from sentinel.probe.nvml_counters import Announce
from sentinel.protocol.codec import from_json
from sentinel.protocol.counters import Counters, GpuAccess
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Telemetry

_FIELDS = {field.name for field in fields(Counters)}

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


#: The injected figures that telemetry has, too: those that show a fault.
_FAULTS = {"ecc_uncorrected_total", "remap_failed", "remap_pending", "recovery_action"}


#: Not a valid PID: the kernel's PID_MAX_LIMIT.
_NO_PID = 2**22

#: Leaked memory of a GPU with the fault ``unattributed``.
_LEAKED_BYTES = 2**28

#: The minimum period of a utilization; an earlier call returns the previous value.
_SAMPLING_PERIOD_S = 0.05

#: How often planted XIDs are looked for.
_XID_INTERVAL_S = 0.1

#: The power in watts and the temperature in degrees: when idle, and the addition at work.
_IDLE_POWER, _WORK_POWER = 80.0, 540.0
_IDLE_HEAT, _WORK_HEAT = 32, 30
#: The clock in MHz: when idle, and at work.
_SLOW, _FAST = 345, 1980
#: The slowdown temperature in degrees and the memory clock in MHz, as on an H200.
_SLOWDOWN, _MEMORY_CLOCK = 89, 3201


class SimulatedDriver(BasicDriver):
    """Simulates a driver for the GPUs of one registry.

    Args:
        registry: The simulated GPUs. A fault injected there is ``error`` (calls fail), ``lost``
            (the GPU fell off the bus), ``hang`` (the next read of its memory never returns),
            ``crash`` (that read aborts the process), ``leaks`` (PIDs are those of another
            namespace, as drivers before 535.113 report them in a container), ``blind`` (no process
            is listed, as under WSL) or ``unattributed`` (some memory is used by no process).

    The utilization follows from the quanta in which a stressor has queued work, so a workload that
    only holds memory has none; any other process counts as busy all the time. Power, temperature
    and clock are proportional to it, without inertia: they are plausible and mean nothing. Tests
    may set a temperature.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: By UUID: the time of the last utilization, the work until then, and its value.
        self._sampled: dict[str, tuple[float, dict[str, float | None], float]] = {}
        #: By UUID: the time of the last energy reading, and its value in joules.
        self._energy: dict[str, tuple[float, float]] = {}

    def open(self) -> None:
        """Check that the registry exists."""
        if not self._registry.folder.is_dir():
            reason = f"there are no simulated GPUs in {self._registry.folder}"
            raise DriverGoneError("no_registry", reason)

    def version(self) -> str:
        """Return a version that cannot be taken for a real one."""
        return "simulated"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the simulated GPUs, none of which can hang here."""
        del skip
        with _translated():
            return self._registry.gpus()

    def memory(self, uuid: str) -> Memory:
        """Return the memory of the living processes, unless a fault is injected."""
        with _translated():
            self._apply_fault(uuid)
            now = self._registry.memory(uuid)
            if self._registry.fault(uuid) != "unattributed":
                return now
            return Memory(
                total=now.total, used=now.used + _LEAKED_BYTES, free=now.free - _LEAKED_BYTES
            )

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes of the GPU, by PID."""
        with _translated():
            listed = sorted(self._registry.processes(uuid), key=lambda process: process.pid)
            match self._registry.fault(uuid):
                case "blind":
                    return ()
                case "leaks":
                    return tuple(replace(process, pid=_NO_PID + process.pid) for process in listed)
            return tuple(listed)

    def mig(self, uuid: str) -> bool:
        """Check whether a test has divided the GPU."""
        with _translated():
            return bool(self._registry.figures(uuid).get("mig"))

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the time since the last call in which a process worked.

        The first call returns 0, as the work of counting processes is unknown before.
        """
        with _translated():
            now, work = time.monotonic(), self._registry.work(uuid)
            before, had, share = self._sampled.get(uuid, (0.0, {}, 0.0))
            if now - before < _SAMPLING_PERIOD_S:
                return share
            shares = [
                _share(had.get(member), worked, now - before) for member, worked in work.items()
            ]
            share = min(1.0, sum(shares))
            self._sampled[uuid] = now, work, share
            return share

    def temperature(self, uuid: str) -> int | None:
        """Return a simulated temperature in degrees Celsius."""
        return self._heat(uuid, self.utilization(uuid) or 0.0)

    def power(self, uuid: str) -> float | None:
        """Return a simulated power in watts."""
        return _power(self.utilization(uuid) or 0.0)

    def sm_clock(self, uuid: str) -> int | None:
        """Return a simulated clock in MHz."""
        return _clock(self.utilization(uuid) or 0.0)

    def telemetry(self, uuid: str) -> Telemetry:
        """Return simulated telemetry: about the fields of an H200 without NVLink."""
        # One utilization for all: this thread may rest here, and the power rise meanwhile.
        busy = self.utilization(uuid) or 0.0
        degrees = self._heat(uuid, busy)
        with _translated():
            figures = self._registry.figures(uuid)
        found = Telemetry(
            at=time.monotonic(),
            memory_reserved=0,
            utilization=busy,
            memory_utilization=busy / 2,
            temperature_c=degrees,
            memory_temperature_c=degrees,
            temperature_margin_c=_SLOWDOWN - degrees,
            slowdown_c=_SLOWDOWN,
            maximum_c=_SLOWDOWN - 2,
            shutdown_c=_SLOWDOWN + 6,
            power_w=_power(busy),
            power_limit_w=_IDLE_POWER + _WORK_POWER,
            energy_j=self._spent(uuid, _power(busy)),
            sm_clock_mhz=_clock(busy),
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
            recovery_action="none",
        )
        return replace(found, **{name: figures[name] for name in _FAULTS & figures.keys()})

    def _heat(self, uuid: str, busy: float) -> int:
        """Return the temperature in degrees, which a test may have set."""
        injected = self._registry.heat(uuid)
        return _IDLE_HEAT + round(_WORK_HEAT * busy) if injected is None else injected

    def _spent(self, uuid: str, drawn: float) -> float:
        """Return an energy counter that grows by the simulated power, also over a new probe."""
        now = time.monotonic()
        before, energy = self._energy.get(uuid, (now, (_IDLE_POWER + _WORK_POWER) * now))
        self._energy[uuid] = now, energy + drawn * (now - before)
        return self._energy[uuid][1]

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List all processes; one that is not visible gets a PID that does not exist."""
        with _translated():
            listed = [process.pid for process in self._registry.processes(uuid)]
            hidden = range(_NO_PID, _NO_PID + self._registry.hidden(uuid))
            return (*listed, *hidden)

    def node(self, uuid: str) -> str | None:
        """Return the simulated device node."""
        return str(self._registry.node(uuid))

    def xids(self) -> SimulatedXids:
        """Create a source of the XIDs that tests plant."""
        return SimulatedXids(self._registry)

    def _apply_fault(self, uuid: str) -> None:
        """Fail as the injected fault demands."""
        match self._registry.fault(uuid):
            case "error":
                raise ReadError("unknown", "a simulated error")
            case "lost":
                raise GpuLostError("gpu_is_lost", "the simulated GPU fell off the bus")
            case "hang":
                threading.Event().wait()
            case "crash":
                os.abort()


class SimulatedCounters(SimulatedDriver):
    """Counts for the simulated GPUs of one registry, which may replace any figure.

    Args:
        registry: The simulated GPUs; its faults and figures are what tests inject.
    """

    def cuda(self) -> int | None:
        """Return None: no CUDA is used."""
        return None

    def access(self, index: int, announce: Announce) -> GpuAccess:
        """Return nothing: each process may use a simulated GPU."""
        del announce
        return GpuAccess(index=index)

    def count(self) -> int:
        """Count the GPUs."""
        return len(self.gpus(()))

    def identity(self, index: int, driver: str, announce: Announce) -> Counters:
        """Return the UUID and the name of a GPU."""
        del announce
        gpu = self.gpus(())[index]
        return Counters(
            uuid=gpu.uuid, index=index, name=gpu.name, at=time.monotonic(), driver=driver
        )

    def read(self, identity: Counters, announce: Announce) -> Counters:
        """Return the counters of a GPU.

        Raises:
            DriverError: A fault is injected, or the injected figures are invalid.
        """
        uuid = identity.uuid
        announce("memory", lambda: self.memory(uuid))
        telemetry = vars(self.telemetry(uuid))
        known = {name: value for name, value in telemetry.items() if name in _FIELDS}
        values = vars(identity) | known | _HEALTHY
        gpu = self.gpus(())[identity.index]
        values |= {"pci_bus_id": gpu.pci_bus_id, "serial": gpu.serial}
        values["memory_total"] = gpu.memory_total
        values["power_limit_default_w"] = values["power_limit_w"]
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


def in_folder(folder: str) -> SimulatedDriver:
    """Create the driver of the simulated GPUs in a folder; the entry point ``simulated``."""
    return SimulatedDriver(Registry(Path(folder)))


class SimulatedXids:
    """Delivers the XIDs that tests plant.

    Args:
        registry: The simulated GPUs.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._uuids: list[str] = []
        self._taken: list[Xid] = []

    def add(self, uuid: str) -> bool:
        """Deliver the XIDs of this GPU, too, unless it is lost."""
        if self._registry.fault(uuid) == "lost":
            raise GpuLostError("gpu_is_lost", "the simulated GPU fell off the bus")
        self._uuids.append(uuid)
        return True

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next XID."""
        end = time.monotonic() + timeout_s
        while not self._taken and (left := end - time.monotonic()) > 0:
            with _translated():
                for uuid in self._uuids:
                    self._taken += [
                        Xid(uuid=uuid, number=number) for number in self._registry.take_xids(uuid)
                    ]
            if not self._taken:
                time.sleep(min(left, _XID_INTERVAL_S))
        return self._taken.pop(0) if self._taken else None

    def close(self) -> None:
        """Do nothing: a source holds nothing."""


def _power(busy: float) -> float:
    """Return the power in watts."""
    return _IDLE_POWER + _WORK_POWER * busy


def _clock(busy: float) -> int:
    """Return the clock in MHz."""
    return _FAST if busy else _SLOW


def _share(before: float | None, worked: float | None, seconds: float) -> float:
    """Return the share of the time in which one process worked."""
    if worked is None:
        return 1.0
    return min(1.0, max(0.0, (worked - (before or 0.0)) / seconds))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate the errors of a half-removed registry into a driver error."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise ReadError("no_registry", f"the simulated GPUs cannot be read: {error}") from error
