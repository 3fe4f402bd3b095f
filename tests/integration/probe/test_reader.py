"""The parts of the probe: reader, scheduler, board, node watch and process information."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from sentinel.probe.device_watch import Burst, NodeWatch
from sentinel.probe.driver import DriverError, GpuLostError, ReadError
from sentinel.probe.process_info import ProcessIdentifier
from sentinel.probe.publisher import Publisher
from sentinel.probe.reader import MAX_TRIES, Reader, SharedServices
from sentinel.probe.scheduler import ReadScheduler
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Reading
from sentinel.protocol.inflight_calls import MAX_GPUS, InflightCalls, gpu_of, slots_of
from sentinel.protocol.probe import ProbeSpec
from sentinel.protocol.telemetry import Telemetry
from tests.harness.probe_harness import NEVER, open_nodes, until
from tests.harness.timing import TIMEOUT_S

# --- one reader, over a driver that does as it is told ---------------------------------------


class Scripted:
    """A driver of one GPU whose memory calls fail as scripted, and succeed after that."""

    def __init__(self, *errors: DriverError | None, processes: int = 0) -> None:
        self.script = list(errors)
        self.times: list[float] = []
        self.asked_for_mig = self.asked_for_load = 0
        self._processes = tuple(GpuProcess(pid=2**30 + i) for i in range(processes))

    def open(self) -> None:
        """Do nothing."""

    def version(self) -> str:
        """Return nothing of interest."""
        return "scripted"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Return nothing; it is not called."""
        del skip
        return ()

    def memory(self, uuid: str) -> Memory:
        """Follow the script."""
        del uuid
        self.times.append(time.monotonic())
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        return Memory(total=10, used=1, free=9)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return as many processes as were asked for."""
        del uuid
        return self._processes

    def exclusive(self, uuid: str) -> bool:
        """Return ``False``."""
        del uuid
        return False

    def mig(self, uuid: str) -> bool:
        """Return ``False``, and count."""
        del uuid
        self.asked_for_mig += 1
        return False

    def display(self, uuid: str) -> bool:
        """Return ``False``."""
        del uuid
        return False

    def utilization(self, uuid: str) -> float | None:
        """Return nothing, and count."""
        del uuid
        self.asked_for_load += 1
        return None

    def temperature(self, uuid: str) -> int | None:
        """Return a temperature."""
        del uuid
        return 40

    def power(self, uuid: str) -> float | None:
        """Fail, which is no fault."""
        del uuid
        raise ReadError("unknown", "no power")

    def sm_clock(self, uuid: str) -> int | None:
        """Return nothing."""
        del uuid
        return None

    def telemetry(self, uuid: str) -> Telemetry:
        """Return nothing; only who wants to know may ask."""
        raise AssertionError(uuid)

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return nothing; only who wants to know may ask."""
        raise AssertionError(uuid)

    def node(self, uuid: str) -> str | None:
        """Return no node."""
        del uuid
        return None


@contextlib.contextmanager
def reader_over(driver: Scripted, poll: float = NEVER) -> Iterator[tuple[Reader, socket.socket]]:
    """Provide a reader over ``driver`` and the socket on which it posts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inflight_calls = InflightCalls.create()
    services = SharedServices(
        driver=driver,
        inflight_calls=inflight_calls,
        identifier=ProcessIdentifier(),
        publisher=Publisher(theirs),
        wake=lambda: None,
    )
    spec = ProbeSpec(poll=poll, watch_interval=NEVER)
    ours.setblocking(False)
    with ours, theirs:
        yield Reader(uuid="GPU-1", slots=(1, 2), spec=spec, services=services), ours
    inflight_calls.close()


def first_reading(driver: Scripted) -> Reading:
    """Return what a reader over ``driver`` posts first."""
    with reader_over(driver) as (reader, posts):
        while True:
            reader.poll.run()
            with contextlib.suppress(BlockingIOError):
                return decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading])
            assert reader.poll.due - time.monotonic() < 0.02, "it is not tried again within 20 ms"


def test_two_failures_in_a_row_are_no_fault() -> None:
    """A failed read is tried again within 20 ms, and the third time counts."""
    driver = Scripted(ReadError("unknown", "?"), ReadError("unknown", "?"))
    reading = first_reading(driver)
    assert reading.fault is None
    assert reading.memory == Memory(total=10, used=1, free=9)
    assert len(driver.times) == 3


def test_three_failures_in_a_row_are_a_fault() -> None:
    """Then nothing is known of the GPU, and the reading says why."""
    reading = first_reading(Scripted(*[ReadError("unknown", "it does not say")] * 3))
    assert reading == Reading(uuid="GPU-1", at=reading.at, fault="it does not say (unknown)")


def test_a_lost_gpu_is_not_tried_again() -> None:
    """That it is lost is final, and said at once."""
    driver = Scripted(GpuLostError("gpu_is_lost", "it fell off the bus"))
    reading = first_reading(driver)
    assert reading.lost
    assert len(driver.times) == 1


def test_more_processes_than_fit_a_message_are_a_fault() -> None:
    """What cannot be told in full is unknown, not cut short."""
    reading = first_reading(Scripted(processes=2000))
    assert reading.fault is not None
    assert reading.processes is None


def test_mig_is_read_again_when_the_watch_changes() -> None:
    """It costs more than all else, so polls take its last answer for a while; a start does not."""
    driver = Scripted()
    with reader_over(driver, poll=1e-6) as (reader, posts):
        for _ in range(3):
            reader.poll.run()
            assert decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading]).mig is False
        assert driver.asked_for_mig == 1
        reader.configure(wanted=True, held=True)
        reader.poll.run()
        assert driver.asked_for_mig == 2


def test_changes_that_cancel_out_between_polls_still_trigger_a_reading() -> None:
    """Two changes within a millisecond still trigger a full reading."""
    driver = Scripted()
    with reader_over(driver) as (reader, posts):
        reader.poll.run()
        assert len(heard(posts)) == 1
        reader.configure(wanted=True, held=True)
        reader.configure(wanted=True, held=False)
        reader.poll.run()
        assert len(heard(posts)) == 1
        reader.configure(wanted=True, held=False)
        reader.poll.run()
        assert not heard(posts), "the same order again is no change"


@pytest.mark.parametrize("held", [False, True])
def test_the_utilization_is_read_on_request(*, held: bool) -> None:
    driver = Scripted()
    with reader_over(driver, poll=1e-6) as (reader, _):
        reader.configure(wanted=True, held=held)
        reader.poll.run()
        assert driver.asked_for_load == 0
        reader.configure(wanted=True, held=held, load=True)
        reader.poll.run()
        assert driver.asked_for_load == 1
        reader.configure(wanted=True, held=held)
        reader.poll.run()
        assert driver.asked_for_load == 1


def test_an_unreadable_temperature_or_power_is_none_and_no_fault() -> None:
    driver = Scripted()
    reading = first_reading(driver)
    assert reading.fault is None
    assert (reading.temperature, reading.power, reading.sm_clock) == (40, None, None)
    assert reading.load_at >= reading.at
    assert len(driver.times) == 1, "it is not tried again"


@pytest.mark.parametrize("held", [True, False])
def test_an_unreadable_utilization_is_a_fault_only_if_it_detects_newcomers(*, held: bool) -> None:
    """On a GPU that we hold it is a figure for the pace, and no stressor is killed for it."""

    class Sick(Scripted):
        def utilization(self, uuid: str) -> float | None:
            raise ReadError("unknown", f"{uuid} is sick")

    with reader_over(Sick(), poll=1e-6) as (reader, channel):
        reader.configure(wanted=True, held=held, load=True)
        for _ in range(MAX_TRIES):
            reader.poll.run()
        last = decode(channel.recv(MAX_DATAGRAM_BYTES), (Reading,))
    assert (last.fault is None) is held


def test_every_gpu_has_two_slots_of_its_own() -> None:
    """A slot identifies the GPU, and no two jobs share one; the first slot is the driver's."""
    slots = [slot for index in range(MAX_GPUS) for slot in slots_of(index)]
    assert len({0, *slots}) == 1 + 2 * MAX_GPUS
    assert [gpu_of(slot) for slot in slots_of(5)] == [5, 5]
    assert gpu_of(0) is None


def test_a_blocked_poll_does_not_stop_memory_reads() -> None:
    """The glance posts growth while a call for the processes hangs in the driver."""
    driver = Stuck()
    with reader_over(driver) as (reader, posts):
        reader.configure(wanted=True, held=True)
        reader.poll.run()
        reader.poll_memory.run()
        heard(posts)
        driver.stuck.clear()
        reader._next_poll = 0.0
        poll = threading.Thread(target=reader.poll.run)
        poll.start()
        until(driver.asked.is_set)
        driver.used = 64 * 2**20
        reader.poll_memory.run()
        until(lambda: any(r.memory and r.memory.used for r in heard(posts)))
        assert poll.is_alive()
        driver.stuck.set()
        poll.join(TIMEOUT_S)


class Stuck(Scripted):
    """A driver whose calls for processes do not return while ``stuck`` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0
        self.stuck = threading.Event()
        self.stuck.set()
        self.asked = threading.Event()

    def memory(self, uuid: str) -> Memory:
        """Return what is used by now."""
        return Memory(total=2**30, used=self.used, free=2**30 - self.used)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Hang while told to."""
        if not self.stuck.is_set():
            self.asked.set()
        self.stuck.wait(TIMEOUT_S)
        return ()


def heard(posts: socket.socket) -> list[Reading]:
    """Return the readings that were posted by now."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(decode(posts.recv(MAX_DATAGRAM_BYTES), [Reading]))
    return found


# --- the scheduler --------------------------------------------------------------------------


class Counting:
    """A job that is due every few milliseconds, counts its runs and blocks on demand."""

    def __init__(self) -> None:
        self.due = 0.0
        self.count = 0
        self.overlapped = False
        self.go_on = threading.Event()
        self.go_on.set()
        self._inside = False

    def run(self) -> None:
        """Count, and block while ``go_on`` is cleared."""
        self.overlapped |= self._inside
        self._inside = True
        self.go_on.wait()
        self._inside = False
        self.count += 1
        self.due = time.monotonic() + 0.002

    def stop(self) -> None:
        """Never be due again."""
        self.run = self.retire  # type: ignore[method-assign]

    def retire(self) -> None:
        """Do nothing."""
        self.due = float("inf")


def test_jobs_that_block_do_not_delay_others() -> None:
    """Each job runs in one thread at a time, and blocked jobs continue later."""
    jobs = [Counting() for _ in range(5)]
    *blocked, free = jobs
    threads = threading.active_count()
    scheduler = ReadScheduler(lambda error: None)
    scheduler.start(jobs)
    for _ in range(3):
        for job in blocked:
            job.go_on.clear()
        reached = free.count + 20
        until(lambda reached=reached: free.count > reached)  # type: ignore[misc]
        for job in blocked:
            job.go_on.set()
        for job in jobs:
            goal = job.count + 5
            until(lambda job=job, goal=goal: job.count > goal)  # type: ignore[misc]
    assert not any(job.overlapped for job in jobs)
    until(lambda: threading.active_count() - threads <= 3)  # the leader, and two that wait
    for job in jobs:
        job.stop()


def test_a_job_that_fails_is_reported() -> None:
    """Otherwise its GPU would silently not be read any more."""
    errors: list[BaseException] = []
    failing = Counting()
    failing.run = fail  # type: ignore[method-assign]
    ReadScheduler(errors.append).start([failing])
    until(lambda: bool(errors))
    assert isinstance(errors[0], ZeroDivisionError)


def fail() -> None:
    """Raise an unexpected error."""
    raise ZeroDivisionError


# --- parts -----------------------------------------------------------------------------------


def test_an_inflight_call_is_visible_from_announcement_to_finish() -> None:
    """Both sides see the same slots, each with its latest call and since when."""
    inflight_calls = InflightCalls.create()
    other = InflightCalls.attach(os.dup(inflight_calls.fd))
    before = time.monotonic()
    other.announce(0, "open")
    other.announce(MAX_GPUS, "a call with a name that is much too long for its place")
    other.announce(1, "memory")
    other.announce(1, "mig")
    other.announce(2, "memory")
    other.finish(2)
    calls = inflight_calls.outstanding()
    assert [(slot, call) for slot, call, _ in calls] == [
        (0, "open"),
        (1, "mig"),
        (MAX_GPUS, "a call with a name that is much"),
    ]
    assert all(before <= since <= time.monotonic() for _, _, since in calls)
    other.close()
    assert inflight_calls.outstanding() == calls
    inflight_calls.close()


def test_invalid_entries_of_inflight_calls_are_ignored() -> None:
    """Whatever is scribbled over it, a reader sees only names and times that can be."""
    inflight_calls = InflightCalls.create()
    size = os.fstat(inflight_calls.fd).st_size
    for junk in (b"\xff" * size, b"\x00" * size, b"\x7f\xf0" * (size // 2), b"A" * size):
        os.pwrite(inflight_calls.fd, junk, 0)
        for _, call, since in inflight_calls.outstanding():
            assert call.isprintable()
            assert 0 < since <= time.monotonic()
    with pytest.raises(PermissionError):
        os.ftruncate(inflight_calls.fd, 0)
    inflight_calls.close()


@pytest.mark.parametrize(
    ("opens", "cuda"),
    [
        ([0, 1, 2], False),
        ([0, 1, 2, 8, 128, 129, 130, 159, 160, 161], False),
        ([1000 * second + ms for second in range(5) for ms in (0, 1, 3, 31, 32, 34)], False),
        ([0, 1, 3, 4, 15], True),
        ([0, 1, 2, 3, 5, 8], True),
        ([0, 7, 14, 21, 28], True),
        ([0, 1, 2, 500, 501, 502, 503, 504], True),
    ],
    ids=[
        "nvml",
        "nvidia-smi",
        "nvidia-smi -l 1",
        "cuInit",
        "cuInit, all seen",
        "slow cuInit",
        "cuda after nvml",
    ],
)
def test_only_the_opens_of_a_cuda_program_are_a_burst(opens: list[int], cuda: bool) -> None:  # noqa: FBT001
    """Five opens in a row are one, three are not, however often they come again."""
    burst = Burst()
    noticed = [burst.opened(ms / 1000) for ms in opens]
    assert any(noticed) is cuda


def test_a_node_that_cannot_be_watched_is_left_out(tmp_path: Path) -> None:
    """A missing node is no error, and the others are still followed."""
    node, other = tmp_path / "node", tmp_path / "other"
    node.touch()
    other.touch()
    noticed = threading.Event()
    watch = NodeWatch()
    assert not watch.add(str(tmp_path / "missing"), noticed.set)
    assert watch.add(str(node), noticed.set)
    assert watch.add(str(other), lambda: None)

    def noticed_after_opens() -> bool:
        open_nodes(node, other)
        return noticed.wait(0.05)

    until(noticed_after_opens)


def test_a_name_service_that_hangs_leaves_users_unknown() -> None:
    """All else is still told, at once, for one process after the other."""
    asked = threading.Event()
    never = threading.Event()

    def hang(pid: int) -> str | None:
        del pid
        asked.set()
        never.wait()
        return "nobody"

    identifier = ProcessIdentifier(find_user=hang)
    for pid in (os.getpid(), os.getppid()):
        (process,) = identifier.identify([GpuProcess(pid=pid, memory=5)])
        assert asked.wait(TIMEOUT_S)
        assert process.started is not None
        assert (process.memory, process.user) == (5, None)
    never.set()


def test_a_pid_that_is_not_in_proc_has_no_details() -> None:
    """A process of another container is foreign and unverified, never an error."""
    process = GpuProcess(pid=2**31 - 1, kind=ProcessKind.GRAPHICS)
    assert ProcessIdentifier().identify([process]) == (process,)
