"""XIDs of the real binding over a fake libnvidia-ml, and the thread that posts them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from sentinel.probe import xids
from sentinel.probe.driver import ReadError, Xid
from sentinel.probe.reader import Publisher
from sentinel.probe.xids import GROUP_S, MAX_NUMBERS, MAX_UNSENT, XidGroups, XidWatch
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.probe import ProbeSpec, Watch, XidReport, XidsWatched
from tests.harness.fake_nvml import FIRST, SECOND, build, shared_folder
from tests.harness.parameters import mostly_long
from tests.harness.probe_harness import ProbeHarness
from tests.harness.timing import TIMEOUT_S
from tests.integration.probe.test_reader import FakeDriver

Start = Callable[..., ProbeHarness]


@pytest.fixture
def start(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_probe: Start
) -> Start:
    """Return a function that starts a probe of both GPUs, with faults of the driver."""

    def start_one(*lines: str, library: Path = nvml_library) -> ProbeHarness:
        inject(tmp_path, *lines)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "faults"))
        probe = start_probe(ProbeSpec(poll=0.05, watch_interval=0.025))
        probe.inventory()
        probe.channel.send(encode(Watch(gpus=(FIRST, SECOND), held=())))
        return probe

    return start_one


def inject(folder: Path, *lines: str) -> None:
    """Replace the control file atomically."""
    draft = folder / "draft"
    draft.write_text("\n".join([*lines, ""]))
    draft.replace(folder / "faults")


def watched(probe: ProbeHarness) -> set[str]:
    """Wait for the next message of the watched GPUs."""
    while not isinstance(message := probe.xid_message(), XidsWatched):
        pass
    return {gpu.uuid for gpu in message.gpus}


def report(probe: ProbeHarness) -> XidReport:
    """Wait for the next XID."""
    while not isinstance(message := probe.xid_message(), XidReport):
        pass
    return message


def test_an_xid_is_posted_with_its_gpu(start: Start, tmp_path: Path) -> None:
    """A repeat is not posted again at once, another number is."""
    probe = start()
    assert watched(probe) == {FIRST, SECOND}
    inject(tmp_path, f"xid@{SECOND} 79", f"xid@{SECOND} 79", f"xid@{FIRST} 48")
    found = {(xid.uuid, xid.number, xid.repeats) for xid in (report(probe), report(probe))}
    assert found == {(SECOND, 79, 0), (FIRST, 48, 0)}


@pytest.mark.parametrize("fault", [f"types@{FIRST} 0x97", f"types_of@{FIRST} 3"])
def test_a_gpu_without_events_is_no_fault(start: Start, fault: str) -> None:
    probe = start(fault, f"xid@{FIRST} 79", f"xid@{SECOND} 48")
    assert watched(probe) == {SECOND}
    assert report(probe).uuid == SECOND
    assert probe.reading(lambda reading: reading.uuid == FIRST).fault is None


def test_a_gpu_that_cannot_be_registered_costs_only_itself(start: Start) -> None:
    probe = start(f"register@{FIRST} 15", f"xid@{SECOND} 48")
    assert watched(probe) == {SECOND}
    assert report(probe).uuid == SECOND


@mostly_long("fault", ["set hang", f"types_of@{FIRST} hang", f"register@{FIRST} hang", "wait hang"])
def test_a_call_for_events_that_hangs_costs_no_reading(start: Start, fault: str) -> None:
    """The supervisor sees no call in flight, so it does not replace the probe either."""
    probe = start(fault)
    for _ in range(3):
        for uuid in (FIRST, SECOND):
            assert probe.reading(lambda reading, of=uuid: reading.uuid == of).fault is None  # type: ignore[misc]
    assert not [call for _, call in probe.announced() if "event" in call or "xid" in call]
    assert len([xid for xid in probe.of_xids if isinstance(xid, XidsWatched)]) <= 1


@pytest.mark.long
def test_a_lost_gpu_does_not_end_the_watch_of_the_others(start: Start, tmp_path: Path) -> None:
    """Every wait fails while the lost GPU is in the set, and it cannot be registered again."""
    probe = start()
    assert watched(probe) == {FIRST, SECOND}
    inject(tmp_path, f"lost@{FIRST} 15", f"register@{FIRST} 15")
    while watched(probe) != {SECOND}:
        pass
    inject(tmp_path, f"lost@{FIRST} 15", f"register@{FIRST} 15", f"xid@{SECOND} 63")
    assert (one := report(probe)).uuid == SECOND
    assert one.number == 63


@pytest.mark.long
def test_a_driver_without_events_is_read_like_any_other(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Drivers before 450 lack the wait; it is never said that their XIDs are watched."""
    probe = start(library=build(shared_folder(tmp_path_factory), "-DOLD"))
    for _ in range(20):
        assert probe.reading(lambda reading: reading.uuid == FIRST).fault is None
    assert not probe.of_xids


def test_repeats_are_one_report() -> None:
    groups = XidGroups()
    first = groups.take("A", 13, 100.0)
    assert first == XidReport(uuid="A", number=13, at=100.0, last_at=100.0, repeats=0)
    for number in range(10_000):
        assert groups.take("A", 13, 100.1 + number / 10_000) is None
    assert groups.take("B", 13, 100.5) is not None, "another GPU"
    assert not groups.ended(100.0 + GROUP_S - 0.01)
    (repeats,) = groups.ended(100.0 + GROUP_S)
    assert (repeats.at, repeats.repeats) == (100.1, 10_000)
    assert repeats.last_at == pytest.approx(101.1, abs=0.001)
    assert groups.take("A", 13, 100.0 + GROUP_S) is not None, "a new group"


def test_different_numbers_of_one_gpu_are_bounded() -> None:
    groups = XidGroups()
    taken = [number for number in range(1000) if groups.take("A", number, 0.0) is not None]
    assert taken == list(range(MAX_NUMBERS))
    assert groups.take("B", 999, 0.0) is not None
    groups.ended(GROUP_S)
    assert groups.take("A", 999, GROUP_S) is not None


class FakeSource:
    """Fails each wait once, and then throws XIDs without end."""

    def __init__(self, driver: StormingDriver) -> None:
        self._driver = driver
        self._numbers = count()

    def add(self, uuid: str) -> bool:
        """Fail for one GPU, and take the others."""
        self._driver.added.append(uuid)
        if uuid == "broken":
            raise ReadError("unknown", "it cannot be added")
        return True

    def wait(self, timeout_s: float) -> Xid | None:
        """Return the next XID."""
        del timeout_s
        if self._driver.sources == 1:
            raise ReadError("unknown", "the first wait fails")
        self._driver.waits += 1
        if self._driver.waits == self._driver.stop_after:
            self._driver.done.set()
            threading.Event().wait()
        return Xid(uuid="A", number=13 if self._driver.same else next(self._numbers))

    def close(self) -> None:
        """Count it."""
        self._driver.closed += 1


class StormingDriver(FakeDriver):
    """Creates sources of endless XIDs."""

    def __init__(self, *, same: bool, stop_after: int) -> None:
        super().__init__()
        self.same, self.stop_after = same, stop_after
        self.sources = self.closed = self.waits = 0
        self.added: list[str] = []
        self.done = threading.Event()

    def xids(self) -> FakeSource:
        """Create one more."""
        self.sources += 1
        return FakeSource(self)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, Publisher]]:
    """Provide the supervisor's end of a channel, and the publisher at the other end."""
    monkeypatch.setattr(xids, "MIN_PAUSE_S", 0.001)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, Publisher(theirs)


def received(channel: socket.socket) -> list[XidReport | XidsWatched]:
    """Receive what is in the channel."""
    channel.setblocking(False)
    found: list[XidReport | XidsWatched] = []
    try:
        while True:
            data = channel.recv(MAX_DATAGRAM_BYTES)
            kinds: tuple[type[XidReport | XidsWatched], ...] = (XidReport, XidsWatched)
            found.append(decode(data, kinds))
    except BlockingIOError:
        return found


def test_hundreds_of_xids_are_a_few_messages(channel: tuple[socket.socket, Publisher]) -> None:
    """After a wait that failed, a new source is created; the first message has the GPUs."""
    ours, publisher = channel
    driver = StormingDriver(same=True, stop_after=300)
    watch = XidWatch(driver, publisher)
    watch.start()
    watch.want(["A", "broken"])
    assert driver.done.wait(TIMEOUT_S)
    assert (driver.sources, driver.closed) == (2, 1)
    assert driver.added == ["A", "broken"] * 2, "the broken one is not tried again at once"
    messages = received(ours)
    assert isinstance(messages[0], XidsWatched)
    assert [gpu.uuid for gpu in messages[0].gpus] == ["A"]
    reports = [message for message in messages if isinstance(message, XidReport)]
    assert reports[0].repeats == 0
    assert len(reports) < 10


def test_xids_wait_for_room_in_the_channel(
    channel: tuple[socket.socket, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that is stopped for long does not make the probe grow."""
    ours, publisher = channel
    monkeypatch.setattr(xids, "GROUP_S", 0.0)  # each XID is a report
    driver = StormingDriver(same=False, stop_after=3 * MAX_UNSENT)
    watch = XidWatch(driver, publisher)
    watch.start()
    watch.want(["A"])
    assert driver.done.wait(TIMEOUT_S)
    reports = [message for message in received(ours) if isinstance(message, XidReport)]
    assert [report.number for report in reports] == list(range(len(reports))), (
        "none is missing between"
    )
    assert 0 < len(reports) < driver.waits
    assert len(watch._unsent) == MAX_UNSENT
    assert watch._since["A"] > reports[-1].at, "some were missed"
