"""A real daemon on simulated GPUs, used through the command line and the client."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import sentinel
from sentinel.cli.main import run_command_line
from sentinel.client.client import Client
from sentinel.errors import SentinelError
from sentinel.host.paths import Places, places
from sentinel.host.registry import running
from sentinel.protocol.api_types import GpuStatus
from tests.harness.command_line import CommandOutput
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually, gone, title_of
from tests.harness.timing import TIMEOUT_S

#: Short intervals, a workload that needs no processor time, and no hurry on a slow host.
QUICK = ("--rearm", "300ms", "--poll", "100ms", "--workload", "hold", "--unwatched-after", "5s")


class Daemon:
    """The daemon of a host's simulated GPUs, running or not.

    Args:
        host: The host of the simulated GPUs.
    """

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.places: Places = places(os.environ, os.getuid(), host.folder)
        self.client: Client = sentinel.connect()
        self._seen: list[psutil.Process] = []

    def run(self, *words: str) -> str:
        """Run a command that must succeed; return its standard output."""
        output = self.run_unchecked(*words)
        assert output.code == 0, output
        return output.out

    def run_unchecked(self, *words: str) -> CommandOutput:
        """Run a command in this process; return its exit code and output."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line(list(words))
        self.processes()
        return CommandOutput(code, out.getvalue(), err.getvalue())

    @contextmanager
    def start_command(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command in its own process; kill it at the end."""
        process = piped_program(sys.executable, "-m", "sentinel", *words, stderr=subprocess.PIPE)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def start(self, gpus: int, *flags: str) -> int:
        """Start a daemon; return its PID once it answers."""
        self.run("start", "--simulate", str(gpus), "--wait", "0", *QUICK, *flags)
        return self.pid

    @property
    def pid(self) -> int:
        """The PID of the running daemon."""
        pid = running(self.places)
        assert pid, "no daemon runs"
        return pid

    def gpu(self, index: int = 0) -> GpuStatus:
        """Read the status of one GPU from the daemon."""
        return self.client.gpu(index)

    def wait_until_read(self) -> None:
        """Wait until every GPU was read; on a busy host, any of them may be the last one."""

        def is_read() -> bool:
            gpus = self.client.status().gpus
            return bool(gpus) and all(gpu.read_s is not None for gpu in gpus)

        eventually(is_read)

    def wait_until_occupied(self, *indices: int) -> None:
        """Wait until each of these GPUs is held by exactly one stressor."""
        for index in indices:
            self._wait_until_occupied(index)

    def _wait_until_occupied(self, index: int) -> None:
        uuid = self.host.uuid(index)

        def occupied() -> bool:
            held = [process.pid for process in self.host.registry.processes(uuid)]
            gpu = self.gpu(index)
            return gpu.occupied and held == [gpu.pid]

        eventually(occupied)

    def wait_for_stressor(self, index: int) -> None:
        """Wait until a stressor starts on a GPU."""
        eventually(lambda: self.gpu(index).stressor in {"STARTING", "RUNNING"})

    def pids_on_gpus(self) -> list[int]:
        """List the PIDs of all processes with GPU memory."""
        registry = self.host.registry
        return [member.pid for gpu in registry.gpus() for member in registry.processes(gpu.uuid)]

    def child(self, title: str) -> psutil.Process:
        """Find the daemon's child with this word in its process title."""
        eventually(lambda: any(title in title_of(process) for process in self.processes()))
        return next(process for process in self.processes() if title in title_of(process))

    def kill_api(self) -> psutil.Process:
        """Kill the API process, and wait until it is gone; the supervisor starts another one."""
        api = self.child("sentinel: api")
        api.kill()
        eventually(lambda: gone(api))
        return api

    def processes(self) -> list[psutil.Process]:
        """List the daemon and its descendants."""
        pid = running(self.places)
        if not pid:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(pid)
            processes = [daemon, *daemon.children(recursive=True)]
            self._seen += [process for process in processes if process not in self._seen]
            return processes
        return []

    def kill(self) -> None:
        """Kill the daemon by SIGKILL, and wait for its descendants to end."""
        self.processes()
        os.kill(self.pid, signal.SIGKILL)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        """Wait until every known process is gone, and check that no memory is held."""
        eventually(lambda: all(gone(process) for process in self._seen))
        # The lock was seen to be free some milliseconds after the last known process had ended.
        eventually(lambda: running(self.places) is None)
        assert self.pids_on_gpus() == []

    def close(self) -> None:
        """Shut the daemon down, kill remaining processes and fail if there are any."""
        self.processes()
        with contextlib.suppress(SentinelError):
            self.client.stop(TIMEOUT_S)
        with contextlib.suppress(AssertionError):
            eventually(lambda: all(gone(process) for process in self._seen))
        remaining = [process for process in self._seen if not gone(process)]
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not remaining, f"still running: {remaining}"


@contextmanager
def isolated_daemon(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Set the environment of this process to a host's simulated GPUs; end their daemon later."""
    for name in list(os.environ):
        if name.startswith(("SENTINEL_", "NOTIFY_", "WATCHDOG_", "STATE_", "LOGS_", "CUDA_")):
            monkeypatch.delenv(name)
    for name, value in daemon_environment(host.folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sentinel.cli.daemon.start.START_TIMEOUT_S", TIMEOUT_S)
    daemon = Daemon(host)
    try:
        yield daemon
    finally:
        daemon.close()


def daemon_environment(folder: Path) -> dict[str, str]:
    """Build the variables by which commands find the daemon of a folder."""
    return {
        "SENTINEL_SIM_DIR": str(folder),
        "SENTINEL_STANDBY": "off",  # it would take the time of other tests
        "SENTINEL_CONFIG": str(settings_file(folder)),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "80",
    }


def settings_file(folder: Path) -> Path:
    """Return the path of the daemon's settings file; create an empty file if it is missing."""
    file = folder / "config.toml"
    file.touch()
    return file


def read_line(process: subprocess.Popen[str]) -> str:
    """Read the next line of a process; fail with its standard error at the end of its output."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.rstrip("\n")


def write_line(process: subprocess.Popen[str], text: str) -> None:
    """Write a line to the standard input of a process."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def children_of(words: Sequence[str], processes: Sequence[psutil.Process]) -> list[int]:
    """List the PIDs of processes that have one of these words in their title."""
    return [
        process.pid for process in processes if any(word in title_of(process) for word in words)
    ]
