"""A text is looked up once, and a read that does not end delays no response."""

from __future__ import annotations

import os
import pwd
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sentinel.host import lookups
from sentinel.host.lookups import COMMAND_LINES, USER_NAMES, VARIABLE, Lookups, node_name
from sentinel.host.procfs import own_stat
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

STUCK = 666


class Reads:
    """Reads, of which some do not end before they are told to."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.released = threading.Event()

    def read(self, key: int) -> str | None:
        self.keys.append(key)
        if key >= STUCK:
            self.released.wait()
        return f"text {key}" if key else None


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread of a busy host begin late; a test of reads that do not end waits less."""
    monkeypatch.setattr(lookups, "_PATIENCE_S", TIMEOUT_S)


@contextmanager
def hostile() -> Iterator[tuple[Reads, Lookups[int]]]:
    reads = Reads()
    try:
        yield reads, Lookups(reads.read)
    finally:
        reads.released.set()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("worker-7", "worker-7"),
        (" n1\n", "n1"),
        *((empty, socket.gethostname()) for empty in (None, "", " ")),
    ],
)
def test_the_variable_names_the_node_or_else_the_host(
    monkeypatch: pytest.MonkeyPatch, given: str | None, name: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    assert node_name() == name


def test_each_text_is_read_once_also_if_there_is_none() -> None:
    with hostile() as (reads, texts):
        assert [texts.get(key) for key in (1, 2, 1, 0, 0)] == [
            *("text 1", "text 2", "text 1", None, None)
        ]
        assert reads.keys == [1, 2, 0]


def test_the_name_of_this_user_and_the_command_line_of_this_process_are_found() -> None:
    assert USER_NAMES.get(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert USER_NAMES.get(None) is None
    own = own_stat()
    text = COMMAND_LINES.get((own.pid, own.started, own.name))
    assert text is not None
    assert COMMAND_LINES.get((own.pid, own.started + 1, own.name)) is None, "an earlier process"


def test_a_read_that_does_not_end_delays_once_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hostile() as (reads, texts):
        with monkeypatch.context() as patch:
            patch.setattr(lookups, "_PATIENCE_S", 0.1)
            assert texts.get(STUCK) is None
        began = time.monotonic()
        assert texts.get(STUCK) is None
        assert texts.get(1) == "text 1"
        assert time.monotonic() - began < TIMEOUT_S, "it waited again"
        reads.released.set()
        eventually(lambda: texts.get(STUCK) == f"text {STUCK}")


def test_callers_that_wait_at_the_same_time_get_the_same_text() -> None:
    with hostile() as (reads, texts):
        found: list[str | None] = []
        callers = [
            threading.Thread(target=lambda: found.append(texts.get(STUCK))) for _ in range(3)
        ]
        for caller in callers:
            caller.start()
        eventually(lambda: reads.keys == [STUCK])
        reads.released.set()
        for caller in callers:
            caller.join()
        assert found == [f"text {STUCK}"] * 3
        assert reads.keys == [STUCK]


def test_only_a_few_threads_are_lost_and_they_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile() as (reads, texts):
        before = threading.active_count()
        with monkeypatch.context() as patch:
            patch.setattr(lookups, "_PATIENCE_S", 0.0)
            for key in range(STUCK, STUCK + 50):
                assert texts.get(key) is None
        assert threading.active_count() - before <= lookups._MAX_STUCK
        reads.released.set()
        eventually(lambda: threading.active_count() <= before)
        assert texts.get(1) == "text 1"
