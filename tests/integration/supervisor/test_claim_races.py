"""One of two concurrent daemons wins, and a daemon without its socket holds no GPU.

test_single_instance.py repeats the claim a hundred times; ``python -m benchmarks.rivals`` runs
whole daemons any number of times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.host.registry import running
from tests.harness.daemon_harness import QUICK, Daemon
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.usefixtures("fake_torch")
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


@pytest.mark.parametrize("what", ["state", pytest.param("log", marks=pytest.mark.long), "prints"])
def test_an_unwritable_state_or_log_folder_prevents_the_start(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    if what == "state":
        monkeypatch.setenv("STATE_DIRECTORY", "/proc/nowhere")
        expected = "the folder /proc/nowhere cannot be created: "
    else:
        file = daemon.places.log if what == "log" else daemon.places.stderr
        file.mkdir()
        expected = f"{file} cannot be written: Is a directory. Nothing was started."
    done = daemon.run_unchecked("start", "--simulate", "1")
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert running(daemon.places) is None
    assert not daemon.places.socket.exists()
    assert daemon.pids_on_gpus() == []


def test_a_full_disk_of_the_socket_prevents_the_start(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tiny_disk: Path
) -> None:
    (tiny_disk / "fill").write_bytes(bytes(4096))
    monkeypatch.setenv("SENTINEL_SOCKET", str(tiny_disk / "s.sock"))
    done = daemon.run_unchecked("start", "--simulate", "1")
    assert done.code == 2
    assert f"{tiny_disk}/s.sock.json cannot be written: No space left on device" in done.err
    assert not (tiny_disk / "s.sock").exists()
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
