"""The log of a daemon and the output of its processes are bounded, and survive a full disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.host import log_file
from sentinel.host.event_lines import json_lines
from sentinel.host.log_file import BoundedOutput, RotatingLog
from sentinel.protocol.events import Event
from sentinel.supervisor.event_log import EventLog
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


def line(number: int) -> str:
    """Build a line of 10 bytes."""
    return f"{number:09}\n"


def contents(path: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in path.parent.iterdir()}


def test_files_are_bounded_in_size_and_number_and_keep_the_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(RotatingLog(path, max_bytes=25, max_old_files=2)) as log:
        for number in range(9):
            assert log.write(line(number)) == 10
    assert contents(path) == {
        "log": line(8),
        "log.1": line(6) + line(7),
        "log.2": line(4) + line(5),
    }


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(4):
        with closing(RotatingLog(path, max_bytes=25, max_old_files=0)) as log:
            log.write(line(number))
    assert contents(path) == {"log": line(2) + line(3)}


def test_a_line_above_the_size_limit_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(RotatingLog(path, max_bytes=25, max_old_files=1)) as log:
        log.write(line(0))
        log.write("x" * 99 + "\n")
        log.write(line(1))
    assert contents(path) == {"log": line(1), "log.1": "x" * 99 + "\n"}


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_was_moved_or_removed_is_created_again(tmp_path: Path, *, moved: bool) -> None:
    path = tmp_path / "log"
    with closing(RotatingLog(path)) as log:
        log.write(line(0))
        if moved:
            path.rename(tmp_path / "old")
        else:
            path.unlink()
        log.write(line(1))
    assert path.read_text() == line(1)


def test_an_unopenable_log_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("nowhere/log", "link", ".", "pipe"):
        with pytest.raises(
            ConfigError, match=r"the log .* cannot be written: .*\nMake it a regular file"
        ):
            RotatingLog(tmp_path / name)


def test_the_log_is_private_to_its_owner_and_not_inherited(tmp_path: Path) -> None:
    with closing(RotatingLog(tmp_path / "log")) as log:
        assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
        assert not os.get_inheritable(log._file)


def test_a_closed_log_is_not_written(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write(line(0))


def test_a_log_that_cannot_be_rotated_continues_in_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "log.1").mkdir()
    (tmp_path / "log.1" / "full").touch()
    with closing(RotatingLog(tmp_path / "log", max_bytes=25, max_old_files=1)) as log:
        for number in range(5):
            log.write(line(number))
    assert (tmp_path / "log").read_text() == "".join(map(line, range(5)))


def test_a_full_disk_drops_whole_lines_only(tiny_disk: Path) -> None:
    path = tiny_disk / "log"
    with closing(RotatingLog(path)) as log:
        log.write("a" * 4000 + "\n")
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                log.write("b" * 200 + "\n")
        assert path.read_text() == "a" * 4000 + "\n"
        log.write("c\n")
        assert path.read_text() == "a" * 4000 + "\nc\n"


def test_a_full_disk_raises_no_error_in_the_event_log(tiny_disk: Path) -> None:
    path = tiny_disk / "log"
    with closing(RotatingLog(path)) as log:
        event_log = EventLog([json_lines(log, {})])
        event_log.publish(Event(name="x", at=float(i), fields={}) for i in range(500))
        assert event_log.close(TIMEOUT_S)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert 10 < len(lines) < 500
    assert [event["at"] for event in lines] == [float(i) for i in range(len(lines))]


def test_events_that_a_sink_refuses_are_reported_to_the_others_and_counted_for_it() -> None:
    refused, others, kept = 3, list[Event](), list[Event]()

    def disk(event: Event) -> None:
        nonlocal refused
        if refused:
            refused -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(event)

    event_log = EventLog([disk, others.append])
    event_log.publish(Event(name="x", at=float(i), fields={}) for i in range(5))
    assert event_log.close(TIMEOUT_S)
    assert [event.name for event in others] == ["service.warning", *"xxxxx"]
    assert others[0].fields == {
        "about": "log",
        "text": "events are not written: No space left on device",
    }
    assert [(event.name, event.at) for event in kept] == [("log.dropped", 3.0), ("x", 3), ("x", 4)]
    assert kept[0].fields == {"events": 3}


def test_an_event_that_a_sink_cannot_put_into_words_costs_no_other_event() -> None:
    others, kept = list[Event](), list[Event]()

    def words(event: Event) -> None:
        if event.at == 1.0:
            raise KeyError("word")
        kept.append(event)

    event_log = EventLog([words, others.append])
    event_log.publish(Event(name="x", at=float(i), fields={}) for i in range(3))
    assert event_log.close(TIMEOUT_S)
    assert [event.name for event in others] == ["x", "service.warning", "x", "x"]
    assert "a bug in sentinel: KeyError('word')" in str(others[1].fields["text"])
    assert [event.name for event in kept] == ["x", "log.dropped", "x"]


FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@pytest.fixture(params=["inotify", "no inotify instance"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "inotify":
        monkeypatch.setattr(log_file, "_watch", lambda _: None)
        monkeypatch.setattr(log_file, "_POLL_MS", 10)


@pytest.mark.usefixtures("_how")
def test_the_last_lines_and_the_number_of_dropped_bytes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"
    file = os.open(path, FLAGS)
    with closing(BoundedOutput(file, 1000)) as bounded:
        os.write(file, b"short\n")
        for number in range(300):
            os.write(file, b"line %d\n" % number)
        eventually(lambda: bounded.dropped > 0)
        os.write(file, b"the end\n")
    os.close(file)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("[sentinel: ")
    assert f"{bounded.dropped:,} bytes of output were dropped here]" in lines[0]
    assert lines[-1] == "the end"
    assert all(line.startswith("line ") for line in lines[1:-1])
    assert path.stat().st_size <= 1000


@pytest.mark.usefixtures("_how")
def test_output_below_the_limit_stays_as_it_is(tmp_path: Path) -> None:
    file = os.open(tmp_path / "out", FLAGS)
    with closing(BoundedOutput(file, 1000)) as bounded:
        os.write(file, b"a" * 1000)
    os.close(file)
    assert bounded.dropped == 0
    assert (tmp_path / "out").read_bytes() == b"a" * 1000


def test_a_burst_blocks_and_fails_no_writer(tmp_path: Path) -> None:
    path, size = tmp_path / "out", 20_000_000
    file = os.open(path, FLAGS)
    script = f"import os\nfor _ in range({size // 10_000}): print('x' * 9_999)"
    with closing(BoundedOutput(file, 100_000)) as bounded:
        done = subprocess.run([sys.executable, "-c", script], stdout=file, check=False)
    os.close(file)
    assert done.returncode == 0
    assert path.stat().st_size <= 100_000 + 200
    assert bounded.dropped > 0
