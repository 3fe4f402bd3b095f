"""The view of a burn-in: a table below the events on a terminal, lines alone elsewhere."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.run_folder import RunFolder
from sentinel.cli.daemon import burnin_follow
from sentinel.cli.daemon.burnin_follow import progress_row
from sentinel.client import connect
from sentinel.core.step import Event
from sentinel.errors import ExitCode

PROGRESS: dict[str, Any] = {
    "phase": "fp16",
    "number": 3,
    "phases": 12,
    "done_s": 4.2,
    "quota_s": 9.0,
    "passes": 0,
    "quota_passes": 0,
    "left_s": 200.4,
    "checks": 12345,
    "errors": 1,
    "waiting": None,
    "temperature_c": 61,
    "power_w": 690.4,
    "sm_clock_mhz": 1700,
}


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def events() -> list[Event]:
    started = {"phase": "fp16", "number": 3, "phases": 12}
    return [
        Event(name="burnin.phase_started", at=1.0, gpu="GPU-0", fields=started),
        Event(name="burnin.progress", at=2.0, gpu="GPU-0", fields=PROGRESS),
        Event(name="burnin.ended", at=3.0, gpu="GPU-0", fields={"plan": "one", "reason": None}),
    ]


@pytest.mark.parametrize(
    ("changes", "done", "state"),
    [
        ({"waiting": "the GPU is busy"}, "4 s of 9 s", "the GPU is busy"),
        ({"quota_s": 0.0, "quota_passes": 3, "passes": 1}, "1 of 3", "counts"),
        ({"over": True, "ended": None}, "4 s of 9 s", "done"),
        ({"over": True, "ended": "cancelled by user 0"}, "4 s of 9 s", "cancelled by user 0"),
    ],
)
def test_a_row_says_how_far_a_gpu_is(changes: dict[str, Any], done: str, state: str) -> None:
    row = progress_row(0, PROGRESS | changes, {"temperature_c": None, "power_w": None})
    assert (row[2], row[6], row[7], row[8]) == (done, "", "", state)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_cuts_neither_a_number_nor_the_state(width: int) -> None:
    waiting = "the GPU is used by python (pid 4711, ana)"
    row = progress_row(3, {**PROGRESS, "checks": 123_456_789, "waiting": waiting}, PROGRESS)
    lines = burnin_follow.PROGRESS.lines([row], width)
    assert all(len(line) <= width for line in lines)
    assert all(cell in " ".join(lines) for cell in row)


def followed(stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Follow a recorded run that is over; return what the stream got, without escape sequences."""
    lines = [
        {"event": event.name, "time": "2026-11-23T08:00:00+00:00", "gpu": event.gpu, "index": 0}
        | dict(event.fields)
        for event in events()
    ]
    folder = RunFolder(path=tmp_path)
    folder.events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "report.json").write_text('{"verdict": "PASS"}')
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr(burnin_follow, "print_report", lambda *_, **__: None)
    client = connect(tmp_path / "no.sock")
    following = burnin_follow.Following(folder, client)
    assert following.to_report(as_json=False) == ExitCode.OK
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def test_a_terminal_has_a_table_that_replaces_the_lines_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = followed(Terminal(), tmp_path, monkeypatch)
    assert "3 of 12: fp16" in text, "the line of the event"
    assert "3 of 12 fp16 4 s of 9 s 3 min 20 s  12,345     1 61 C 690 W counts" in text
    assert "690 W done" in text
    assert "progress " not in text


def test_a_file_has_every_event_as_a_line_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = followed(io.StringIO(), tmp_path, monkeypatch)
    assert len(text.splitlines()) == 3
    assert "progress" in text
    assert "PHASE" not in text


def test_a_stream_that_is_gone_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    assert followed(Gone(), tmp_path, monkeypatch) == ""
