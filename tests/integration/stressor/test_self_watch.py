"""A stressor reads the memory of its own GPU, and ends itself when another process takes some."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import pytest

from sentinel.errors import ChildExitCode
from sentinel.protocol.stressor import MemoryContention, MemoryLimit, Ready
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child, descendants

MIB = 2**20
Start = Callable[..., Child]


def held(start: Start, workload: str = "hold", *, at_once: bool = True) -> Child:
    """Start a stressor that has its memory and a limit just above it."""
    child = start(workload, yields_at_once=at_once)  # until the limit has arrived
    child.wait_for(Ready)
    child.send(MemoryLimit(used=child.used() + MIB, at_once=at_once))
    child.wait_until_read()
    eventually(lambda: child.watched_at() > 0)
    return child


def looks_again(child: Child) -> None:
    """Wait for two more reads, the second of which began after this call."""
    for _ in range(2):
        before = child.watched_at()
        eventually(lambda: child.watched_at() > before)  # noqa: B023 - called in this round only


def test_a_newcomer_ends_the_stressor_without_the_supervisor(start: Start) -> None:
    child = held(start)
    before = time.monotonic()
    with contextlib.closing(child.registry.attach(child.uuid)) as newcomer:
        assert newcomer.allocate(2 * MIB)
        assert child.wait_for_end() == -signal.SIGKILL
        assert child.used() == 2 * MIB
    seen = child.wait_for(MemoryContention)
    assert seen.grown == MIB
    assert seen.killed_at is not None
    assert before <= seen.at <= seen.killed_at == seen.at + seen.took


@pytest.mark.parametrize("count", [3, 20])
def test_many_processes_that_it_has_forked_are_not_killed_with_it(start: Start, count: int) -> None:
    """Their exits would delay its own; the supervisor kills them after it."""
    child = held(start, f"bad_workloads:forks_many:count={count}")
    try:
        with contextlib.closing(child.registry.attach(child.uuid)) as newcomer:
            assert newcomer.allocate(2 * MIB)
            assert child.wait_for_end() == -signal.SIGKILL
            assert child.used() == 2 * MIB
        survivors = count if count > 8 else 0
        eventually(lambda: len(descendants(child.pid)) == survivors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def test_memory_within_the_limit_is_no_newcomer(start: Start) -> None:
    child = held(start)
    with contextlib.closing(child.registry.attach(child.uuid)) as other:
        assert other.allocate(MIB)
        looks_again(child)
        child.send(MemoryLimit(used=child.used() + 64 * MIB))
        child.wait_until_read()
        looks_again(child)
        assert other.allocate(63 * MIB)
        looks_again(child)
    assert child.stop() == ChildExitCode.DONE


def test_without_a_limit_it_does_not_watch(start: Start) -> None:
    child = held(start)
    child.send(MemoryLimit(used=None))
    child.wait_until_read()
    eventually(lambda: time.monotonic() - child.watched_at() > 0.3)  # its last look is over
    with contextlib.closing(child.registry.attach(child.uuid)) as other:
        stopped_at = child.watched_at()
        assert other.allocate(64 * MIB)
        time.sleep(0.2)  # a thread that watches would read it
        assert child.watched_at() == stopped_at
    assert child.stop() == ChildExitCode.DONE


def test_it_asks_its_workload_to_end_where_a_kill_is_not_wanted(start: Start) -> None:
    child = held(start, at_once=False)
    with contextlib.closing(child.registry.attach(child.uuid)) as newcomer:
        assert newcomer.allocate(2 * MIB)
        assert child.wait_for(MemoryContention).killed_at is None
        assert child.wait_for_end() == ChildExitCode.DONE


def test_a_gpu_that_cannot_be_read_is_not_watched_until_it_can(start: Start) -> None:
    child = held(start)
    place = child.registry.folder / child.uuid
    hidden = place.with_name("hidden")
    place.rename(hidden)
    try:
        eventually(lambda: time.monotonic() - child.watched_at() > 0.3)
    finally:
        hidden.rename(place)
    looks_again(child)
    assert child.stop() == ChildExitCode.DONE
