"""A real daemon on simulated GPUs, reached as people and scripts reach it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import sentinel
from sentinel.cli.main import run_command_line
from sentinel.client import Client, GpuStatus
from sentinel.errors import SentinelError
from sentinel.host.paths import Places, places
from sentinel.supervisor.single_instance import running
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.sentinel_process import eventually, gone
from tests.harness.timing import TIMEOUT_S

#: Quick, and a workload that leaves the processors to others.
QUICK = ("--rearm", "300ms", "--poll", "100ms", "--workload", "hold")


@dataclass(frozen=True)
class CommandOutput:
    """How a command went: its exit code, and what it printed."""

    code: int
    out: str
    err: str


class Daemon:
    """The daemon of the simulated GPUs of a host, whether it runs or not.

    Args:
        host: Where its GPUs are.
    """

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.places: Places = places(os.environ, os.getuid(), host.folder)
        self.client: Client = sentinel.connect()
        self._seen: list[psutil.Process] = []

    def run(self, *words: str) -> str:
        """Run a command that must go well, and return its standard output."""
        output = self.run_unchecked(*words)
        assert output.code == 0, output
        return output.out

    def run_unchecked(self, *words: str) -> CommandOutput:
        """Run a command in this process, as the command line does."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line(list(words))
        self.processes()
        return CommandOutput(code, out.getvalue(), err.getvalue())

    @contextmanager
    def start_command(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command in a process of its own, and end it in any case."""
        process = subprocess.Popen(
            [sys.executable, "-m", "sentinel", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def start(self, gpus: int, *flags: str) -> int:
        """Start a daemon, and return its PID once it answers."""
        self.run("start", "--simulate", str(gpus), *QUICK, *flags)
        return self.pid

    @property
    def pid(self) -> int:
        """The PID of the daemon that runs."""
        pid = running(self.places)
        assert pid, "no daemon runs"
        return pid

    def gpu(self, index: int = 0) -> GpuStatus:
        """Return what the daemon shows of a GPU."""
        return self.client.gpu(index)

    def wait_until_occupied(self, *indices: int) -> None:
        """Wait until these GPUs are occupied, and each is held by one stressor, not two."""
        for index in indices:
            self._wait_until_occupied(index)

    def _wait_until_occupied(self, index: int) -> None:
        eventually(lambda: self.gpu(index).occupied)
        (held,) = self.host.registry.processes(self.host.uuid(index))
        assert held.pid == self.gpu(index).pid

    def wait_for_stressor(self, index: int) -> None:
        """Wait until a GPU gets a stressor."""
        eventually(lambda: self.gpu(index).stressor in {"STARTING", "RUNNING"})

    def pids_on_gpus(self) -> list[int]:
        """Return the PIDs of all who hold memory of any GPU."""
        registry = self.host.registry
        return [one.pid for gpu in registry.gpus() for one in registry.processes(gpu.uuid)]

    def child(self, title: str) -> psutil.Process:
        """Return the daemon's child with this word in its title."""
        eventually(lambda: any(title in _title(one) for one in self.processes()))
        return next(one for one in self.processes() if title in _title(one))

    def processes(self) -> list[psutil.Process]:
        """Return the daemon and all processes below it."""
        pid = running(self.places)
        if not pid:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(pid)
            family = [daemon, *daemon.children(recursive=True)]
            self._seen += [one for one in family if one not in self._seen]
            return family
        return []

    def kill(self) -> None:
        """SIGKILL the daemon; all below it must follow."""
        self.processes()
        os.kill(self.pid, signal.SIGKILL)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        """Wait until every process that was seen is gone, and no memory is held."""
        eventually(lambda: all(gone(one) for one in self._seen))
        assert running(self.places) is None
        assert self.pids_on_gpus() == []

    def close(self) -> None:
        """End whatever is left, and say so."""
        self.processes()
        with contextlib.suppress(SentinelError):
            self.client.shutdown(TIMEOUT_S)
        left = self._seen
        with contextlib.suppress(AssertionError):
            eventually(lambda: all(gone(one) for one in left))
        left = [one for one in left if not gone(one)]
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        assert not left, f"left behind: {left}"


@contextmanager
def isolated_daemon(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Make this process one that uses a host's simulated GPUs, and end their daemon after it."""
    for name in list(os.environ):
        if name.startswith(("SENTINEL_", "NOTIFY_", "WATCHDOG_", "STATE_", "LOGS_", "CUDA_")):
            monkeypatch.delenv(name)
    for name, value in daemon_environment(host.folder).items():
        monkeypatch.setenv(name, value)
    one = Daemon(host)
    try:
        yield one
    finally:
        one.close()


def daemon_environment(folder: Path) -> dict[str, str]:
    """Return the variables by which commands find the daemon of a folder."""
    return {
        "SENTINEL_SIM_DIR": str(folder),
        "SENTINEL_CONFIG": str(settings_file(folder)),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "80",
    }


def settings_file(folder: Path) -> Path:
    """Return the daemon's settings file, which is made empty where there is none."""
    file = folder / "config.toml"
    file.touch()
    return file


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process, or its last words where there is none."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.rstrip("\n")


def write_line(process: subprocess.Popen[str], text: str) -> None:
    """Give a process a line to read."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def children_of(words: Sequence[str], family: Sequence[psutil.Process]) -> list[int]:
    """Return the PIDs of those of a family that have one of these words in their title."""
    return [one.pid for one in family if any(word in _title(one) for word in words)]


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
