"""Read one GPU: everything at every poll, and its memory much more often while it is held.

These are two jobs, because a call for the processes blocks while a context is created or torn down.
The memory of a held GPU must be read meanwhile: it shows a newcomer first. Readings are sent to the
supervisor without waiting for room.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from sentinel.errors import WireError
from sentinel.probe.driver import (
    Driver,
    DriverError,
    GpuLostError,
    ReadError,
    TooManyProcessesError,
)
from sentinel.probe.process_info import ProcessIdentifier
from sentinel.probe.scheduler import ReadJob, next_multiple
from sentinel.protocol.codec import send_now
from sentinel.protocol.gpu import GpuProcess, Memory, Reading, Telemetry
from sentinel.protocol.probe import ProbeMessage, ProbeSpec, Watch
from sentinel.protocol.shared_memory import InflightCalls, Stamps, slots_of

T = TypeVar("T")

#: When a read began, its duration and the memory.
_MemoryRead = tuple[float, float, Memory]
#: When a read began, the processes, and the number of those that were omitted.
_ProcessesRead = tuple[float, tuple[GpuProcess, ...], int]

#: Failed reads before a fault is published, and the pause between them.
MAX_TRIES = 3
RETRY_PAUSE_S = 0.01

#: The interval for a held GPU after a burst of opens of its device node, and the burst's effect.
BOOST_INTERVAL_S = 0.005
BOOST_DURATION_S = 2.0

#: A change of the used memory by this or more triggers a read of the processes. Smaller growth is
#: noise; the first steps of a context are smaller, and its PID appears later.
MEMORY_JUMP_BYTES = 2**20

#: How long after a jump the processes are read at every interval. A PID appears up to 60 ms after
#: the first memory, and a child's exit completes some time after its memory is free; neither
#: changes the memory again.
SETTLING_S = 0.5

#: How long a reading of compute mode, MIG and displays is valid. Querying MIG takes 0.2 to 0.4 ms
#: of CPU on an H200, more than all other calls, and these settings hardly ever change.
MODES_VALIDITY_S = 5.0

#: The most processes of one GPU in a reading: so many with the longest names and chains of
#: ancestors fit into a datagram. More are counted, since a GPU with so many is in use.
MAX_PROCESSES = 64

#: The interval of telemetry, if the supervisor requests it.
TELEMETRY_INTERVAL_S = 1.0


class Publisher:
    """Sends messages to the supervisor, from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, message: ProbeMessage) -> bool:
        """Send ``message`` now or drop it; return whether it was sent.

        Raises:
            WireError: It is too large.
        """
        return send_now(self._channel, message)

    def send_reading(self, reading: Reading) -> bool:
        """Send ``reading``, or only the number of its processes if it is too large."""
        try:
            return self.send(reading)
        except WireError:  # names and ancestors without end
            count = reading.omitted_processes + len(reading.processes or ())
            return self.send(replace(reading, processes=(), omitted_processes=count))

    def send_last(self, message: ProbeMessage) -> None:
        """Send ``message``, waiting for room for up to a second."""
        if not self.send(message):
            select.select([], [self._channel], [], 1.0)
            self.send(message)


@dataclass(frozen=True, kw_only=True)
class SharedServices:
    """The parts that all readers share."""

    driver: Driver
    inflight_calls: InflightCalls
    identifier: ProcessIdentifier
    publisher: Publisher
    #: When the memory of each GPU was last read; each job that does so writes its own GPU's.
    stamps: Stamps
    #: Has the scheduler check what is due.
    wake: Callable[[], None]
    #: Has the indices of all GPUs sent again.
    list_again: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class _Demand:
    """What the supervisor requests of a GPU; the number reveals two changes that cancel out."""

    number: int
    wanted: bool
    held: bool
    at_once: bool
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class _Modes:
    """Settings that rarely change; None before the first read."""

    exclusive: bool | None = None
    mig: bool | None = None
    display: bool | None = None


@dataclass(frozen=True, kw_only=True)
class _Load:
    """The load of a GPU; None if it is not available or not requested."""

    load_at: float = 0.0
    utilization: float | None = None
    temperature: int | None = None
    power: float | None = None
    sm_clock: int | None = None


class Reader:
    """Reads one GPU and publishes its readings.

    Args:
        uuid: The GPU.
        place: The index of the GPU in the shared memory.
        spec: The intervals.
        services: The parts that all readers share.

    Attributes:
        poll_memory: The job that reads the memory of a held GPU at every interval.
        poll: The job that reads everything at every poll, and the processes after a memory jump.
    """

    def __init__(self, *, uuid: str, place: int, spec: ProbeSpec, services: SharedServices) -> None:
        self.uuid = uuid
        self.poll_memory = ReadJob(self._poll_memory)
        self.poll = ReadJob(self._poll)
        self._place = place
        self._memory_slot, self._poll_slot = slots_of(place)
        self._spec = spec
        self._services = services
        # Written by other threads, each as a whole.
        self._demand = _Demand(number=0, wanted=uuid not in spec.skip, held=False, at_once=False)
        self._boosted_until = 0.0
        self._shared = False
        self._load_wanted = self._telemetry_wanted = False
        self._memory: _MemoryRead | None = None
        self._processes: _ProcessesRead | None = None
        self._modes = _Modes()
        self._load = _Load()
        self._computing: tuple[int, ...] | None = None
        self._faulty = self._lost = False
        self._fault_at = -math.inf
        # Private to the memory job or to the poll job.
        self._memory_failures = self._poll_failures = 0
        self._settled_at = 0.0
        self._applied: _Demand | None = None
        self._next_poll = self._modes_until = self._next_telemetry = 0.0
        self._recheck = False
        # What the supervisor has received; guarded, since both jobs publish.
        self._publishing = threading.Lock()
        self._sent_used = -1
        self._unsent = False

    def configure(self, watch: Watch) -> None:
        """Set what to read.

        A change of whether the GPU is wanted, held, read at once or slow triggers a full reading at
        once. What is read beside that takes effect at the next poll.
        """
        uuid, had = self.uuid, self._demand
        self._shared = uuid in watch.shared
        self._load_wanted, self._telemetry_wanted = uuid in watch.load, watch.telemetry
        demand = _Demand(
            number=had.number,
            wanted=uuid in watch.gpus,
            held=uuid in watch.held,
            at_once=uuid in watch.at_once,
            slow=uuid in watch.slow,
        )
        if demand != had:
            self._demand = replace(demand, number=had.number + 1)
        self.poll_memory.request()
        self.poll.request()

    def boost(self) -> bool:
        """Read a held GPU every few milliseconds for a while; return False if it already is."""
        now = time.monotonic()
        already, self._boosted_until = now < self._boosted_until, now + BOOST_DURATION_S
        if not already:
            self.poll_memory.request()
        return not already

    # --- memory of a held GPU ----------------------------------------------------------------

    def _poll_memory(self, now: float) -> float:
        """Read the memory of a held GPU; publish a change, and have the processes read.

        Raises:
            DriverGoneError: The driver as a whole is gone.
        """
        if not self._demand.held or self._faulty:
            return math.inf
        try:
            memory = self._read_memory(self._memory_slot)
        except GpuLostError as error:
            self._publish_fault(now, error, lost=True)
            return math.inf
        except ReadError as error:
            self._memory_failures += 1
            if self._memory_failures < MAX_TRIES:
                return now + RETRY_PAUSE_S
            self._memory_failures = 0
            self._publish_fault(now, error, lost=False)
            return math.inf
        self._memory_failures = 0
        step = abs(memory.used - self._sent_used)
        if step >= MEMORY_JUMP_BYTES:
            self._settled_at = now + SETTLING_S
        if (step or self._unsent) and self._processes is not None:
            self._publish()  # only with a list of processes: without one it means UNKNOWN
        if now < self._settled_at:
            self._recheck = True
            self.poll.request()
            self._services.wake()
        interval = self._spec.watch_interval * (2 if self._shared else 1)
        if now < self._boosted_until:
            interval = min(interval, BOOST_INTERVAL_S)
        return next_multiple(now, interval)

    # --- polls -------------------------------------------------------------------------------

    def _poll(self, now: float) -> float:
        """Read everything if a poll is due, or only memory and processes if they were requested.

        Raises:
            DriverGoneError: The driver as a whole is gone.
        """
        demand = self._demand
        if demand != self._applied:
            self._applied, self._next_poll, self._modes_until = demand, now, now
        if not (demand.wanted or demand.held):
            return math.inf
        due, look, self._recheck = now >= self._next_poll, self._recheck, False
        if not due and not (look and not self._faulty):
            return self._next_poll
        try:
            if due:
                self._read_fully(now)
            else:
                # The memory first: whatever the list then does not explain was there before it.
                self._read_memory(self._poll_slot)
                self._read_processes()
                self._publish()
        except GpuLostError as error:
            self._publish_fault(now, error, lost=True)
        except ReadError as error:
            self._poll_failures += 1
            if self._poll_failures < MAX_TRIES:
                self._recheck = True
                return now + RETRY_PAUSE_S
            self._publish_fault(now, error, lost=False)
        else:
            self._recover(full=due)
        self._poll_failures = 0
        if due:
            quick = self._spec.poll if self._spec.quick_poll is None else self._spec.quick_poll
            self._next_poll = next_multiple(now, self._spec.poll if demand.slow else quick)
        return self._next_poll

    def _read_fully(self, now: float) -> None:
        """Read and publish what is due; the memory job reads the memory of a held GPU."""
        if self._memory is None or self._faulty or not self._demand.held:
            self._read_memory(self._poll_slot)
        self._read_processes()
        if now >= self._modes_until:
            self._modes = self._read_modes()
            self._modes_until = now + MODES_VALIDITY_S
        self._load = self._read_load()
        self._computing = None
        if self._spec.computing:
            computing = self._services.driver.computing
            self._computing = self._call(self._poll_slot, "computing", computing)
        telemetry = None
        if self._telemetry_wanted and now >= self._next_telemetry:
            # Less half a poll, since polls are only roughly on time.
            self._next_telemetry = now + TELEMETRY_INTERVAL_S - self._spec.poll / 2
            telemetry = self._call_optional("telemetry", self._services.driver.telemetry)
            if telemetry is not None:
                telemetry = replace(telemetry, power_w=self._load.power)
        self._publish(telemetry)

    def _read_modes(self) -> _Modes:
        """Read the settings that rarely change."""
        driver, slot = self._services.driver, self._poll_slot
        return _Modes(
            exclusive=self._call(slot, "exclusive", driver.exclusive),
            mig=self._call(slot, "mig", driver.mig),
            display=self._call(slot, "display", driver.display),
        )

    def _read_load(self) -> _Load:
        """Read the load.

        A failed call is a fault only if newcomers are detected by its value; otherwise the value is
        None.
        """
        driver, slot, now = self._services.driver, self._poll_slot, time.monotonic()
        utilization = None
        if self._load_wanted or (self._spec.utilization and not self._demand.held):
            # On a GPU that is not held, utilization alone may show a foreign process.
            if self._demand.held:
                utilization = self._call_optional("utilization", driver.utilization)
            else:
                utilization = self._call(slot, "utilization", driver.utilization)
        return _Load(
            load_at=now,
            utilization=utilization,
            temperature=self._call_optional("temperature", driver.temperature),
            power=self._call_optional("power", driver.power),
            sm_clock=self._call_optional("sm_clock", driver.sm_clock),
        )

    def _call_optional(self, call: str, function: Callable[[str], T | None]) -> T | None:
        """Make a call; return None if it fails."""
        try:
            return self._call(self._poll_slot, call, function)
        except ReadError:
            return None

    def _recover(self, *, full: bool) -> None:
        """Resume the memory job after a full reading that began after the fault."""
        if full and self._faulty and self._latest():
            self._faulty = False
            self._set_lost(lost=False)
            self.poll_memory.request()
            self._services.wake()

    # --- calls and readings ------------------------------------------------------------------

    def _read_memory(self, slot: int) -> Memory:
        began = time.monotonic()
        memory = self._call(slot, "memory", self._services.driver.memory)
        if self._memory is None or self._memory[0] < began:
            self._memory = (began, time.monotonic() - began, memory)
            self._services.stamps.set(self._place, began)
        return memory

    def _read_processes(self) -> None:
        """Read the processes, as many as a message has room for."""
        began = time.monotonic()
        try:
            listed = self._call(self._poll_slot, "processes", self._services.driver.processes)
        except TooManyProcessesError as error:
            self._processes = (began, (), error.count)
            return
        sent = self._services.identifier.identify(listed[:MAX_PROCESSES])
        self._processes = (began, sent, len(listed) - len(sent))

    def _call(self, slot: int, call: str, function: Callable[[str], T]) -> T:
        """Make a driver call, and announce it while it runs."""
        self._services.inflight_calls.announce(slot, call)
        try:
            return function(self.uuid)
        except ReadError as error:
            raise ReadError(error.code, f"{call}: {error.reason}") from error
        finally:
            self._services.inflight_calls.finish(slot)

    def _latest(self) -> tuple[_MemoryRead, _ProcessesRead] | None:
        """Return the latest reads, if both began after the last fault of either job."""
        memory, processes = self._memory, self._processes
        if memory is None or processes is None or min(memory[0], processes[0]) <= self._fault_at:
            return None
        return memory, processes

    def _publish(self, telemetry: Telemetry | None = None) -> None:
        """Publish the latest readings; if the channel is full, the next read publishes again."""
        with self._publishing:
            if (latest := self._latest()) is None:
                return
            (at, took, memory), (processes_at, processes, omitted) = latest
            reading = Reading(
                uuid=self.uuid,
                at=at,
                took=took,
                memory=memory,
                processes=processes,
                omitted_processes=omitted,
                processes_at=processes_at,
                computing=self._computing,
                telemetry=telemetry,
                **vars(self._modes),
                **vars(self._load),
            )
            self._unsent = not self._services.publisher.send_reading(reading)
            if not self._unsent:
                self._sent_used = memory.used

    def _set_lost(self, *, lost: bool) -> None:
        """Note whether the GPU is lost; a change may give the others new indices."""
        if lost != self._lost:
            self._lost = lost
            self._services.list_again()

    def _publish_fault(self, now: float, error: DriverError, *, lost: bool) -> None:
        """Publish that the GPU is unknown, and why; from now on only polls retry."""
        self._set_lost(lost=lost)
        with self._publishing:
            self._faulty, self._fault_at = True, time.monotonic()
            self._modes_until = 0.0
            self._sent_used = -1
            reading = Reading(uuid=self.uuid, at=now, fault=str(error), lost=lost)
            self._services.publisher.send_reading(reading)
