"""The trace of a main thread: its ring of records, and the time of each position."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from benchmarks import main_thread_trace


def test_a_ring_is_read_in_the_order_of_its_times(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    main_thread_trace.create(path)
    assert main_thread_trace.read(path) == []
    records = b"".join(struct.pack("d152s", at, f"at {at:g}".encode()) for at in (5.0, 3.0, 4.0))
    path.write_bytes(records + path.read_bytes()[len(records) :])
    assert main_thread_trace.read(path) == [(3.0, "at 3"), (4.0, "at 4"), (5.0, "at 5")]


def test_a_profile_has_the_seconds_of_each_position_since_a_moment() -> None:
    positions = [(1.0, "loads"), (2.0, "takes"), (2.5, "loads"), (4.0, "takes"), (5.0, "end")]
    assert main_thread_trace.profile(positions, 2.0) == {"takes": 1.5, "loads": 1.5}
    assert list(main_thread_trace.profile(positions, 0.0)) == ["loads", "takes"]


def test_a_position_names_the_innermost_function_and_those_of_sentinel() -> None:
    def inner() -> str:
        return main_thread_trace.position(sys._getframe())

    # A function of sentinel that calls another one.
    outer = eval(compile("lambda call: call()", "/a/sentinel/stressor/main.py", "eval"))  # noqa: S307
    assert outer(inner) == "inner < main.<lambda>:1"
    assert main_thread_trace.position(None) == ""
