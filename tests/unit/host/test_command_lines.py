"""A command line is read once, and a read that does not end delays no response."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sentinel.host import command_lines
from sentinel.host.command_lines import CommandLines
from tests.harness.sentinel_process import eventually

STUCK = 666


class Processes:
    """Reads, of which some do not end before they are told to."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.released = threading.Event()

    def read(self, pid: int, _: int) -> str | None:
        self.reads.append(pid)
        if pid >= STUCK:
            self.released.wait()
        return f"program {pid}"


@contextmanager
def hostile() -> Iterator[tuple[Processes, CommandLines]]:
    processes = Processes()
    try:
        yield processes, CommandLines(processes.read)
    finally:
        processes.released.set()


def test_each_command_line_is_read_once_for_each_program() -> None:
    with hostile() as (processes, lines):
        assert [lines.get(pid, 1, "a") for pid in (1, 2, 1)] == [
            *("program 1", "program 2", "program 1"),
        ]
        assert processes.reads == [1, 2]
        lines.get(1, 1, "another program by exec()")
        lines.get(1, 2, "a")
        assert processes.reads == [1, 2, 1, 1]


def test_a_read_that_does_not_end_delays_and_hides_no_other() -> None:
    with hostile() as (processes, lines):
        assert lines.get(STUCK, 1, "a") is None
        began = time.monotonic()
        assert lines.get(STUCK, 1, "a") is None
        assert lines.get(1, 1, "a") == "program 1"
        assert time.monotonic() - began < 5.0
        processes.released.set()
        eventually(lambda: lines.get(STUCK, 1, "a") == f"program {STUCK}")


def test_only_a_few_threads_are_lost_and_they_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_lines, "_PATIENCE_S", 0.0)
    with hostile() as (processes, lines):
        before = threading.active_count()
        for pid in range(STUCK, STUCK + 50):
            assert lines.get(pid, 1, "a") is None
        assert threading.active_count() - before <= command_lines._MAX_STUCK
        processes.released.set()
        eventually(lambda: threading.active_count() <= before)
        monkeypatch.undo()
        assert lines.get(1, 1, "a") == "program 1"
