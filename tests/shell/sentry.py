"""A real sentinel on simulated GPUs as a test has it: its events, its processes, foreign jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from sentinel.procfs import read_stat
from sentinel.simulation import Registry

#: How long anything may take on a host that is busy with other tests.
PATIENCE = 30.0

Event = Mapping[str, Any]


class Sentry:
    """One ``python -m sentinel run --simulate`` in a process of its own.

    Args:
        folder: The registry of simulated GPUs.
        flags: Flags of ``run``; ``--simulate`` among them.
        environment: Variables on top of ours.
        read: Whether anybody reads its standard output.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        read: bool = True,
    ) -> None:
        self.registry = Registry(folder)
        self.events: list[Event] = []
        self.errors = ""
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "run", *flags],
            env=surroundings(folder) | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=self._read_errors, daemon=True)]
        if read:
            self._threads.append(threading.Thread(target=self._read_events, daemon=True))
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def wait_for(
        self, name: str, *, count: int = 1, index: int | None = None, within: float = PATIENCE
    ) -> Event:
        """Return the ``count``-th event of that name, on that GPU."""
        until = time.monotonic() + within
        with self._news:
            while True:
                found = [e for e in self.events if e["event"] == name and _on(e, index)]
                if len(found) >= count:
                    return found[count - 1]
                left = until - time.monotonic()
                if left <= 0 or (
                    self.process.poll() is not None and not self._threads[-1].is_alive()
                ):
                    names = [f"{e['event']}@{e.get('index', '')}" for e in self.events]
                    raise AssertionError(f"no {name} x{count}; {names}; stderr: {self.errors}")
                self._news.wait(min(left, 0.5))

    def names(self, index: int | None = None) -> list[str]:
        """Return the names of all events so far, on that GPU."""
        return [event["event"] for event in self.events if _on(event, index)]

    def uuid(self, index: int = 0) -> str:
        """Return the UUID of a simulated GPU."""
        return self.registry.gpus()[index].uuid

    def children(self) -> list[psutil.Process]:
        """Return the processes below the sentinel that are alive, stressors and probe alike."""
        with suppress(psutil.NoSuchProcess):
            return [
                p for p in psutil.Process(self.process.pid).children(recursive=True) if _lives(p)
            ]
        return []

    def stressors(self) -> list[psutil.Process]:
        """Return the stressor children that are alive and have said what they are."""
        return [child for child in self.children() if "keeps idle GPU" in _title(child)]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self, within: float = PATIENCE) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(within)
        for thread in self._threads:
            thread.join(5)
        return code

    def close(self) -> None:
        """Close our ends, once the reading threads have reached theirs."""
        for thread in self._threads:
            thread.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def held(self, index: int = 0) -> int:
        """Return the memory in use on a simulated GPU, in bytes."""
        return self.registry.memory(self.uuid(index)).used


@contextmanager
def sentry(
    folder: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    read: bool = True,
) -> Iterator[Sentry]:
    """Run a sentinel; at the end nothing of it may be left, however it went."""
    one = Sentry(folder, *flags, environment=environment, read=read)
    family = []
    try:
        yield one
    finally:
        family = one.children()
        if one.process.poll() is None:
            one.process.kill()
        with suppress(psutil.NoSuchProcess):
            psutil.wait_procs(family, timeout=10)
        left = [process for process in family if _lives(process)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        one.process.wait(10)
        one.close()
        assert not left, f"left behind: {left}"


@contextmanager
def job(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run a foreign job on a simulated GPU."""
    command = [sys.executable, "-m", "sentinel", "simulate-job", *flags]
    process = subprocess.Popen(command, env=surroundings(folder), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def verdict(process: subprocess.Popen[str]) -> str:
    """Return how a foreign job's first big allocation went: ``job.got`` or ``job.refused``."""
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["event"])


def surroundings(folder: Path) -> dict[str, str]:
    """Return the environment of a sentinel and its jobs."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    tests = str(Path(__file__).parent)
    return ours | {"SENTINEL_SIM_DIR": str(folder), "PYTHONPATH": tests}


def eventually(true: Callable[[], object], within: float = PATIENCE) -> float:
    """Return how many seconds it took until something became true."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within, "it did not become true"
        time.sleep(0.01)
    return time.monotonic() - began


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended; a zombie has."""
    return not _lives(process)


def _lives(process: psutil.Process) -> bool:
    stat = read_stat(process.pid)
    return stat is not None and stat.alive


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _on(event: Event, index: int | None) -> bool:
    return index is None or event.get("index") == index
