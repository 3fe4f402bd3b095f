"""The process that reads the counters of all GPUs once and ends.

It is a process of its own because each call may hang for ever or crash. It announces each call on a
board, so that the reader of the board knows where it ended.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sentinel.host.gpus.simulation import Registry
from sentinel.host.processes.child_setup import InheritedFd, setup_child_process
from sentinel.probe import pci_inventory
from sentinel.probe.driver import DriverError, GpuLostError, ReadError
from sentinel.probe.nvml_counters import Announce, CountersDriver
from sentinel.probe.nvml_inspection import announced
from sentinel.probe.simulated_driver import SimulatedCounters
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import (
    Counters,
    CountersDone,
    CountersSpec,
    DriverFailed,
    PciInventory,
)
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls

#: The call that looks for GPUs that NVML does not list.
INVENTORY = "inventory"


class _CountingDriver(Protocol):
    """A driver, real or simulated, that counts; a GPU is named by its index."""

    def open(self) -> None:
        """Load and initialize it."""

    def version(self) -> str:
        """Return its version."""

    def count(self) -> int:
        """Count the GPUs."""

    def identity(self, index: int, driver: str, announce: Announce) -> Counters:
        """Read the UUID and the name of a GPU, or why that is not possible."""

    def read(self, identity: Counters, announce: Announce) -> Counters:
        """Read all counters of a GPU that has an identity."""


def run(spec: CountersSpec, channel: socket.socket, parent: int, board: InheritedFd) -> None:
    """Read all GPUs and send the counters of each, then CountersDone; for a spawned process.

    The identity of a GPU is sent first, so that a GPU on which a call hangs has a name.

    Args:
        spec: What to read.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each call is announced before it is made.
    """
    setup_child_process(parent, "sentinel: reads the counters once")
    channel.settimeout(None)
    calls = InflightCalls.attach(board.detach())

    def send(message: object) -> None:
        channel.sendall(encode(message))

    def announce_for(gpu: int | None) -> Announce:
        def announce(name: str, call: Callable[[], Any]) -> Any:
            with announced(calls, name, gpu):
                return call()

        return announce

    driver: _CountingDriver
    if spec.simulation is None:
        driver = CountersDriver()
    else:
        driver = SimulatedCounters(Registry(Path(spec.simulation)))
    announce = announce_for(None)
    try:
        announce("open", driver.open)
        version = announce("version", driver.version)
        count = announce("count", driver.count)
        listed = []
        for index in range(min(MAX_GPUS, count)):
            if index not in spec.skip:
                found = _read_gpu(driver, spec, version, index, announce_for(index), send)
                listed.append(found.pci_bus_id)
        if spec.simulation is None and not spec.skip and spec.uuids is None:
            missing = announce(INVENTORY, lambda: pci_inventory.addresses(spec, listed))
            send(PciInventory(addresses=missing))
    except DriverError as error:
        send(DriverFailed(reason=error.reason))
    send(CountersDone())


def _read_gpu(
    driver: _CountingDriver,
    spec: CountersSpec,
    version: str,
    index: int,
    announce: Announce,
    send: Callable[[object], None],
) -> Counters:
    """Read one GPU, and send its identity and then its counters."""
    found = driver.identity(index, version, announce)
    if found.uuid and spec.uuids is not None and found.uuid not in spec.uuids:
        return found
    if not found.uuid:
        send(found)
        return found
    send(found.unread("the driver failed before all was read"))
    try:
        found = driver.read(found, announce)
    except ReadError as error:
        found = found.unread(error.reason)
    except GpuLostError as error:
        found = replace(found, lost=error.reason)
    send(found)
    return found
