"""A real sentinel as a test has it: its events, its processes, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from sentinel.host.procfs import read_stat
from tests.harness.timing import TIMEOUT_S

Event = Mapping[str, Any]


class Sentry:
    """One ``python -m sentinel run`` in a process of its own.

    Args:
        command: The whole command.
        environment: All of its variables.
        indices: nvidia-smi's index of each GPU that the test counts from 0.
        read: Whether anybody reads its standard output.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        indices: Sequence[int],
        read: bool,
    ) -> None:
        self.events: list[Event] = []
        self.errors = ""
        self._indices = indices
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            command,
            env=environment,
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
        self, name: str, *, count: int = 1, gpu: int | None = None, within: float = TIMEOUT_S
    ) -> Event:
        """Return the ``count``-th event of that name, on that GPU."""
        until = time.monotonic() + within
        with self._news:
            while True:
                found = [e for e in self.events if e["event"] == name and self._on(e, gpu)]
                if len(found) >= count:
                    return found[count - 1]
                left = until - time.monotonic()
                if left <= 0 or (
                    self.process.poll() is not None and not self._threads[-1].is_alive()
                ):
                    names = [f"{e['event']}@{e.get('index', '')}" for e in self.events]
                    raise AssertionError(f"no {name} x{count}; {names}; stderr: {self.errors}")
                self._news.wait(min(left, 0.5))

    def names(self, gpu: int | None = None) -> list[str]:
        """Return the names of all events so far, on that GPU."""
        return [event["event"] for event in self.events if self._on(event, gpu)]

    def _on(self, event: Event, gpu: int | None) -> bool:
        return gpu is None or event.get("index") == self._indices[gpu]

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

    def ended(self, within: float = TIMEOUT_S) -> int:
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


@contextmanager
def sentry(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    indices: Sequence[int],
    read: bool = True,
) -> Iterator[Sentry]:
    """Run a sentinel; at the end nothing of it may be left, however it went."""
    one = Sentry(command, environment, indices=indices, read=read)
    family = []
    try:
        yield one
    finally:
        family = one.children()
        if one.process.poll() is None:
            one.process.kill()
        # A zombie is gone: its new parent may take its time, or never reap it, as in containers.
        until = time.monotonic() + 10
        while (left := [p for p in family if _lives(p)]) and time.monotonic() < until:
            time.sleep(0.01)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        one.process.wait(10)
        one.close()
        assert not left, f"left behind: {left}"


def eventually(condition: Callable[[], object], within: float = TIMEOUT_S) -> None:
    """Wait until a condition holds; look often at first, and less often later."""
    deadline, pause = time.monotonic() + within, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"it did not become true within {within:.0f} s"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)


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
