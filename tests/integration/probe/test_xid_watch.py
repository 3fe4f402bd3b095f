"""The rate of XIDs, and the watch of them over a fake source."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from sentinel.probe import xids
from sentinel.probe.driver import ReadError, Xid
from sentinel.probe.reader import Publisher
from sentinel.probe.xids import GROUP_S, MAX_NUMBERS, MAX_UNSENT, XidGroups, XidWatch
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.probe import XidReport, XidsWatched
from tests.harness.timing import TIMEOUT_S
from tests.integration.probe.test_reader import FakeDriver


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
    reports = [one for one in received(ours) if isinstance(one, XidReport)]
    assert [report.number for report in reports] == list(range(len(reports))), (
        "none is missing between"
    )
    assert 0 < len(reports) < driver.waits
    assert len(watch._unsent) == MAX_UNSENT
    assert watch._since["A"] > reports[-1].at, "some were missed"
