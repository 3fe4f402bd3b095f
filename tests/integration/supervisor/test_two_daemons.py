"""Two daemons: one of two at a socket wins, and each at a socket of its own has its own state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentinel.host import verified_store
from sentinel.host.registry import running
from tests.harness.daemon_harness import QUICK, Daemon, isolated_daemon
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.usefixtures("fake_torch")


@pytest.fixture
def daemons(
    simulated: SimulatedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Daemon, Daemon]]:
    """Provide a daemon at the default socket and one at a socket of its own, neither started."""
    with ExitStack() as stack:
        usual = stack.enter_context(isolated_daemon(simulated, monkeypatch))
        monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "own.sock"))
        own = Daemon(simulated)
        stack.callback(own.close)
        yield usual, own


@pytest.mark.long
def test_each_keeps_its_reservations_log_and_history_over_a_restart(
    daemons: tuple[Daemon, Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual, own = daemons
    own.start(2, "--gpus", "1")
    own.client.reserve(["1"], seconds=3600, reason="for me")
    monkeypatch.delenv("SENTINEL_SOCKET")
    usual.start(2, "--gpus", "0")
    usual.client.reserve(["0"], seconds=3600, reason="for you")
    for one, reason in ((usual, "for you"), (own, "for me")):
        assert [held.reason for held in one.client.status().reservations] == [reason]
    usual.close()
    own.close()

    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "own.sock"))
    own.start(2, "--gpus", "1")
    eventually(lambda: own.gpu(1).occupancy == "IDLE")
    (held,) = own.client.status().reservations
    assert (held.reason, [gpu.index for gpu in own.client.status().gpus]) == ("for me", [1])
    assert not own.gpu(1).occupied

    for daemon in daemons:
        names = {path.name for path in daemon.places.state.iterdir()}
        assert {"reservations.json", "history.db", "sentinel.log"} <= names
        started = json.loads(daemon.places.log.read_text().splitlines()[0])
        assert [gpu["index"] for gpu in started["gpus"]] == [int(daemon is own)]
    assert set(verified_store.read(usual.places.shared / verified_store.NAME)) == {
        usual.host.uuid(0),
        usual.host.uuid(1),
    }
    assert not (own.places.state / verified_store.NAME).exists()
    shown = own.run("logs", "--json")
    assert usual.host.uuid(0) not in shown
    assert "for me" in shown


#: The points at which a daemon is killed.
POINTS = ("claimed", "starting", "stopping", "yielding")


def winner_of_two(daemon: Daemon) -> int:
    """Start two daemons simultaneously; return the PID of the winner."""
    command = [sys.executable, "-m", "sentinel", "run", "--daemon", "--simulate", "1", *QUICK]
    pair = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    eventually(lambda: any(process.poll() is not None for process in pair))
    (loser,) = [process for process in pair if process.poll() is not None]
    (winner,) = [process for process in pair if process is not loser]
    _, error = loser.communicate()
    assert loser.returncode == 75, error
    assert f"a daemon is already running: pid {winner.pid} of uid {os.getuid()} since 2" in error
    assert str(daemon.places.socket) in error
    assert running(daemon.places) == winner.pid
    winner.returncode = 0  # another process reaps it
    assert winner.stderr is not None
    winner.stderr.close()
    return winner.pid


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_killed_at_any_point_is_replaced_by_exactly_one_of_two(
    daemon: Daemon, point: str
) -> None:
    """The next start follows the kill without a pause."""
    log = daemon.places.log

    def logged(event: str) -> None:
        text = f'"event": "{event}"'
        eventually(lambda: log.exists() and text in log.read_text())
        daemon.processes()

    pid = winner_of_two(daemon)
    match point:
        case "starting":
            logged("stressor.starting")
        case "stopping":
            logged("stressor.starting")
            os.kill(pid, signal.SIGTERM)
            logged("sentinel.stopping")
        case "yielding":
            logged("stressor.ready")
            with daemon.host.job(stay=0.1) as job:
                logged("gpu.yielding")
                os.kill(pid, signal.SIGKILL)
                assert job.got_memory()
    if point != "yielding":
        os.kill(pid, signal.SIGKILL)
    assert daemon.places.socket.exists() or point == "stopping"

    winner_of_two(daemon)
    daemon.wait_until_occupied(0)


@mostly_long(
    "what",
    [
        *("state", "read-only"),
        pytest.param("log", marks=pytest.mark.long),
        *("prints", "full disk", "settings"),
    ],
    quick=2,
)
def test_an_unwritable_folder_or_damaged_settings_prevent_the_start(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, what: str
) -> None:
    socket = daemon.places.socket
    match what:
        case "state":
            monkeypatch.setenv("STATE_DIRECTORY", "/proc/nowhere")
            expected = "the folder /proc/nowhere cannot be created: "
        case "read-only":
            state = request.getfixturevalue("tiny_disk")
            subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
            monkeypatch.setenv("STATE_DIRECTORY", str(state))
            expected = f"the folder {state} cannot be written: Read-only file system"
        case "full disk":
            socket = request.getfixturevalue("tiny_disk") / "s.sock"
            socket.with_name("fill").write_bytes(bytes(4096))
            monkeypatch.setenv("SENTINEL_SOCKET", str(socket))
            expected = f"{socket}.json cannot be written: No space left on device"
        case "settings":
            saved = daemon.places.state / "settings.toml"
            saved.write_text('[limits]\nleave_idle = 4\nrearm = "3s\n')
            expected = f"move it away to start without what was saved: mv {saved} {saved}.bad"
        case _:
            file = daemon.places.log if what == "log" else daemon.places.stderr
            file.mkdir()
            expected = f"{file} cannot be written: Is a directory. Nothing was started."
    done = daemon.run_unchecked("start", "--simulate", "1")
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert running(daemon.places) is None
    assert not socket.exists()
    assert not [*socket.parent.rglob("*.bad")]
    assert daemon.pids_on_gpus() == []


@pytest.mark.long
def test_a_full_state_disk_is_reported_and_affects_only_its_files(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tiny_disk: Path
) -> None:
    (tiny_disk / "fill").write_bytes(bytes(4096))
    monkeypatch.setenv("STATE_DIRECTORY", str(tiny_disk))
    daemon.start(1)
    events = daemon.client.events(since=0)
    # The history reports it as well, with the message of its own library.
    troubles = (event for event in events if event.name == "service.warning")
    trouble = next(one for one in troubles if one.fields["about"] == "reservations")
    assert "No space left on device" in trouble.fields["text"]
    assert "a new daemon will not restore the current reservations" in trouble.fields["text"]
    daemon.wait_for_stressor(0)
    daemon.run("stop")
    daemon.wait_until_gone()
