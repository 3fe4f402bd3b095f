"""The process that reads the GPUs and posts what it sees, so that nothing else talks to a driver.

A call on a GPU whose context is being torn down takes up to 300 ms, one on a broken GPU may never
return, and neither may keep the others from being read: see rounds.py.
"""

from __future__ import annotations

import functools
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
from sentinel.gpu.rounds import Rounds
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

#: How long NVML's word on compute mode and MIG holds, in seconds. To ask for MIG takes 0.4 ms of
#: CPU on an H200, eight times as much as all else, and people change neither while they work.
_MODES_HOLD = 5.0

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
    one it reads all GPUs at every poll, but for those to be skipped: no call is made for them
    until a Watch names them.

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
        inventory = _enumerate(driver, spec.skip, announcements)
    except DriverError as error:
        outbox.send_last(Unavailable(code=error.code, reason=error.reason))
        return
    outbox.send_last(inventory)
    tools = Tools(driver=driver, board=announcements, identifier=Identifier(), outbox=outbox)
    readers = [
        Reader(uuid=gpu.uuid, slot=slot, spec=spec, tools=tools)
        for slot, gpu in enumerate(inventory.gpus, start=1)
    ]
    rounds = Rounds(readers, lambda error: _give_up(outbox, error))
    rounds.start()
    # In a thread, since to ask a driver for a node is a call that may hang like any other.
    watching = (driver, [r for r in readers if r.uuid not in spec.skip], rounds)
    threading.Thread(target=_watch_nodes, args=watching, name="nodes", daemon=True).start()
    _follow_orders(channel, readers, rounds)


def _driver(spec: ProbeSpec) -> Driver:
    """Return the driver that ``spec`` asks for. Only the one that is used is ever imported."""
    if spec.simulation is None:
        from sentinel.gpu.nvml import NvmlDriver

        return NvmlDriver()
    from sentinel.gpu.simulated import SimulatedDriver
    from sentinel.simulation import Registry

    return SimulatedDriver(Registry(Path(spec.simulation)))


def _enumerate(driver: Driver, skip: tuple[str, ...], board: Board) -> Inventory:
    """Open the driver and return what it has, each call announced in the driver's own slot."""
    board.announce(0, "open")
    driver.open()
    board.announce(0, "version")
    version = driver.version()
    board.announce(0, "gpus")
    gpus = driver.gpus(skip)
    board.finish(0)
    return Inventory(gpus=gpus[:MAX_GPUS], driver=version)


def _watch_nodes(driver: Driver, readers: list[Reader], rounds: Rounds) -> None:
    """Let every CUDA program that opens a GPU's node make its reader hurry."""
    opens = NodeWatch()

    def hurry(reader: Reader) -> None:
        if reader.hurry():
            rounds.wake()

    for reader in readers:
        node = driver.node(reader.uuid)
        if node is not None:
            opens.add(node, functools.partial(hurry, reader))


def _give_up(outbox: Outbox, error: BaseException) -> None:
    """End the process: only a new one can load a driver anew, or be trusted to read every GPU."""
    if isinstance(error, DriverGoneError):
        outbox.send_last(Unavailable(code=error.code, reason=error.reason))
    else:
        traceback.print_exception(error)
    os._exit(1)


def _follow_orders(channel: socket.socket, readers: list[Reader], rounds: Rounds) -> None:
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
        rounds.wake()


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
    outbox: Outbox


class Reader:
    """Reads one GPU whenever it is due: all at every poll, its memory at every interval if held.

    Args:
        uuid: The GPU.
        slot: Its place on the board.
        spec: How often to read it.
        tools: What it shares with the readers of the other GPUs.
    """

    def __init__(self, *, uuid: str, slot: int, spec: ProbeSpec, tools: Tools) -> None:
        self.uuid = uuid
        self.due = 0.0
        self._slot = slot
        self._spec = spec
        self._driver = tools.driver
        self._board = tools.board
        self._identifier = tools.identifier
        self._outbox = tools.outbox
        # What others say: each is written whole and read whole.
        self._orders = (uuid not in spec.skip, False)
        self._hurry_until = 0.0
        # What is known, and what of it the supervisor has.
        self._followed: tuple[bool, bool] | None = None
        self._next_poll = 0.0
        self._processes: tuple[GpuProcess, ...] | None = None
        self._processes_at = 0.0
        self._exclusive: bool | None = None
        self._mig: bool | None = None
        self._modes_until = 0.0
        self._failures = 0
        self._faulty = False
        self._took = 0.0
        self._sent_used = -1
        self._owing = False
        self._settled_at = 0.0
        self._looked_at = 0.0

    def order(self, *, wanted: bool, held: bool) -> None:
        """Take the supervisor's wish; a change of it is answered by a full reading at once."""
        self._orders = (wanted, held)
        self.due = 0.0

    def hurry(self) -> bool:
        """Read every few milliseconds for a while, if the GPU is held; return whether it is new."""
        now = time.monotonic()
        already, self._hurry_until = now < self._hurry_until, now + _HURRY
        if not already:
            self.due = 0.0
        return not already

    def take(self) -> None:
        """Read what is due, and say when to come again.

        Raises:
            DriverGoneError: The driver as a whole is gone.
        """
        now = time.monotonic()
        orders = self._orders
        if orders != self._followed:
            self._followed, self._next_poll, self._modes_until = orders, now, now
        if self._try(now, orders):
            self.due = self._next_due(now, orders)
        else:
            self.due = now + _RETRY_PAUSE
        if self._orders != orders:  # they changed while we read
            self.due = 0.0

    def _try(self, now: float, orders: tuple[bool, bool]) -> bool:
        """Make the reading that is due; return ``False`` if it failed and is to be tried again."""
        wanted, held = orders
        polls = now >= self._next_poll
        try:
            if (wanted or held) and polls:
                self._read_fully(now)
            elif held and not self._faulty:
                self._glance(now)
        except GpuLostError as error:
            self._post_fault(now, error, lost=True)
        except ReadError as error:
            self._failures += 1
            if self._failures < _TRIES:
                return False
            self._post_fault(now, error, lost=False)
        else:
            self._faulty = self._faulty and not polls
        self._failures = 0
        if polls:
            self._next_poll = _next_beat(now, self._spec.poll)
        return True

    def _next_due(self, now: float, orders: tuple[bool, bool]) -> float:
        """Return when to read again: the next poll, or the next interval of a held GPU."""
        wanted, held = orders
        if not wanted and not held:
            return float("inf")
        if not held or self._faulty:
            return self._next_poll
        interval = self._spec.watch_interval
        if now < self._hurry_until:
            interval = min(interval, _HURRIED_INTERVAL)
        return min(self._next_poll, _next_beat(now, interval))

    def _read_fully(self, at: float) -> None:
        """Read everything and post it, changed or not; new memory of a held GPU goes ahead."""
        memory = self._read_memory()
        # Not before the first look at the processes: a reading without them says UNKNOWN.
        if self._orders[1] and self._processes is not None and memory.used != self._sent_used:
            self._settled_at = at + _SETTLING
            self._post(at, memory)
        self._read_processes(at)
        if at >= self._modes_until:
            self._exclusive = self._ask("exclusive", self._driver.exclusive)
            self._mig = self._ask("mig", self._driver.mig)
            self._modes_until = at + _MODES_HOLD
        self._post(at, memory)

    def _glance(self, at: float) -> None:
        """Read the memory; where it moves, post it at once and look who it is."""
        memory = self._read_memory()
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

    def _read_memory(self) -> Memory:
        before = time.monotonic()
        memory = self._ask("memory", self._driver.memory)
        self._took = time.monotonic() - before
        return memory

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
        """Post what is known; where there is no room for it, the next read posts again.

        Raises:
            ReadError: It is more than a message can hold, and to cut it short would be a lie.
        """
        reading = Reading(
            uuid=self.uuid,
            at=at,
            took=self._took,
            memory=memory,
            processes=self._processes,
            processes_at=self._processes_at,
            exclusive=self._exclusive,
            mig=self._mig,
        )
        try:
            sent = self._outbox.send(reading)
        except WireError as error:
            raise ReadError("too_large", str(error)) from error
        self._owing = not sent
        if sent:
            self._sent_used = memory.used

    def _post_fault(self, at: float, error: DriverError, *, lost: bool) -> None:
        """Post that nothing is known, and why; from now on only polls try again."""
        self._faulty = True
        self._modes_until = 0.0
        self._sent_used = -1
        self._outbox.send(Reading(uuid=self.uuid, at=at, fault=str(error), lost=lost))


def _next_beat(now: float, interval: float) -> float:
    """Return the next multiple of ``interval``: all GPUs keep time together, without drift."""
    return (now // interval + 1) * interval
