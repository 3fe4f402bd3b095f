"""Calls in flight are visible in shared memory, and invalid entries are ignored."""

from __future__ import annotations

import os
import time

import pytest

from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, gpu_of, slots_of


def test_every_gpu_has_two_slots_of_its_own() -> None:
    """A slot identifies its GPU and job; slot 0 belongs to the driver."""
    slots = [slot for index in range(MAX_GPUS) for slot in slots_of(index)]
    assert len({0, *slots}) == 1 + 2 * MAX_GPUS
    assert [gpu_of(slot) for slot in slots_of(5)] == [5, 5]
    assert gpu_of(0) is None


def test_an_inflight_call_is_visible_from_announcement_to_finish() -> None:
    """Both sides see the same slots, each with its latest call and its start."""
    inflight_calls = InflightCalls.create()
    other = InflightCalls.attach(os.dup(inflight_calls.fd))
    before = time.monotonic()
    other.announce(0, "open")
    other.announce(MAX_GPUS, "a call with a name that is much too long for its place")
    other.announce(1, "memory")
    other.announce(1, "mig")
    other.announce(2, "memory")
    other.finish(2)
    calls = inflight_calls.outstanding()
    assert [(slot, call) for slot, call, _ in calls] == [
        (0, "open"),
        (1, "mig"),
        (MAX_GPUS, "a call with a name that is much"),
    ]
    assert all(before <= since <= time.monotonic() for _, _, since in calls)
    other.close()
    assert inflight_calls.outstanding() == calls
    inflight_calls.close()


def test_invalid_entries_of_inflight_calls_are_ignored() -> None:
    """After any overwrite, a reader sees only plausible names and times."""
    inflight_calls = InflightCalls.create()
    size = os.fstat(inflight_calls.fd).st_size
    for junk in (b"\xff" * size, b"\x00" * size, b"\x7f\xf0" * (size // 2), b"A" * size):
        os.pwrite(inflight_calls.fd, junk, 0)
        for _, call, since in inflight_calls.outstanding():
            assert call.isprintable()
            assert 0 < since <= time.monotonic()
    with pytest.raises(PermissionError):
        os.ftruncate(inflight_calls.fd, 0)
    inflight_calls.close()
