"""The process that reads the GPUs and posts what it sees, so that nothing else talks to a driver.

A call on a GPU whose context is being torn down takes up to 300 ms, one on a broken GPU may never
return, and neither may keep the others from being read: see rounds.py.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import traceback
from typing import Protocol

from sentinel.host.child_setup import setup_child_process
from sentinel.probe.device_watch import NodeWatch
from sentinel.probe.driver import Driver, DriverError, DriverGoneError
from sentinel.probe.process_info import Identifier
from sentinel.probe.publisher import Outbox
from sentinel.probe.reader import Reader, Tools
from sentinel.probe.scheduler import ReadScheduler
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.inflight_calls import MAX_GPUS, InflightCalls, places, slots_of
from sentinel.protocol.probe import Inventory, ProbeSpec, Unavailable, Watch


class Handle(Protocol):
    """A file descriptor on its way into a child, as multiprocessing.reduction.DupFd makes it."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


def run(spec: ProbeSpec, channel: socket.socket, parent: int, inflight_calls: Handle) -> None:
    """Read GPUs until the other end of ``channel`` is closed; the target of a spawned process.

    It sends an Inventory and then Readings; or Unavailable, and ends with exit code 0 if that is
    so from the start, 1 if the driver goes away later. It takes Watch messages; before the first
    one it reads all GPUs at every poll, but for those to be skipped: no call is made for them
    until a Watch names them. A GPU that was known and is not there is read like the others: its
    readings say that it is gone until it is back.

    Args:
        spec: What to read, and how often.
        channel: A socket of whole messages (SOCK_SEQPACKET); when it is full, readings are left
            out and never waited for.
        parent: The PID of the supervisor.
        inflight_calls: Where each driver call is announced before it is made.
    """
    setup_child_process(parent, "sentinel: probe, reads GPUs")
    channel.settimeout(None)
    outbox = Outbox(channel)
    announcements = InflightCalls.attach(inflight_calls.detach())
    driver = _driver(spec)
    try:
        inventory = _enumerate(driver, spec.skip, announcements)
    except DriverError as error:
        outbox.send_last(Unavailable(code=error.code, reason=error.reason))
        return
    outbox.send_last(inventory)
    scheduler = ReadScheduler(lambda error: _give_up(outbox, error))
    tools = Tools(
        driver=driver,
        inflight_calls=announcements,
        identifier=Identifier(),
        outbox=outbox,
        wake=scheduler.wake,
    )
    readers = [
        Reader(uuid=uuid, slots=slots_of(place), spec=spec, tools=tools)
        for place, uuid in enumerate(places([gpu.uuid for gpu in inventory.gpus], spec.known))
    ]
    # All glances come first, and one after the other: they must never wait for a poll.
    scheduler.start(
        [*(reader.poll_memory for reader in readers), *(reader.poll for reader in readers)]
    )
    # In a thread, since to ask a driver for a node is a call that may hang like any other.
    watching = (driver, [r for r in readers if r.uuid not in spec.skip], scheduler)
    threading.Thread(target=_watch_nodes, args=watching, name="nodes", daemon=True).start()
    _follow_orders(channel, readers, scheduler)


def _driver(spec: ProbeSpec) -> Driver:
    """Return the driver that ``spec`` asks for. Only what is used is ever imported."""
    if spec.simulation is None:
        from sentinel.probe.nvml.driver import NvmlDriver

        return NvmlDriver()
    from pathlib import Path

    from sentinel.host.simulation import Registry
    from sentinel.probe.simulated_driver import SimulatedDriver

    return SimulatedDriver(Registry(Path(spec.simulation)))


def _enumerate(driver: Driver, skip: tuple[str, ...], inflight_calls: InflightCalls) -> Inventory:
    """Open the driver and return what it has, each call announced in the driver's own slot."""
    inflight_calls.announce(0, "open")
    driver.open()
    inflight_calls.announce(0, "version")
    version = driver.version()
    inflight_calls.announce(0, "gpus")
    gpus = driver.gpus(skip)
    inflight_calls.finish(0)
    return Inventory(gpus=gpus[:MAX_GPUS], driver=version)


def _watch_nodes(driver: Driver, readers: list[Reader], scheduler: ReadScheduler) -> None:
    """Let every CUDA program that opens a GPU's node make its reader hurry."""
    opens = NodeWatch()

    def boost(reader: Reader) -> None:
        if reader.boost():
            scheduler.wake()

    for reader in readers:
        node = driver.node(reader.uuid)
        if node is not None:
            opens.add(node, functools.partial(boost, reader))


def _give_up(outbox: Outbox, error: BaseException) -> None:
    """End the process: only a new one can load a driver anew, or be trusted to read every GPU."""
    if isinstance(error, DriverGoneError):
        outbox.send_last(Unavailable(code=error.code, reason=error.reason))
    else:
        traceback.print_exception(error)
    os._exit(1)


def _follow_orders(channel: socket.socket, readers: list[Reader], scheduler: ReadScheduler) -> None:
    """Pass on what the supervisor wants read, until it is gone."""
    while True:
        try:
            data = channel.recv(MAX_DATAGRAM_BYTES)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        watch = decode(data, [Watch])
        for reader in readers:
            reader.order(
                wanted=reader.uuid in watch.gpus,
                held=reader.uuid in watch.held,
                load=reader.uuid in watch.load,
                telemetry=watch.telemetry,
            )
        scheduler.wake()
