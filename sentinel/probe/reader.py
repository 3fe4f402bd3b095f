"""Read one GPU: all of it at every poll, and its memory all the time while it is held.

In two turns, because a call for the processes blocks for as long as somebody's context is made or
torn down, and nothing may keep the memory of a held GPU from being read: it tells of a newcomer
first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from sentinel.errors import WireError
from sentinel.probe.driver import Driver, DriverError, GpuLostError, ReadError
from sentinel.probe.process_info import Identifier
from sentinel.probe.publisher import Outbox
from sentinel.protocol.gpu import GpuProcess, Memory, Reading
from sentinel.protocol.inflight_calls import InflightCalls
from sentinel.protocol.probe import ProbeSpec
from sentinel.protocol.telemetry import Telemetry

T = TypeVar("T")

#: A read that fails is tried so often, with this pause between, before it is a fault.
TRIES = 3
RETRY_PAUSE = 0.01

#: How often a held GPU is read after a burst of opens of its node, and for how long, in seconds.
HURRIED_INTERVAL = 0.005
HURRY = 2.0

#: A step of the used memory by this or more is looked into: whose is it? In bytes. It is the slack
#: within which growth is nobody; the first steps of a context are smaller, and its PID comes later.
MEMORY_JUMP_BYTES = 2**20

#: For how long after a leap the processes are read at every interval, in seconds. A PID shows up to
#: 60 ms after the first memory, and a child's exit is complete some time after its memory is back;
#: neither changes the memory again.
SETTLING = 0.5

#: How long NVML's word on compute mode, MIG and displays holds, in seconds. To ask for MIG takes
#: 0.2 to 0.4 ms of CPU on an H200, more than all else, and people change none while they work.
MODES_HOLD = 5.0

#: How often a GPU is asked for all that it tells of itself, in seconds, where somebody wants that.
TELEMETRY_EVERY = 1.0


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What all readers share; ``wake`` lets somebody look at what is due."""

    driver: Driver
    inflight_calls: InflightCalls
    identifier: Identifier
    outbox: Outbox
    wake: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _Orders:
    """What the supervisor wants of a GPU; by its number two changes that cancel out are seen."""

    number: int
    wanted: bool
    held: bool


@dataclass(frozen=True, kw_only=True)
class _Modes:
    """What rarely changes on a GPU; ``None`` before the first look."""

    exclusive: bool | None = None
    mig: bool | None = None
    display: bool | None = None


@dataclass(frozen=True, kw_only=True)
class _Load:
    """How the GPU does; ``None`` where it does not tell, or nobody asked."""

    at: float = 0.0
    utilization: float | None = None
    temperature: int | None = None
    power: float | None = None
    sm_clock: int | None = None


class ReaderTurn:
    """One thing to do again and again: ``read`` takes the time and returns when to come again."""

    def __init__(self, read: Callable[[float], float]) -> None:
        self.due = 0.0
        self._read = read
        self._asked = False

    def ask(self) -> None:
        """Have it taken at once; once more if it is just being taken."""
        self._asked = True
        self.due = 0.0

    def take(self) -> None:
        """Do it, and say when to come again."""
        self._asked = False
        self.due = self._read(time.monotonic())
        if self._asked:
            self.due = 0.0


class Reader:
    """Reads one GPU and posts what it sees.

    Args:
        uuid: The GPU.
        slots: The places on the board of its two turns: the glance's and the poll's.
        spec: How often to read it.
        tools: What it shares with the readers of the other GPUs.

    Attributes:
        glance: The turn that reads the memory at every interval while the GPU is held.
        poll: The turn that reads everything at every poll, and the processes when memory leaps.
    """

    def __init__(self, *, uuid: str, slots: tuple[int, int], spec: ProbeSpec, tools: Tools) -> None:
        self.uuid = uuid
        self.poll_memory = ReaderTurn(self._glance)
        self.poll = ReaderTurn(self._poll)
        self._glance_slot, self._poll_slot = slots
        self._spec = spec
        self._tools = tools
        # What others say: each is written whole and read whole.
        self._orders = _Orders(number=0, wanted=uuid not in spec.skip, held=False)
        self._hurry_until = 0.0
        self._load_wanted = self._telemetry_wanted = False
        # What is known: each is one value, with the time when its reading began.
        self._memory: tuple[float, float, Memory] | None = None
        self._processes: tuple[float, tuple[GpuProcess, ...]] | None = None
        self._modes = _Modes()
        self._load = _Load()
        self._computing: tuple[int, ...] | None = None
        self._faulty = False
        # The glance's own, and the poll's own.
        self._glance_failures = self._poll_failures = 0
        self._settled_at = 0.0
        self._followed: _Orders | None = None
        self._next_poll = self._modes_until = self._tell_at = 0.0
        self._look = False
        # What of it the supervisor has; guarded, since both turns post.
        self._posting = threading.Lock()
        self._sent_used = -1
        self._owing = False

    def order(
        self, *, wanted: bool, held: bool, load: bool = False, telemetry: bool = False
    ) -> None:
        """Take the supervisor's wish; a change of it is answered by a full reading at once.

        But for the wish to know the ``load`` and the ``telemetry``, which may wait for the next
        poll.
        """
        had, self._load_wanted, self._telemetry_wanted = self._orders, load, telemetry
        if (had.wanted, had.held) != (wanted, held):
            self._orders = _Orders(number=had.number + 1, wanted=wanted, held=held)
        self.poll_memory.ask()
        self.poll.ask()

    def boost(self) -> bool:
        """Read every few milliseconds for a while, if the GPU is held; return whether it is new."""
        now = time.monotonic()
        already, self._hurry_until = now < self._hurry_until, now + HURRY
        if not already:
            self.poll_memory.ask()
        return not already

    # --- the glance --------------------------------------------------------------------------

    def _glance(self, now: float) -> float:
        """Read the memory of a held GPU; where it moved, post it at once and have it looked into.

        Raises:
            DriverGoneError: The driver as a whole is gone.
        """
        if not self._orders.held or self._faulty:
            return math.inf
        try:
            memory = self._read_memory(self._glance_slot)
        except GpuLostError as error:
            self._post_fault(now, error, lost=True)
            return math.inf
        except ReadError as error:
            self._glance_failures += 1
            if self._glance_failures < TRIES:
                return now + RETRY_PAUSE
            self._glance_failures = 0
            self._post_fault(now, error, lost=False)
            return math.inf
        self._glance_failures = 0
        step = abs(memory.used - self._sent_used)
        if step >= MEMORY_JUMP_BYTES:
            self._settled_at = now + SETTLING
        if (step or self._owing) and self._processes is not None:
            self._post()  # not before the first look at the processes: that would say UNKNOWN
        if now < self._settled_at:
            self._look = True
            self.poll.ask()
            self._tools.wake()
        interval = self._spec.watch_interval
        if now < self._hurry_until:
            interval = min(interval, HURRIED_INTERVAL)
        return _next_beat(now, interval)

    # --- the poll ----------------------------------------------------------------------------

    def _poll(self, now: float) -> float:
        """Read everything when the time has come, or just the processes when a glance asked.

        Raises:
            DriverGoneError: The driver as a whole is gone.
        """
        orders = self._orders
        if orders != self._followed:
            self._followed, self._next_poll, self._modes_until = orders, now, now
        if not (orders.wanted or orders.held):
            return math.inf
        due, look, self._look = now >= self._next_poll, self._look, False
        if not due and not (look and not self._faulty):
            return self._next_poll
        try:
            if due:
                self._read_fully(now)
            else:
                # The memory first, and together: what the list then leaves unexplained was there.
                self._read_memory(self._poll_slot)
                self._read_processes()
                self._post()
        except GpuLostError as error:
            self._post_fault(now, error, lost=True)
        except ReadError as error:
            self._poll_failures += 1
            if self._poll_failures < TRIES:
                self._look = True
                return now + RETRY_PAUSE
            self._post_fault(now, error, lost=False)
        else:
            self._recover(full=due)
        self._poll_failures = 0
        if due:
            self._next_poll = _next_beat(now, self._spec.poll)
        return self._next_poll

    def _read_fully(self, now: float) -> None:
        """Read what is due and post it, changed or not; a held GPU's memory is the glance's."""
        if self._memory is None or self._faulty or not self._orders.held:
            self._read_memory(self._poll_slot)
        self._read_processes()
        if now >= self._modes_until:
            self._modes = self._read_modes()
            self._modes_until = now + MODES_HOLD
        self._load = self._read_load()
        self._computing = None
        if self._spec.computing:
            ask_who = self._tools.driver.computing
            self._computing = self._ask(self._poll_slot, "computing", ask_who)
        telemetry = None
        if self._telemetry_wanted and now >= self._tell_at:
            self._tell_at = now + TELEMETRY_EVERY - self._spec.poll / 2  # polls keep time roughly
            telemetry = self._ask_politely("telemetry", self._tools.driver.telemetry)
            if telemetry is not None:
                telemetry = replace(telemetry, power_w=self._load.power)
        self._post(telemetry)

    def _read_modes(self) -> _Modes:
        """Return what rarely changes."""
        driver, slot = self._tools.driver, self._poll_slot
        return _Modes(
            exclusive=self._ask(slot, "exclusive", driver.exclusive),
            mig=self._ask(slot, "mig", driver.mig),
            display=self._ask(slot, "display", driver.display),
        )

    def _read_load(self) -> _Load:
        """Return how the GPU does.

        What nobody decides about a newcomer by is no reason for a fault: where it cannot be read,
        it is not known.
        """
        driver, slot, now = self._tools.driver, self._poll_slot, time.monotonic()
        utilization = None
        if self._load_wanted or (self._spec.utilization and not self._orders.held):
            # Where nothing is held, somebody may be seen by it alone; to a pace it is a figure.
            held = self._orders.held
            if held:
                utilization = self._ask_politely("utilization", driver.utilization)
            else:
                utilization = self._ask(slot, "utilization", driver.utilization)
        return _Load(
            at=now,
            utilization=utilization,
            temperature=self._ask_politely("temperature", driver.temperature),
            power=self._ask_politely("power", driver.power),
            sm_clock=self._ask_politely("sm_clock", driver.sm_clock),
        )

    def _ask_politely(self, call: str, ask: Callable[[str], T | None]) -> T | None:
        """Make a call whose failure is just not to know."""
        try:
            return self._ask(self._poll_slot, call, ask)
        except ReadError:
            return None

    def _recover(self, *, full: bool) -> None:
        """Let the glances go on after a full reading without a fault."""
        if full and self._faulty:
            self._faulty = False
            self.poll_memory.ask()
            self._tools.wake()

    # --- both --------------------------------------------------------------------------------

    def _read_memory(self, slot: int) -> Memory:
        began = time.monotonic()
        memory = self._ask(slot, "memory", self._tools.driver.memory)
        if self._memory is None or self._memory[0] < began:
            self._memory = (began, time.monotonic() - began, memory)
        return memory

    def _read_processes(self) -> None:
        began = time.monotonic()
        listed = self._ask(self._poll_slot, "processes", self._tools.driver.processes)
        self._processes = (began, self._tools.identifier.identify(listed))

    def _ask(self, slot: int, call: str, ask: Callable[[str], T]) -> T:
        """Make a call of the driver, announced for as long as it takes."""
        self._tools.inflight_calls.announce(slot, call)
        try:
            return ask(self.uuid)
        finally:
            self._tools.inflight_calls.finish(slot)

    def _post(self, telemetry: Telemetry | None = None) -> None:
        """Post what is known; where there is no room for it, the next glance or poll posts again.

        Raises:
            ReadError: It is more than a message can hold, and to cut it short would be a lie.
        """
        with self._posting:
            if self._memory is None or self._processes is None:
                return
            at, took, memory = self._memory
            processes_at, processes = self._processes
            reading = Reading(
                uuid=self.uuid,
                at=at,
                took=took,
                memory=memory,
                processes=processes,
                processes_at=processes_at,
                exclusive=self._modes.exclusive,
                mig=self._modes.mig,
                display=self._modes.display,
                utilization=self._load.utilization,
                computing=self._computing,
                temperature=self._load.temperature,
                power=self._load.power,
                sm_clock=self._load.sm_clock,
                load_at=self._load.at,
                telemetry=telemetry,
            )
            try:
                sent = self._tools.outbox.send(reading)
            except WireError as error:
                raise ReadError("too_large", str(error)) from error
            self._owing = not sent
            if sent:
                self._sent_used = memory.used

    def _post_fault(self, now: float, error: DriverError, *, lost: bool) -> None:
        """Post that nothing is known, and why; from now on only polls try again."""
        with self._posting:
            self._faulty = True
            self._modes_until = 0.0
            self._sent_used = -1
            reading = Reading(uuid=self.uuid, at=now, fault=str(error), lost=lost)
            self._tools.outbox.send(reading)


def _next_beat(now: float, interval: float) -> float:
    """Return the next multiple of ``interval``: all GPUs keep time together, without drift."""
    return (now // interval + 1) * interval
