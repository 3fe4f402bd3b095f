"""The view of a burn-in: bars on a terminal, lines of events elsewhere."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from sentinel.burnin.run_folder import RunFolder
from sentinel.cli.daemon import burnin_follow
from sentinel.cli.daemon.burnin_bars import burnin_bars
from sentinel.cli.daemon.burnin_follow import PROGRESS, Following, progress_row
from sentinel.client import GpuStatus, connect
from sentinel.errors import ExitCode
from sentinel.protocol.api_types import BurninProgress
from tests.harness.burnin_report import PROGRESS as THIRD_PHASE
from tests.harness.gpu_views import gpu_status


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def gpu(index: int = 0, **changes: Any) -> GpuStatus:
    """Build a GPU in the third phase, with these changes of its progress."""
    shown: dict[str, Any] = {"temperature_c": 61, "power_w": 690.4, "checks": 12345, "errors": 1}
    sensors = {name: shown.pop(name) for name in ("temperature_c", "power_w")}
    progress = BurninProgress(**{**vars(THIRD_PHASE), **shown, **changes})
    return gpu_status(index, **sensors, burnin=progress)


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
    row = progress_row(gpu(**changes))
    assert (row[2], row[8]) == (done, state)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_cuts_neither_a_number_nor_the_state(width: int) -> None:
    waiting = "the GPU is used by python (pid 4711, ana)"
    row = progress_row(gpu(3, checks=123_456_789, waiting=waiting))
    lines = PROGRESS.lines([row], width)
    assert all(len(line) <= width for line in lines)
    assert all(cell in " ".join(lines) for cell in row)


def followed(
    stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, verbose: bool = False
) -> str:
    """Follow a run that ends at once; return what the stream got, without escape sequences."""
    started = {"phase": "fp16", "number": 3, "phases": 12}
    lines = [
        {"event": "burnin.phase_started", **started},
        {"event": "burnin.progress", **vars(THIRD_PHASE), "temperature_c": 61, "power_w": 690.4},
        {"event": "burnin.ended", "plan": "one", "reason": None},
    ]
    common = {"time": "2026-11-23T08:00:00+00:00", "gpu": "GPU-0", "index": 0}
    folder = RunFolder(path=tmp_path)
    folder.events.write_text("".join(f"{json.dumps(common | line)}\n" for line in lines))
    (tmp_path / "report.json").write_text('{"verdict": "PASS"}')
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr(burnin_follow, "print_report", lambda *_, **__: None)
    looks = iter([False, True])
    monkeypatch.setattr(Following, "_is_over", lambda _: next(looks))
    client = connect(tmp_path / "no.sock")
    run = SimpleNamespace(gpus=("GPU-0", "GPU-1"), plan="standard", since=datetime.now(UTC))
    status = SimpleNamespace(daemon=SimpleNamespace(burnin=run), gpus=[gpu(), gpu(1, over=True)])
    monkeypatch.setattr(client, "status", lambda: status)
    following = Following(folder, client, verbose=verbose)
    assert following.to_report(as_json=False) == ExitCode.OK
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


@pytest.mark.parametrize("verbose", [False, True])
def test_a_terminal_has_a_bar_for_each_gpu_and_lines_of_events_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, verbose: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    text = followed(Terminal(), tmp_path, monkeypatch, verbose=verbose)
    assert re.search(
        r"GPU 0  3/12 fp16 [━╸]+ +56% over 3 min 20 s left, 1 WRONG, 61 C, 690 W", text
    )
    assert re.search(r"GPU 1  done +━+ 100% 1 WRONG, 61 C, 690 W", text)
    assert ("phase       3 of 12: fp16" in text) is verbose, "the line of the event"
    assert ("-v prints a line for each event" in text) is not verbose
    assert "progress " not in text


@pytest.mark.parametrize(
    ("width", "changes", "shown"),
    [
        (80, {}, r"GPU 0  3/12 fp16 [━╸]+ +56% over 3 min 20 s left, 1 WRONG$"),
        (80, {"errors": 0}, r" left, 12,345 checked$"),
        (50, {"errors": 0}, r"GPU 0  3/12 fp16 [━╸]+ +56% over 3 min 20 s left$"),
        (
            80,
            {"number": 12, "quota_passes": 3, "passes": 1},
            r"GPU 0  12/12 fp16 pass 2/3 [━╸]+ .* over 3 min 20 s left",
        ),
        (80, {"number": 12}, r"% 3 min 20 s left"),
        (
            80,
            {"waiting": "the GPU is used by python (pid 4711, ana)"},
            r"^GPU 0: the GPU is used by",
        ),
        (80, {"over": True, "ended": "cancelled by ana"}, r"^GPU 0: cancelled by ana$"),
        (80, {"seconds": 0.0, "left_s": 0.0}, r" +0% 1 WRONG$"),
        (80, {"seconds": 9.0, "left_s": 0.0}, r" +99% 1 WRONG$"),
        (80, {"phase": "\x1b[31m"}, r"3/12 \?\[31m"),
    ],
)
def test_a_bar_has_the_phase_the_time_left_and_what_is_wrong(
    width: int, changes: dict[str, Any], shown: str
) -> None:
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        console.print(burnin_bars([gpu(**changes)], "standard", ConsoleDimensions(width, 24)))
    lines = captured.get().splitlines()
    assert any(re.search(shown, line.rstrip()) for line in lines), lines
    assert all(len(line.rstrip()) <= width - 3 for line in lines), "^C has room"


def test_a_low_terminal_leaves_out_gpus_that_are_done_first() -> None:
    gpus = [gpu(index, over=index < 2) for index in range(6)]
    console = Console(file=io.StringIO(), width=80, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        console.print(burnin_bars(gpus, "standard", ConsoleDimensions(80, 6)))
    heading, *bars = captured.get().splitlines()
    assert heading == "2 more GPUs on a higher terminal; standard"
    assert [bar.split()[1] for bar in bars] == ["2", "3", "4", "5"]


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


def test_ctrl_c_cancels_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may be over, and its reports be written, when another terminal has begun one."""
    client, cancelled = connect(tmp_path / "no.sock"), list[str]()
    monkeypatch.setattr(client, "cancel_burnin", lambda run, _reason: cancelled.append(run))
    monkeypatch.setattr(burnin_follow, "print_report", lambda *_, **__: None)
    interrupts = iter([True, False])

    def follow(*_: object) -> None:
        if next(interrupts):
            raise KeyboardInterrupt

    monkeypatch.setattr(Following, "_print_events", follow)
    (tmp_path / "report.json").write_text('{"verdict": "PASS"}')
    recorder: Any = SimpleNamespace(stdout=io.BytesIO(), wait=lambda: int(ExitCode.OK))
    following = Following(RunFolder(path=tmp_path), client, recorder, run="own")
    assert following.to_report(as_json=False) == ExitCode.OK
    assert cancelled == ["own"]
