"""`sentinel top` in a real terminal: its screen and its keys."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import CommandLine
from tests.harness.sentinel_process import eventually
from tests.harness.stub_daemon import GPU, RESERVATION, STATUS, Reply, StubDaemon, stub_daemon
from tests.harness.terminal import Terminal

SECOND = {
    **GPU,
    "uuid": "GPU-67750949-3d58-58a0-b106-f4bfd7f7c993",
    "index": 1,
    "stressor": "STOPPED",
    "occupancy": "BUSY",
    "processes": [{"pid": 7, "name": "python", "user": "ana"}],
    "flops_per_s": None,
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    with stub_daemon(tmp_path / "s") as daemon:
        daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [GPU, SECOND]})
        daemon.replies["POST /v1/pause"] = Reply({"text": "GPU 1 is paused"})
        daemon.replies["POST /v1/resume"] = Reply({"text": "GPU 1 goes on"})
        daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
        yield daemon


@pytest.fixture
def terminal(daemon: StubDaemon, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    command = [sys.executable, "-m", "sentinel", "top", "--every", "200ms"]
    one = Terminal(tmp_path, *command, "--socket", str(daemon.socket))
    yield one
    one.close()


def orders(daemon: StubDaemon) -> list[tuple[str, object]]:
    return [asked for asked in daemon.requests if not asked[0].startswith("GET ")]


def test_top_shows_every_gpu_and_its_keys_pause_resume_and_reserve(
    daemon: StubDaemon, terminal: Terminal
) -> None:
    screen = terminal.shows("occupied", "busy", "ana 7 python", "656TF/s", "██", "Pause", "Quit")
    assert "pid 4242" in screen
    terminal.press("Down", "Tab")
    terminal.shows(f"GPU 1  Simulated GPU  busy {SECOND['uuid']}")
    terminal.press("p")
    terminal.shows("Pause GPU 1 for how long")
    terminal.press("3", "0", "m", "Enter")
    terminal.shows("GPU 1 is paused")
    terminal.press("r")
    terminal.shows("GPU 1 goes on")
    terminal.press("v")
    terminal.shows("Reserve GPU 1 for how long?")
    terminal.press("3", "0", "m", "Enter")  # replaces the proposed value
    terminal.shows("reserved as", "1a2b3c4d")
    chosen = {"gpus": [SECOND["uuid"]]}
    rest = {"reason": "sentinel top", "seconds": 1800, "wait_s": 30, "bound": False}
    assert orders(daemon) == [
        ("POST /v1/pause", {**chosen, "seconds": 1800, "wait_s": 0}),
        ("POST /v1/resume", chosen),
        ("PUT /v1/reservations/*", {**chosen, **rest}),
    ]
    terminal.press("q")
    terminal.shows("exit code 0")


@pytest.mark.long
def test_top_continues_after_errors_of_the_daemon(daemon: StubDaemon, terminal: Terminal) -> None:
    terminal.shows("occupied")
    daemon.replies["GET /v1/status"] = Reply(b"")
    terminal.shows("closed the connection", "occupied")
    daemon.replies["GET /v1/status"] = Reply(STATUS)
    terminal.shows("pid 4242")
    assert "ana 7 python" not in terminal.screen()
    daemon.replies["GET /v1/status"] = Reply(b"", 0)  # the request hangs, but q works
    asked = len(daemon.requests)
    eventually(lambda: len(daemon.requests) > asked)
    terminal.press("q")
    terminal.shows("exit code 0")


@pytest.mark.usefixtures("daemon")
def test_top_shows_its_screen_if_only_standard_error_is_redirected(tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    errors = tmp_path / "errors"
    words = [sys.executable, "-m", "sentinel", "top", "--socket", str(tmp_path / "s")]
    terminal = Terminal(tmp_path, *words, f"2>{errors}")
    try:
        terminal.shows("occupied", "busy", "Quit")
        terminal.press("q")
        terminal.shows("exit code 0")
    finally:
        terminal.close()
    assert errors.read_text() == ""


def test_top_without_a_daemon_is_an_error(tmp_path: Path, cli: CommandLine) -> None:
    assert (
        "no sentinel daemon runs at" in cli("top", "--socket", str(tmp_path / "none"), code=3).err
    )


def test_top_without_textual_reports_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    loaded = [name for name in sys.modules if name.startswith(("textual", "sentinel.cli.tui"))]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    assert "pip install 'gpu-sentry[tui]'" in cli("top", "--socket", "/nowhere", code=2).err
