"""The reader of one GPU, over a fake driver: retries, faults and repeated readings."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Collection, Iterator

import pytest

from sentinel.probe import reader as reader_module
from sentinel.probe.driver import BasicDriver, DriverError, GpuLostError, ReadError
from sentinel.probe.process_info import ProcessIdentifier
from sentinel.probe.reader import MAX_PROCESSES, MAX_TRIES, Publisher, Reader, SharedServices
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading, Telemetry
from sentinel.protocol.probe import ProbeSpec, Watch
from sentinel.protocol.shared_memory import InflightCalls, Stamps
from tests.harness.probe_harness import NEVER
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


class FakeDriver(BasicDriver):
    """A driver of one GPU whose memory calls raise the given errors, then succeed."""

    def __init__(self, *errors: DriverError | None, processes: int = 0) -> None:
        self.errors = list(errors)
        self.times: list[float] = []
        self.mig_calls = self.utilization_calls = 0
        self._processes = tuple(GpuProcess(pid=2**30 + i) for i in range(processes))

    def open(self) -> None:
        """Do nothing."""

    def version(self) -> str:
        return "fake"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        return ()

    def memory(self, uuid: str) -> Memory:
        """Raise the next error, or return a constant."""
        self.times.append(time.monotonic())
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return Memory(total=10, used=1, free=9)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self._processes

    def mig(self, uuid: str) -> bool:
        self.mig_calls += 1
        return False

    def utilization(self, uuid: str) -> float | None:
        self.utilization_calls += 1
        return None

    def temperature(self, uuid: str) -> int | None:
        return 40

    def power(self, uuid: str) -> float | None:
        """Raise an error, which is no fault."""
        raise ReadError("unknown", "no power")

    def telemetry(self, uuid: str) -> Telemetry:
        """Fail: this is read only on request."""
        raise AssertionError(uuid)

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Fail: this is read only on request."""
        raise AssertionError(uuid)


def watch(*, held: bool, load: bool = False) -> Watch:
    """Watch the only GPU."""
    gpus = ("GPU-1",)
    return Watch(gpus=gpus, held=gpus if held else (), load=gpus if load else ())


@contextlib.contextmanager
def reader_over(driver: FakeDriver, poll: float = NEVER) -> Iterator[tuple[Reader, socket.socket]]:
    """Provide a reader over ``driver`` and the socket of its messages."""
    channel, probe_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inflight_calls = InflightCalls.create()
    stamps = Stamps.create(1)
    services = SharedServices(
        driver=driver,
        inflight_calls=inflight_calls,
        identifier=ProcessIdentifier(),
        publisher=Publisher(probe_channel),
        stamps=stamps,
        wake=lambda: None,
    )
    spec = ProbeSpec(poll=poll, watch_interval=NEVER)
    channel.setblocking(False)
    with channel, probe_channel:
        yield Reader(uuid="GPU-1", place=0, spec=spec, services=services), channel
    inflight_calls.close()
    stamps.close()


def first_reading(driver: FakeDriver) -> Reading:
    """Run a reader over ``driver``; return its first reading."""
    with reader_over(driver) as (reader, posts):
        while True:
            reader.poll.run()
            with contextlib.suppress(BlockingIOError):
                return decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading])
            assert reader.poll.due - time.monotonic() < 0.02, "no retry within 20 ms"


def test_two_failures_in_a_row_are_no_fault() -> None:
    """A failed read is repeated within 20 ms; only the third failure counts."""
    driver = FakeDriver(ReadError("unknown", "?"), ReadError("unknown", "?"))
    reading = first_reading(driver)
    assert reading.fault is None
    assert reading.memory == Memory(total=10, used=1, free=9)
    assert len(driver.times) == 3


def test_three_failures_in_a_row_are_a_fault() -> None:
    """The reading then has no values and the reason."""
    reading = first_reading(FakeDriver(*[ReadError("unknown", "it does not say")] * 3))
    assert reading == Reading(
        uuid="GPU-1", at=reading.at, fault="memory: it does not say (unknown)"
    )


def test_a_lost_gpu_is_not_tried_again() -> None:
    """The loss of a GPU is final and published at once."""
    driver = FakeDriver(GpuLostError("gpu_is_lost", "it fell off the bus"))
    reading = first_reading(driver)
    assert reading.lost
    assert len(driver.times) == 1


def test_more_processes_than_fit_a_message_are_counted() -> None:
    reading = first_reading(FakeDriver(processes=2000))
    assert reading.fault is None
    assert reading.processes is not None
    assert len(reading.processes) == MAX_PROCESSES
    assert reading.omitted_processes == 2000 - MAX_PROCESSES


def test_processes_whose_names_do_not_fit_a_message_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "MAX_PROCESSES", 2000)
    reading = first_reading(FakeDriver(processes=2000))
    assert (reading.fault, reading.processes, reading.omitted_processes) == (None, (), 2000)


def test_mig_is_read_again_when_the_watch_changes() -> None:
    """This call is the slowest, so polls reuse its last result, but a start does not."""
    driver = FakeDriver()
    with reader_over(driver, poll=1e-6) as (reader, posts):
        for _ in range(3):
            reader.poll.run()
            assert decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading]).mig is False
        assert driver.mig_calls == 1
        reader.configure(watch(held=True))
        reader.poll.run()
        assert driver.mig_calls == 2


def test_changes_that_cancel_out_between_polls_still_trigger_a_reading() -> None:
    """Two changes within a millisecond still trigger a full reading."""
    driver = FakeDriver()
    with reader_over(driver) as (reader, posts):
        reader.poll.run()
        assert len(received(posts)) == 1
        reader.configure(watch(held=True))
        reader.configure(watch(held=False))
        reader.poll.run()
        assert len(received(posts)) == 1
        reader.configure(watch(held=False))
        reader.poll.run()
        assert not received(posts), "an equal watch list is no change"


@pytest.mark.parametrize("held", [False, True])
def test_the_utilization_is_read_on_request(*, held: bool) -> None:
    driver = FakeDriver()
    with reader_over(driver, poll=1e-6) as (reader, _):
        reader.configure(watch(held=held))
        reader.poll.run()
        assert driver.utilization_calls == 0
        reader.configure(watch(held=held, load=True))
        reader.poll.run()
        assert driver.utilization_calls == 1
        reader.configure(watch(held=held))
        reader.poll.run()
        assert driver.utilization_calls == 1


def test_an_unreadable_temperature_or_power_is_none_and_no_fault() -> None:
    driver = FakeDriver()
    reading = first_reading(driver)
    assert reading.fault is None
    assert (reading.temperature, reading.power, reading.sm_clock) == (40, None, None)
    assert reading.load_at >= reading.at
    assert len(driver.times) == 1, "no retry"


@pytest.mark.parametrize("held", [True, False])
def test_an_unreadable_utilization_is_a_fault_only_if_it_detects_newcomers(*, held: bool) -> None:
    """On a held GPU it only serves the pace, so no stressor is killed for it."""

    class UnreadableUtilization(FakeDriver):
        def utilization(self, uuid: str) -> float | None:
            raise ReadError("unknown", f"no utilization of {uuid}")

    with reader_over(UnreadableUtilization(), poll=1e-6) as (reader, channel):
        reader.configure(watch(held=held, load=True))
        for _ in range(MAX_TRIES):
            reader.poll.run()
        last = decode(channel.recv(MAX_DATAGRAM_BYTES), (Reading,))
    assert (last.fault is None) is held


def test_a_blocked_poll_does_not_stop_memory_reads() -> None:
    """Memory reads publish growth while a call for processes hangs in the driver."""
    driver = HangingDriver()
    with reader_over(driver) as (reader, posts):
        reader.configure(watch(held=True))
        reader.poll.run()
        reader.poll_memory.run()
        received(posts)
        driver.returns.clear()
        reader._next_poll = 0.0
        poll = threading.Thread(target=reader.poll.run)
        poll.start()
        eventually(driver.asked.is_set)
        driver.used = 64 * 2**20
        reader.poll_memory.run()
        eventually(lambda: any(r.memory and r.memory.used for r in received(posts)))
        assert poll.is_alive()
        driver.returns.set()
        poll.join(TIMEOUT_S)


def test_a_poll_that_began_before_a_fault_does_not_revoke_it() -> None:
    """Its memory was read before the fault; the next poll reads it again."""
    driver = HangingDriver()
    with reader_over(driver) as (reader, posts):
        reader.configure(watch(held=True))
        reader.poll.run()
        driver.returns.clear()
        reader._next_poll = 0.0
        poll = threading.Thread(target=reader.poll.run)
        poll.start()
        eventually(driver.asked.is_set)
        driver.fails = True
        for _ in range(MAX_TRIES):
            reader.poll_memory.run()
        driver.returns.set()
        poll.join(TIMEOUT_S)
        assert received(posts)[-1].fault is not None
        reader.poll_memory.run()
        assert reader.poll_memory.due == math.inf

        driver.fails = False
        reader._next_poll = 0.0
        reader.poll.run()
        assert received(posts)[-1].fault is None
        assert reader.poll_memory.due < math.inf


class HangingDriver(FakeDriver):
    """A driver whose calls for processes return only while ``returns`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0
        self.fails = False
        self.returns = threading.Event()
        self.returns.set()
        self.asked = threading.Event()

    def memory(self, uuid: str) -> Memory:
        """Return the current used memory, or fail while ``fails`` is set."""
        if self.fails:
            raise ReadError("unknown", "it does not say")
        return Memory(total=2**30, used=self.used, free=2**30 - self.used)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Hang while ``returns`` is cleared."""
        if not self.returns.is_set():
            self.asked.set()
        self.returns.wait(TIMEOUT_S)
        return ()


def received(posts: socket.socket) -> list[Reading]:
    """Receive all readings that are available."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading]))
    return found
