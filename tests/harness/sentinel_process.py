"""A real sentinel in its own process: events, children and exit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from sentinel.host.procfs import read_stat
from tests.harness.narrowing import not_none
from tests.harness.timing import TIMEOUT_S

Event = Mapping[str, Any]
#: Fields that are the same in all events of a test, or printed beside the others.
_NOT_PRINTED = frozenset({"event", "at", "time", "gpu"})


class SentinelProcess:
    """One ``python -m sentinel run``.

    Args:
        command: The complete command line.
        environment: The complete environment.
        indices: nvidia-smi's index of each GPU, in the test's order.
        read: Whether to read its standard output.
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
        self._changed = threading.Condition()
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
        for line in not_none(self.process.stdout):
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        for line in not_none(self.process.stderr):
            self.errors += line

    def wait_for(self, name: str, *, count: int = 1, gpu: int | None = None) -> Event:
        """Wait for the ``count``-th event of that name on a GPU; return it."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._changed:
            while True:
                found = [e for e in self.events if e["event"] == name and self._on(e, gpu)]
                if len(found) >= count:
                    return found[count - 1]
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0 or (
                    self.process.poll() is not None and not self._threads[-1].is_alive()
                ):
                    names = [f"{e['event']}@{e.get('index', '')}" for e in self.events]
                    raise AssertionError(f"no {name} x{count}; {names}; stderr: {self.errors}")
                self._changed.wait(min(remaining_s, 0.5))

    def names(self, gpu: int | None = None) -> list[str]:
        """List the names of all events so far, optionally of one GPU."""
        return [event["event"] for event in self.events if self._on(event, gpu)]

    def _on(self, event: Event, gpu: int | None) -> bool:
        return gpu is None or event.get("index") == self._indices[gpu]

    def print_events(self) -> None:
        """Print the latest events, each with the seconds since the first one, and the errors."""
        for event in self.events[-200:]:
            details = {key: value for key, value in event.items() if key not in _NOT_PRINTED}
            after_s = event["at"] - self.events[0]["at"]
            sys.stdout.write(f"{after_s:8.3f} {event['event']} {details}\n")
        sys.stdout.write(self.errors[-2000:])

    def children(self) -> list[psutil.Process]:
        """List the living descendants of the sentinel, stressors and probe alike."""
        with suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self.process.pid).children(recursive=True)
            return [process for process in descendants if not gone(process)]
        return []

    def stressors(self) -> list[psutil.Process]:
        """List the living stressors that have set their process title."""
        return [child for child in self.children() if "keeps idle GPU" in title_of(child)]

    def wait_for_process(self, words: str) -> psutil.Process:
        """Wait until one process, of the sentinel or its descendants, has these words in its title.

        A slow process may be about to set its title, or to be replaced.
        """
        found: list[psutil.Process] = []

        def one() -> bool:
            processes = [psutil.Process(self.process.pid), *self.children()]
            found[:] = [process for process in processes if words in title_of(process)]
            return len(found) == 1

        eventually(one)
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.wait_for_exit()

    def wait_for_exit(self) -> int:
        """Wait for the exit; return the exit code."""
        code = self.process.wait(TIMEOUT_S)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        return code

    def close(self) -> None:
        """Close the pipes after the reading threads have ended."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for stream in (self.process.stdout, self.process.stderr):
            not_none(stream).close()


@contextmanager
def run_sentinel(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    indices: Sequence[int],
    read: bool = True,
) -> Iterator[SentinelProcess]:
    """Run a sentinel; at the end, kill it and check that its children end."""
    sentinel = SentinelProcess(command, environment, indices=indices, read=read)
    try:
        yield sentinel
    except BaseException:
        sentinel.print_events()  # pytest shows what a failed test printed
        raise
    finally:
        children = sentinel.children()
        if sentinel.process.poll() is None:
            sentinel.process.kill()
        # A zombie counts as ended: in a container, its new parent may never reap it.
        deadline = time.monotonic() + TIMEOUT_S
        while (remaining := [p for p in children if not gone(p)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        sentinel.process.wait(TIMEOUT_S)
        sentinel.close()
        assert not remaining, f"still running: {remaining}"


def eventually(condition: Callable[[], object], limit_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds; check it often at first, and less often later."""
    deadline, pause = time.monotonic() + limit_s, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {limit_s:.0f} s"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)


def gone(process: psutil.Process) -> bool:
    """Check whether a process has ended; a zombie counts as ended."""
    stat = read_stat(process.pid)
    return stat is None or not stat.alive


def start_of(pid: int) -> int:
    """Read the start time of a process, in ticks since boot."""
    stat = not_none(read_stat(pid))
    return stat.started


def title_of(process: psutil.Process) -> str:
    """Read the title of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
