"""The process that reads the GPUs and posts what it sees, so that nothing else talks to a driver.

One thread per GPU: a call on a GPU whose context is being torn down takes up to 300 ms, one on a
broken GPU may never return, and neither may keep the others from being read.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from sentinel.birth import be_born
from sentinel.board import MAX_GPUS, Board
from sentinel.errors import WireError
from sentinel.gpu.driver import Driver, DriverError, DriverGoneError, GpuLostError, ReadError
from sentinel.gpu.processes import Identifier
from sentinel.gpu.watch import NodeWatch
from sentinel.messages import (
    GpuProcess,
    Inventory,
    Memory,
    ProbeMessage,
    ProbeSpec,
    Reading,
    Unavailable,
    Watch,
)
from sentinel.wire import MAX_DATAGRAM, decode, encode

__all__ = ["Outbox", "Reader", "Tools", "run"]

T = TypeVar("T")

#: A read that fails is tried so often, with this pause between, before it is a fault.
_TRIES = 3
_RETRY_PAUSE = 0.01

#: How often a held GPU is read after a burst of opens of its node, and for how long, in seconds.
_HURRIED_INTERVAL = 0.005
_HURRY = 2.0

#: How long after its memory last changed a held GPU is posted at every interval, in seconds, with
#: its processes read anew. A PID shows up to 60 ms after the first memory, and a child's exit is
#: complete some time after its memory is back; neither changes the memory again.
_SETTLING = 0.5


class Handle(Protocol):
    """A file descriptor on its way into a child, as multiprocessing.reduction.DupFd makes it."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


def run(spec: ProbeSpec, channel: socket.socket, parent: int, board: Handle) -> None:
    """Read GPUs until the other end of ``channel`` is closed; the target of a spawned process.

    It sends an Inventory and then Readings; or Unavailable, and ends with exit code 0 if that is
    so from the start, 1 if the driver goes away later. It takes Watch messages; before the first
    one it reads all GPUs at every poll.

    Args:
        spec: What to read, and how often.
        channel: A socket of whole messages (SOCK_SEQPACKET); when it is full, readings are left
            out and never waited for.
        parent: The PID of the supervisor.
        board: Where each driver call is announced before it is made.
    """
    be_born(parent, "sentinel: probe, reads GPUs")
    channel.settimeout(None)
    outbox = Outbox(channel)
    announcements = Board.attach(board.detach())
    driver = _driver(spec)
    try:
        inventory = _enumerate(driver, announcements)
    except DriverError as error:
        outbox.send_last(Unavailable(code=error.code, reason=error.reason))
        return
    outbox.send_last(inventory)
    tools = Tools(
        driver=driver,
        board=announcements,
        identifier=Identifier(),
        opens=NodeWatch(),
        outbox=outbox,
    )
    readers = [
        Reader(uuid=gpu.uuid, slot=slot, spec=spec, tools=tools)
        for slot, gpu in enumerate(inventory.gpus, start=1)
        if gpu.uuid not in spec.skip
    ]
    for reader in readers:
        threading.Thread(target=reader.run, name=reader.uuid, daemon=True).start()
    _follow_orders(channel, readers)


def _driver(spec: ProbeSpec) -> Driver:
    """Return the driver that ``spec`` asks for. Only the one that is used is ever imported."""
    if spec.simulation is None:
        from sentinel.gpu.nvml import NvmlDriver

        return NvmlDriver()
    from sentinel.gpu.simulated import SimulatedDriver
    from sentinel.simulation import Registry

    return SimulatedDriver(Registry(Path(spec.simulation)))


def _enumerate(driver: Driver, board: Board) -> Inventory:
    """Open the driver and return what it has, each call announced in the driver's own slot."""
    board.announce(0, "open")
    driver.open()
    board.announce(0, "version")
    version = driver.version()
    board.announce(0, "gpus")
    gpus = driver.gpus()
    board.finish(0)
    return Inventory(gpus=gpus[:MAX_GPUS], driver=version)


def _follow_orders(channel: socket.socket, readers: list[Reader]) -> None:
    """Pass on what the supervisor wants read, until it is gone."""
    while True:
        try:
            data = channel.recv(MAX_DATAGRAM)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        watch = decode(data, [Watch])
        for reader in readers:
            reader.order(wanted=reader.uuid in watch.gpus, held=reader.uuid in watch.held)


class Outbox:
    """The way to the supervisor, for all threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, message: ProbeMessage) -> bool:
        """Send ``message`` now or not at all; return whether it went.

        Raises:
            WireError: It is too large.
        """
        try:
            self._channel.send(encode(message), socket.MSG_DONTWAIT)
        except OSError:
            return False  # full, or the supervisor is gone, which the main thread hears of
        return True

    def send_last(self, message: ProbeMessage) -> None:
        """Send ``message``, waiting for room for at most a second."""
        if not self.send(message):
            select.select([], [self._channel], [], 1.0)
            self.send(message)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What all readers share."""

    driver: Driver
    board: Board
    identifier: Identifier
    opens: NodeWatch
    outbox: Outbox


class Reader:
    """Reads one GPU for ever: fully at every poll, its memory at every interval while held."""

    def __init__(self, *, uuid: str, slot: int, spec: ProbeSpec, tools: Tools) -> None:
        self.uuid = uuid
        self._slot = slot
        self._spec = spec
        self._driver = tools.driver
        self._board = tools.board
        self._identifier = tools.identifier
        self._opens = tools.opens
        self._outbox = tools.outbox
        # What others tell this thread: written whole, read whole.
        self._orders = (True, False)
        self._hurry_until = 0.0
        # A lock is the cheapest wait with a bound that Python has; whoever releases it wakes us.
        self._gate = threading.Lock()
        self._gate.acquire()
        # What is known, and what of it the supervisor has.
        self._processes: tuple[GpuProcess, ...] | None = None
        self._processes_at = 0.0
        self._exclusive: bool | None = None
        self._mig: bool | None = None
        self._faulty = False
        self._sent_used = -1
        self._owing = False
        self._settled_at = 0.0
        self._looked_at = 0.0

    # --- called by other threads

    def order(self, *, wanted: bool, held: bool) -> None:
        """Take the supervisor's wish; a change of it is answered by a full reading at once."""
        self._orders = (wanted, held)
        self._wake()

    def hurry(self) -> None:
        """Read every few milliseconds for a while, if the GPU is held."""
        now = time.monotonic()
        already, self._hurry_until = self._hurry_until, now + _HURRY
        if now >= already:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake, or about to be, and will look
            self._gate.release()

    # --- the thread

    def run(self) -> None:
        """Read until the process ends; the end of the driver is the end of the process."""
        try:
            self._run()
        except DriverGoneError as error:
            self._outbox.send_last(Unavailable(code=error.code, reason=error.reason))
        except BaseException:  # noqa: BLE001 - a GPU that nobody reads is worse than a new probe
            traceback.print_exc()
        os._exit(1)

    def _run(self) -> None:
        orders: tuple[bool, bool] | None = None
        next_poll = next_glance = 0.0
        self._watch_opens()
        while True:
            now = time.monotonic()
            if self._orders != orders:
                orders = self._orders
                next_poll = now
            wanted, held = orders
            if not wanted and not held:
                self._gate.acquire()
                continue
            if now >= next_poll:
                self._observe(self._read_fully)
                next_poll = _next_beat(now, self._spec.poll)
            elif held and not self._faulty and now >= next_glance:
                self._observe(self._glance)
            due = next_poll
            if held and not self._faulty:
                hurried = now < self._hurry_until
                interval = _HURRIED_INTERVAL if hurried else self._spec.watch_interval
                next_glance = _next_beat(now, min(interval, self._spec.watch_interval))
                due = min(due, next_glance)
            self._gate.acquire(timeout=max(0.0, due - time.monotonic()))

    def _watch_opens(self) -> None:
        """Let a CUDA program that opens the GPU's node make us hurry."""
        self._board.announce(self._slot, "node")
        node = self._driver.node(self.uuid)
        self._board.finish(self._slot)
        if node is not None:
            self._opens.add(node, self.hurry)

    def _observe(self, read: Callable[[float], None]) -> None:
        """Make a reading; say that the GPU is lost, or at fault when every try failed."""
        began = time.monotonic()
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_RETRY_PAUSE)
            try:
                read(time.monotonic())
            except GpuLostError as error:
                self._post_fault(began, error, lost=True)
                return
            except ReadError as error:
                failure = error
            else:
                self._faulty = False
                return
        self._post_fault(began, failure, lost=False)

    def _read_fully(self, at: float) -> None:
        """Read everything and post it, changed or not; new memory of a held GPU goes ahead."""
        memory = self._ask("memory", self._driver.memory)
        if self._orders[1] and memory.used != self._sent_used:
            self._settled_at = at + _SETTLING
            self._post(at, memory)
        self._read_processes(at)
        self._exclusive = self._ask("exclusive", self._driver.exclusive)
        self._mig = self._ask("mig", self._driver.mig)
        self._post(at, memory)

    def _glance(self, at: float) -> None:
        """Read the memory; where it moves, post it at once and look who it is."""
        memory = self._ask("memory", self._driver.memory)
        moved = memory.used != self._sent_used
        if moved:
            self._settled_at = at + _SETTLING
        elif not self._owing and at >= self._settled_at:
            return
        if moved or self._owing:
            self._post(at, memory)
        elif at - self._looked_at < 0.8 * self._spec.watch_interval:
            return  # in a hurry, it is only the memory that is read more often
        before = self._processes
        self._read_processes(at)
        if not moved or self._processes != before:
            self._post(at, memory)

    def _read_processes(self, at: float) -> None:
        self._looked_at = at
        processes_at = time.monotonic()
        listed = self._ask("processes", self._driver.processes)
        self._processes = self._identifier.identify(listed)
        self._processes_at = processes_at

    def _ask(self, call: str, ask: Callable[[str], T]) -> T:
        """Make a call of the driver, announced for as long as it takes."""
        self._board.announce(self._slot, call)
        try:
            return ask(self.uuid)
        finally:
            self._board.finish(self._slot)

    def _post(self, at: float, memory: Memory) -> None:
        """Post what is known; where there is no room for it, the next read posts again."""
        reading = Reading(
            uuid=self.uuid,
            at=at,
            memory=memory,
            processes=self._processes,
            processes_at=self._processes_at,
            exclusive=self._exclusive,
            mig=self._mig,
        )
        try:
            sent = self._outbox.send(reading)
        except WireError as error:
            self._post_fault(at, ReadError("too_large", str(error)), lost=False)
            return
        self._owing = not sent
        if sent:
            self._sent_used = memory.used

    def _post_fault(self, at: float, error: DriverError, *, lost: bool) -> None:
        """Post that nothing is known, and why; from now on only polls try again."""
        self._faulty = True
        self._sent_used = -1
        self._outbox.send(Reading(uuid=self.uuid, at=at, fault=str(error), lost=lost))


def _next_beat(now: float, interval: float) -> float:
    """Return the next multiple of ``interval``: all threads keep time without drift, together."""
    return (now // interval + 1) * interval
