"""The kernel's log is read without blocking, from the opening on, with the times of its records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.burnin.kernel_faults import KernelFault
from sentinel.burnin.xids import XidEvent, parse
from sentinel.diagnostics import kernel_log
from sentinel.diagnostics.kernel_log import KMSG, KernelLog, read_past
from tests.harness.sentinel_process import eventually


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., KernelLog]:
    """Open a log that returns one record, or raises one error, at each read."""

    def opened(*answers: bytes | OSError) -> KernelLog:
        left = list(answers)

        def read(fd: int) -> bytes:
            answer = left.pop(0) if left else BlockingIOError()
            if isinstance(answer, OSError):
                raise answer
            return answer

        monkeypatch.setattr(kernel_log, "_read_record", read)
        (tmp_path / "kmsg").touch()
        return KernelLog(str(tmp_path / "kmsg"))

    return opened


def records(*texts: str) -> list[bytes]:
    """Build the records of the kernel, written a second after its start and later."""
    return [
        f"4,{number},{1_000_000 * (number + 1)},-;{text}\n SUBSYSTEM=pci\n".encode()
        for number, text in enumerate(texts)
    ]


def test_records_have_their_text_and_the_time_by_the_monotonic_clock(
    fake: Callable[..., KernelLog],
) -> None:
    lines = records("a word", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    before, raw = time.monotonic(), time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    with fake(*lines) as log:
        first, second = log.read()
        assert log.read() == ()
        assert log.error is None
    read_s = time.monotonic() - before  # the clocks are not read at the same moment
    assert first.text == "a word"
    assert first.at == pytest.approx(1.0 - (raw - before), abs=0.1 + read_s)
    event = parse(second.text, second.at)
    assert isinstance(event, XidEvent)
    assert event.number == 79


THREE = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330)",
    "NVRM: fallen off the bus",
)


@pytest.mark.parametrize("newline", ["\\x0a", "\n", "\n "])
def test_a_message_of_several_lines_is_one_record_without_the_properties(
    fake: Callable[..., KernelLog], newline: str
) -> None:
    record = f"4,1,1000000,-;{newline.join(THREE)}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    with fake(record.encode()) as log:
        (found,) = log.read()
    assert found.text == "\n".join(THREE)
    fault = parse(found.text, found.at)
    assert isinstance(fault, KernelFault)
    assert fault.device == "0000:3b:00.0"


def test_the_past_of_a_log_is_read_until_its_end(
    monkeypatch: pytest.MonkeyPatch, fake: Callable[..., KernelLog], tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_log, "MAX_RECORDS", 2)
    fake(*records("a", "b", "c"))
    found, error = read_past(str(tmp_path / "kmsg"))
    assert ([record.text for record in found], error) == (["a", "b", "c"], None)
    found, error = read_past(str(tmp_path / "none"))
    assert not found
    assert "No such file" in (error or "")


def test_a_reader_that_was_overtaken_says_so_and_goes_on(fake: Callable[..., KernelLog]) -> None:
    first, second = records("one", "two")
    with fake(first, OSError(32, "Broken pipe"), OSError(22, "too long"), second) as log:
        assert [record.text for record in log.read()] == ["one", "two"]
        assert "overwritten" in (log.error or "")


def test_a_log_that_grows_faster_than_it_is_read_has_an_end(
    monkeypatch: pytest.MonkeyPatch, fake: Callable[..., KernelLog]
) -> None:
    monkeypatch.setattr(kernel_log, "MAX_RECORDS", 3)
    with fake(*records("a", "b", "c", "d")) as log:
        assert [record.text for record in log.read()] == ["a", "b", "c"]
        assert [record.text for record in log.read()] == ["d"]


@pytest.mark.parametrize("error", [OSError(1, "Operation not permitted"), OSError(5, "I/O error")])
def test_a_log_that_cannot_be_read_has_a_reason(
    fake: Callable[..., KernelLog], error: OSError
) -> None:
    with fake(error) as log:
        assert log.read() == ()
        assert str(error.strerror) in (log.error or "")
        assert log.read() == ()


def test_a_missing_log_has_a_reason(tmp_path: Path) -> None:
    with KernelLog(str(tmp_path / "none")) as log:
        assert "No such file" in (log.error or "")
        assert log.read() == ()


def test_garbage_in_the_log_is_a_record_without_a_time(fake: Callable[..., KernelLog]) -> None:
    with fake(b"\xff\xfe", b"4,x,y,-;text", b";;;") as log:
        assert [record.at for record in log.read()] == [0.0, 0.0, 0.0]


@pytest.mark.skipif(not os.access(KMSG, os.W_OK), reason="only root may write to the kernel's log")
def test_the_real_log_has_what_was_written_after_the_opening_and_not_before() -> None:
    mark = f"sentinel-test-{os.getpid()}-{time.monotonic_ns()}"
    _write(f"{mark} before")
    with KernelLog() as log:
        if log.error is not None:
            pytest.skip(log.error)
        started = time.monotonic()
        _write(f"{mark} after")  # no XID: monitors of this host would believe it
        found: list[kernel_log.KernelRecord] = []

        def written() -> bool:
            found.extend(record for record in log.read() if mark in record.text)
            return bool(found)

        eventually(written)
    assert len(found) == 1
    assert found[0].text.endswith("after")
    assert abs(found[0].at - started) < 60.0


def _write(text: str) -> None:
    try:
        Path(KMSG).write_text(f"<7>{text}\n")
    except OSError as error:
        pytest.skip(f"{KMSG} cannot be written: {error}")


@pytest.mark.parametrize(("since", "whole"), [(0.0, True), (2.5, True), (0.5, False)])
def test_a_reader_of_the_past_says_if_its_beginning_is_not_there_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, since: float, whole: bool
) -> None:
    """The times are seconds; the oldest record that is left is of the first second."""
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    raw = iter([*(b"6,1,%d000000,-;text" % second for second in range(1, 5)), b""])
    monkeypatch.setattr(kernel_log, "_read_record", lambda _: next(raw))
    (tmp_path / "kmsg").touch()
    with KernelLog(str(tmp_path / "kmsg"), since=since) as log:
        found = [record.at for record in log.read()]
        assert found == [at for at in (1.0, 2.0, 3.0, 4.0) if at >= since]
        assert (log.error is None) is whole
