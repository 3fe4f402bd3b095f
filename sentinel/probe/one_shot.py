"""The process that makes each call to the driver once and ends: for the counters and ``doctor``.

It is a process of its own because each call may hang for ever or crash. It announces its calls on a
board, so that the reader of the board knows where it ended. The counters come with a list of the
NVIDIA GPUs on the PCI bus, to find those that NVML does not list.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.host.process_setup import InheritedFd, setup_child_process
from sentinel.host.simulation import Registry
from sentinel.probe.driver import DriverError, GpuLostError, ReadError
from sentinel.probe.nvml_calls import ACCESS_CALLS, CALLS_BY_NAME
from sentinel.probe.nvml_counters import OneShotDriver
from sentinel.probe.simulated_driver import SimulatedCounters
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import (
    Counters,
    CountersDone,
    CountersSpec,
    DriverFailed,
    DriverVersion,
    PciInventory,
)
from sentinel.protocol.gpu_names import device_of
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, slots_of

#: NVML's name of each call by its name on the board, for people who search for what hung.
FUNCTIONS = {name: call.function for name, call in {**CALLS_BY_NAME, **ACCESS_CALLS}.items()} | {
    "open": "nvmlInit",
    "version": "nvmlSystemGetDriverVersion",
    "cuda": "nvmlSystemGetCudaDriverVersion",
    "count": "nvmlDeviceGetCount",
    "handle": "nvmlDeviceGetHandleByIndex",
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "computing": "nvmlDeviceGetComputeRunningProcesses",
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

#: The call that looks for GPUs that NVML does not list.
INVENTORY = "inventory"

_VENDOR = "0x10de"
#: VGA and 3D controllers.
_CLASSES = ("0x0300", "0x0302")


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
        known = DriverVersion(version=version, cuda=announce("cuda", driver.cuda))
        caller.send(known)
        count = announce("count", driver.count)
        caller.send(replace(known, count=min(MAX_GPUS, count)))
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
            if spec.access:
                caller.send(driver.access(index, announce))
        except ReadError as error:
            found = found.unread(error.reason)
        except GpuLostError as error:
            found = replace(found, lost=error.reason)
    caller.send(found)
    return found


def pci_addresses(spec: CountersSpec, listed: Collection[str | None]) -> tuple[str, ...]:
    """List the GPUs that NVML should list, by their addresses in NVML's form.

    A GPU that another driver uses, or that is hidden from this container or job, is left out.

    Args:
        spec: Where the kernel and the driver list the devices.
        listed: The addresses that NVML lists. Only other devices are opened, which may take long.
    """
    known = {device_of(address) for address in listed if address is not None}
    return tuple(
        address
        for folder, address in _pci_gpus(Path(spec.sysfs))
        if device_of(address) in known or not _is_hidden(folder, spec)
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
