"""The probe process: it reads the GPUs and publishes readings.

Other users of the driver are stressors, each on its own GPU, and short-lived processes of tools.

A call on a GPU whose context is being torn down takes up to 300 ms, and one on a broken GPU may
never return. Neither may delay the other GPUs: see scheduler.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
import time
import traceback
from dataclasses import replace

from sentinel.errors import ChildExitCode
from sentinel.host.process_setup import (
    PROBE,
    STANDBY,
    InheritedFd,
    explain_exhaustion,
    give_back,
    set_process_title,
    setup_child_process,
)
from sentinel.probe.driver import Driver, DriverError, DriverGoneError
from sentinel.probe.package_driver import load_driver
from sentinel.probe.process_info import NodeWatch, ProcessIdentifier
from sentinel.probe.reader import Publisher, Reader, SharedServices
from sentinel.probe.scheduler import ReadScheduler
from sentinel.probe.xids import XidWatch
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.probe import (
    Activate,
    Inventory,
    Listed,
    ProbeFailed,
    ProbeSpec,
    Standby,
    Unavailable,
    Watch,
)
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, Stamps, slot_order

_TITLE = "sentinel: probe, reads GPUs"
_SPARE_TITLE = "sentinel: spare probe, replaces the probe when that ends"

#: The interval of the looks at the order of the GPUs, in seconds.
ORDER_EVERY_S = 10.0


def run(
    spec: ProbeSpec,
    channel: socket.socket,
    parent: int,
    inflight_calls: InheritedFd,
    stamps: InheritedFd,
) -> None:
    """Read GPUs until the other end of ``channel`` is closed; the target of a spawned process.

    It sends an Inventory and then Readings. A spare one sends Standby and waits for Activate before
    that, since loading the driver takes most of a start. Without a driver it sends Unavailable and
    ends, with an exit code of its own: any other shows that a call ended the process. It receives
    Watch messages; before the first one it reads all GPUs at every poll, except for those to be
    skipped, which it does not call until a Watch names them. It posts the XIDs of GPUs that a Watch
    has named. A known GPU that is missing is read like the others: its readings report it as lost
    until it is back.

    Args:
        spec: What to read, and how often.
        channel: A socket of whole messages (SOCK_SEQPACKET); when it is full, readings are dropped.
        parent: The PID of the supervisor.
        inflight_calls: The board on which each driver call is announced before it is made.
        stamps: Shared memory for the time at which the memory of each GPU was last read.
    """
    setup_child_process(parent, *((_SPARE_TITLE, STANDBY) if spec.spare else (_TITLE, PROBE)))
    # A scheduler that ends a job signals all of its processes. The supervisor then ends the
    # stressors, and waits until it sees their memory free, which takes 5 s without the probe.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel.settimeout(None)
    publisher = Publisher(channel)
    try:
        _read(spec, channel, publisher, inflight_calls, stamps)
    except Exception as error:  # noqa: BLE001 - as in the threads, which may be refused, too
        _end(publisher, error)


def _read(
    spec: ProbeSpec,
    channel: socket.socket,
    publisher: Publisher,
    inflight_calls: InheritedFd,
    stamps: InheritedFd,
) -> None:
    """Open the driver and read GPUs; return only without a driver."""
    announcements = InflightCalls.attach(inflight_calls.detach())
    try:
        announcements.announce(0, "import")
        driver = load_driver(spec.driver)
        announcements.announce(0, "open")
        driver.open()
        announcements.finish(0)
        if spec.spare:
            give_back()
            publisher.send_last(Standby())
            spec = _await_activation(channel, spec)
        inventory = _enumerate(driver, spec.skip, announcements)
        if not spec.spare:
            give_back()
    except DriverError as error:
        publisher.send_last(Unavailable(code=error.code, reason=error.reason))
        return
    publisher.send_last(inventory)
    scheduler = ReadScheduler(lambda error: _end(publisher, error))
    order = _Order(driver, publisher, inventory)
    services = SharedServices(
        driver=driver,
        inflight_calls=announcements,
        identifier=ProcessIdentifier(),
        publisher=publisher,
        stamps=Stamps(stamps.detach(), MAX_GPUS),
        wake=scheduler.wake,
        # In a thread: it calls other GPUs, too.
        list_again=lambda: threading.Thread(target=order.read, name="list", daemon=True).start(),
    )
    readers = [
        Reader(uuid=uuid, place=place, spec=spec, services=services)
        for place, uuid in enumerate(slot_order([gpu.uuid for gpu in inventory.gpus], spec.known))
    ]
    # Memory jobs come first and side by side, as they must never wait for a full poll.
    scheduler.start(
        [*(reader.poll_memory for reader in readers), *(reader.poll for reader in readers)]
    )
    # In a thread: the driver call that returns a device node may hang like any other.
    watching = (driver, [r for r in readers if r.uuid not in spec.skip], scheduler)
    threading.Thread(target=_watch_nodes, args=watching, name="nodes", daemon=True).start()
    if not spec.skip:  # it calls every GPU
        threading.Thread(target=order.follow, name="order", daemon=True).start()
    xids = XidWatch(driver, publisher)
    xids.start()
    _follow_watches(channel, readers, scheduler, xids)


def _enumerate(driver: Driver, skip: tuple[str, ...], inflight_calls: InflightCalls) -> Inventory:
    """List the GPUs, announcing each call in the driver's own slot."""
    inflight_calls.announce(0, "version")
    version = driver.version()
    inflight_calls.announce(0, "gpus")
    gpus = driver.gpus(skip)
    inflight_calls.finish(0)
    return Inventory(gpus=gpus[:MAX_GPUS], driver=version)


class _Order:
    """The indices that the driver has, which a loss changes, and cards that come or move.

    Args:
        driver: The driver.
        publisher: Sends them when they have changed.
        inventory: Those of the start.
    """

    def __init__(self, driver: Driver, publisher: Publisher, inventory: Inventory) -> None:
        self._driver = driver
        self._publisher = publisher
        self._indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}

    def read(self) -> None:
        """Send the indices if they are not those that were sent last."""
        with contextlib.suppress(Exception):  # also of a driver of one's own: the last ones stay
            indices = {gpu.uuid: gpu.index for gpu in self._driver.gpus(())}
            if indices != self._indices:
                self._indices = indices
                self._publisher.send_last(Listed(indices=indices))

    def follow(self) -> None:
        """Read them from time to time."""
        while True:
            time.sleep(ORDER_EVERY_S)
            self.read()


def _await_activation(channel: socket.socket, spec: ProbeSpec) -> ProbeSpec:
    """Wait until this spare probe becomes the probe; return its specification."""
    data = channel.recv(MAX_DATAGRAM_BYTES)
    if not data:
        os._exit(ChildExitCode.ORPHANED)
    activate = decode(data, [Activate])
    set_process_title(_TITLE, PROBE)
    return replace(spec, skip=activate.skip, known=activate.known)


def _watch_nodes(driver: Driver, readers: list[Reader], scheduler: ReadScheduler) -> None:
    """Boost the reader of a GPU when a CUDA program opens its device node."""
    opens = NodeWatch()

    def boost(reader: Reader) -> None:
        if reader.boost():
            scheduler.wake()

    for reader in readers:
        node = driver.node(reader.uuid)
        if node is not None:
            opens.add(node, functools.partial(boost, reader))


def _end(publisher: Publisher, error: BaseException) -> None:
    """End the process: only a new one can reload the driver and read every GPU reliably."""
    if isinstance(error, DriverGoneError):
        publisher.send_last(Unavailable(code=error.code, reason=error.reason))
    elif (reason := explain_exhaustion(error)) is not None:
        publisher.send_last(ProbeFailed(reason=reason))
    else:
        traceback.print_exception(error)
    os._exit(ChildExitCode.FAILED)


def _follow_watches(
    channel: socket.socket, readers: list[Reader], scheduler: ReadScheduler, xids: XidWatch
) -> None:
    """Apply the supervisor's Watch messages until it is gone."""
    while True:
        try:
            data = channel.recv(MAX_DATAGRAM_BYTES)
        except OSError:
            data = b""
        if not data:
            os._exit(ChildExitCode.ORPHANED)
        watch = decode(data, [Watch])
        for reader in readers:
            reader.configure(watch)
        scheduler.wake()
        xids.want(watch.gpus)
