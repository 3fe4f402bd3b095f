"""Processes that make each call to the driver once and end: the counters, and ``doctor``.

They are processes of their own because each call may hang for ever or crash. Each announces its
calls on a board, so that the reader of the board knows where it ended. The counters come with a
list of the NVIDIA GPUs on the PCI bus, to find those that NVML does not list.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.host.process_setup import InheritedFd, setup_child_process
from sentinel.host.simulation import Registry
from sentinel.probe.driver import DriverError, GpuLostError, ReadError
from sentinel.probe.nvml_calls import CALLS_BY_NAME
from sentinel.probe.nvml_counters import OneShotDriver
from sentinel.probe.simulated_driver import SimulatedCounters
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import (
    CallResult,
    Counters,
    CountersDone,
    CountersSpec,
    DriverFailed,
    InspectionDone,
    PciInventory,
)
from sentinel.protocol.gpu import ProcessKind
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, slots_of

#: The call that is slow on a driver without persistence mode.
OPENING = "nvmlInit"

_UNCORRECTED = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC

#: The calls of the inspection for each GPU that return numbers: the call's name, NVML's function,
#: and more arguments.
INSPECTED: dict[str, tuple[str, tuple[int, ...]]] = {
    "minor": ("nvmlDeviceGetMinorNumber", ()),
    "persistence": ("nvmlDeviceGetPersistenceMode", ()),
    "compute_mode": ("nvmlDeviceGetComputeMode", ()),
    "mig": ("nvmlDeviceGetMigMode", ()),
    "display": ("nvmlDeviceGetDisplayActive", ()),
    "ecc": ("nvmlDeviceGetEccMode", ()),
    "volatile": ("nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE)),
    "aggregate": ("nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _AGGREGATE)),
    "remapped": ("nvmlDeviceGetRemappedRows", ()),
    "retiring": ("nvmlDeviceGetRetiredPagesPendingStatus", ()),
}

#: Those that return the PIDs in a list of processes.
INSPECTED_LISTS = {"compute": ProcessKind.COMPUTE, "mps": ProcessKind.MPS}

#: NVML's name of each call by its name on the board, for people who search for what hung.
FUNCTIONS = (
    {name: function for name, (function, _) in INSPECTED.items()}
    | {name: call.function for name, call in CALLS_BY_NAME.items()}
    | {
        "open": "nvmlInit",
        "version": "nvmlSystemGetDriverVersion",
        "cuda": "nvmlSystemGetCudaDriverVersion",
        "count": "nvmlDeviceGetCount",
        "handle": "nvmlDeviceGetHandleByIndex",
        "uuid": "nvmlDeviceGetUUID",
        "name": "nvmlDeviceGetName",
        "compute": "nvmlDeviceGetComputeRunningProcesses",
        "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
        "pci_bus_id": "nvmlDeviceGetPciInfo",
        "inforom_valid": "nvmlDeviceValidateInforom",
        "sram_threshold_exceeded": "nvmlDeviceGetSramEccErrorStatus",
        "remap_banks_low": "nvmlDeviceGetRowRemapperHistogram",
        "retired_corrected_total": "nvmlDeviceGetRetiredPages",
        "fields": "nvmlDeviceGetFieldValues",
        "violations": "nvmlDeviceGetViolationStatus",
        "fabric_state": "nvmlDeviceGetGpuFabricInfoV",
        "nvlinks": "nvmlDeviceGetNvLinkState",
    }
)


class _Caller:
    """Announces and makes calls, and sends what came of them.

    Args:
        title: The title of this process.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each call is announced before it is made.
    """

    def __init__(self, title: str, channel: socket.socket, parent: int, board: InheritedFd) -> None:
        setup_child_process(parent, title)
        channel.settimeout(None)
        self._channel = channel
        self._board = InflightCalls.attach(board.detach())

    def send(self, message: object) -> None:
        """Send a message."""
        self._channel.sendall(encode(message))

    def call(self, gpu: int | None, name: str, call: Callable[[], Any]) -> Any:
        """Announce a call on the board while it is made, and return its value."""
        slot = 0 if gpu is None else slots_of(gpu)[0]
        self._board.announce(slot, name)
        try:
            return call()
        finally:
            self._board.finish(slot)


# --- the counters -----------------------------------------------------------------------------

#: The call that looks for GPUs that NVML does not list.
INVENTORY = "inventory"


def run_counters(
    spec: CountersSpec, channel: socket.socket, parent: int, board: InheritedFd
) -> None:
    """Read all GPUs and send the counters of each, then CountersDone; for a spawned process.

    The identity of a GPU is sent first, so that a GPU on which a call hangs has a name.

    Args:
        spec: What to read.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each call is announced before it is made.
    """
    caller = _Caller("sentinel: reads the counters once", channel, parent, board)
    driver: OneShotDriver | SimulatedCounters
    if spec.simulation is None:
        driver = OneShotDriver()
    else:
        driver = SimulatedCounters(Registry(Path(spec.simulation)))
    announce = functools.partial(caller.call, None)
    try:
        announce("open", driver.open)
        version = announce("version", driver.version)
        count = announce("count", driver.count)
        listed = []
        for index in range(min(MAX_GPUS, count)):
            if index not in spec.skip:
                found = _read_gpu(driver, spec, version, index, caller)
                listed.append(found.pci_bus_id)
        if spec.simulation is None and not spec.skip and spec.uuids is None:
            missing = announce(INVENTORY, lambda: pci_addresses(spec, listed))
            caller.send(PciInventory(addresses=missing))
    except DriverError as error:
        caller.send(DriverFailed(reason=error.reason))
    caller.send(CountersDone())


def _read_gpu(
    driver: OneShotDriver | SimulatedCounters,
    spec: CountersSpec,
    version: str,
    index: int,
    caller: _Caller,
) -> Counters:
    """Read one GPU, and send its identity and then its counters."""
    announce = functools.partial(caller.call, index)
    found = driver.identity(index, version, announce)
    if found.uuid and spec.uuids is not None and found.uuid not in spec.uuids:
        return found
    if found.uuid:
        caller.send(found.unread("the driver failed before all was read"))
        try:
            found = driver.read(found, announce)
        except ReadError as error:
            found = found.unread(error.reason)
        except GpuLostError as error:
            found = replace(found, lost=error.reason)
    caller.send(found)
    return found


_VENDOR = "0x10de"
#: VGA and 3D controllers.
_CLASSES = ("0x0300", "0x0302")


def pci_addresses(spec: CountersSpec, listed: Collection[str | None]) -> tuple[str, ...]:
    """List the GPUs that NVML should list, by their addresses in NVML's form.

    A GPU that another driver uses, or that is hidden from this container or job, is left out.

    Args:
        spec: Where the kernel and the driver list the devices.
        listed: The addresses that NVML lists. Only other devices are opened, which may take long.
    """
    known = {address.upper() for address in listed if address is not None}
    return tuple(
        address
        for folder, address in _pci_gpus(Path(spec.sysfs))
        if address in known or not _is_hidden(folder, spec)
    )


def _pci_gpus(sysfs: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of each GPU of NVIDIA's, and its address."""
    for folder in sorted(sysfs.glob("*")):
        if _read_text(folder / "vendor") != _VENDOR:
            continue
        if not _read_text(folder / "class").startswith(_CLASSES):
            continue
        domain, _, rest = folder.name.partition(":")
        yield folder, f"{domain:>08}:{rest}".upper()


def _is_hidden(folder: Path, spec: CountersSpec) -> bool:
    """Check whether a GPU is in use by another driver, or not accessible from here."""
    driver = folder / "driver"
    if not driver.exists():
        return False
    if driver.resolve().name != "nvidia":
        return True
    facts = _read_text(Path(spec.procfs) / folder.name / "information")
    minor = next((line.split()[-1] for line in facts.splitlines() if "Minor" in line), None)
    if minor is None:  # a container has entries for its own GPUs only
        return True
    try:
        os.close(_open(Path(spec.devices) / f"nvidia{minor}", os.O_RDWR | os.O_CLOEXEC))
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:  # the driver does not get it to work
        return False
    return False


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags)


def _read_text(path: Path) -> str:
    """Read a small file; empty if that is not possible."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


# --- the inspection ---------------------------------------------------------------------------


def run_inspection(
    skip: Sequence[int], channel: socket.socket, parent: int, board: InheritedFd
) -> None:
    """Make every call and send its CallResult, then InspectionDone; for a spawned process.

    Args:
        skip: The indices of GPUs that must not be touched.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each call is announced before it is made.
    """
    caller = _Caller("sentinel: doctor, inspects the driver once", channel, parent, board)
    _Inspection(caller).inspect_all(frozenset(skip))
    caller.send(InspectionDone())


class _Inspection:
    """All calls, each announced before it is made and its result sent after."""

    def __init__(self, caller: _Caller) -> None:
        self._driver = OneShotDriver()
        self._caller = caller

    def inspect_all(self, skip: frozenset[int]) -> None:
        """Inspect the driver, then each GPU."""
        driver = self._driver
        if self._call(OPENING, None, driver.open).lost:
            return
        self._call("version", None, driver.version)
        self._call("cuda", None, driver.cuda)
        count = self._call("count", None, driver.count)
        for index in range(min(MAX_GPUS, count.numbers[0] if count.numbers else 0)):
            if index not in skip:
                self._inspect_gpu(index)

    def _inspect_gpu(self, index: int) -> None:
        """Make every call for one GPU, until it is lost."""
        driver = self._driver
        if self._call("handle", index, functools.partial(driver.reach, index)).error is not None:
            return
        calls: dict[str, Callable[[], Any]] = {
            "uuid": functools.partial(driver.uuid, index),
            "name": functools.partial(driver.model, index),
        }
        for name, (function, more) in INSPECTED.items():
            calls[name] = functools.partial(driver.numbers, index, function, more)
        for name, kind in INSPECTED_LISTS.items():
            calls[name] = functools.partial(driver.pids, index, kind)
        for name, call in calls.items():
            if self._call(name, index, call).lost:
                return

    def _call(self, name: str, gpu: int | None, call: Callable[[], Any]) -> CallResult:
        """Announce and make a call, then send its result and return it."""
        try:
            value = self._caller.call(gpu, name, call)
        except DriverError as error:
            lost = not isinstance(error, ReadError)
            result = CallResult(call=name, gpu=gpu, error=error.reason, lost=lost)
        else:
            match value:
                case None:
                    result = CallResult(call=name, gpu=gpu)
                case str():
                    result = CallResult(call=name, gpu=gpu, text=value)
                case int():
                    result = CallResult(call=name, gpu=gpu, numbers=(value,))
                case _:
                    result = CallResult(call=name, gpu=gpu, numbers=tuple(value))
        self._caller.send(result)
        return result
