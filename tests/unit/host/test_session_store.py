"""Sessions in a file: what is written is read again, with times by two clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.stores.session_store import SESSIONS
from sentinel.host.stores.timed_file import Clocks
from sentinel.protocol.caller import Caller
from sentinel.protocol.views import Session

HOLD = {"workload": "hold"}
BY = Caller(via="unix", uid=1001, pid=4711, started=99)
STARTED = (
    Session(name="train", gpus=("GPU-0", "GPU-1"), settings=HOLD, by=BY, since=50.0, until=150.0),
    Session(name="rest", gpus=("GPU-2",), settings={}, by=BY, since=60.0),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / SESSIONS.name


def test_what_is_written_is_restored_within_the_same_boot(path: Path) -> None:
    SESSIONS.write(path, STARTED, Clocks(wall=1000.0, monotonic=100.0, boot="one"))
    stored, problem = SESSIONS.load(path)
    assert problem is None
    # A clock that was set meanwhile changes nothing.
    assert SESSIONS.restore(stored, Clocks(wall=5.0, monotonic=120.0, boot="one")) == STARTED


def test_after_a_reboot_a_session_goes_on_by_the_wall_clock(path: Path) -> None:
    SESSIONS.write(path, STARTED, Clocks(wall=1000.0, monotonic=100.0, boot="one"))
    train, rest = SESSIONS.restore(
        SESSIONS.load(path)[0], Clocks(wall=1020.0, monotonic=10.0, boot="two")
    )
    assert (train.since, train.until) == (-60.0, 40.0)
    assert rest.until is None
    assert train.by == replace(BY, pid=None, started=None), "the PID is another process's"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"until": 1e18, "until_monotonic": 1e18}, "1e+18 is no date"),
        ({"since": -1e18}, "-1e+18 is no date"),
        ({"until": 2000.0, "until_monotonic": None}, "until and until_monotonic contradict"),
        ({"until": None, "until_monotonic": 2.0}, "until and until_monotonic contradict"),
    ],
)
def test_a_session_with_impossible_times_is_none(
    path: Path, changes: dict[str, Any], problem: str
) -> None:
    SESSIONS.write(path, STARTED, Clocks(wall=1000.0, monotonic=100.0, boot="one"))
    body = json.loads(path.read_text())
    body["sessions"][0] |= changes
    path.write_text(json.dumps(body))
    stored, why = SESSIONS.load(path)
    assert stored == ()
    assert f"sessions[0]: {problem}" in str(why)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"sessions": [{"name": "train"}]},
        {"sessions": "none"},
    ],
)
def test_an_invalid_file_is_set_aside_and_named(path: Path, change: dict[str, Any]) -> None:
    SESSIONS.write(path, STARTED, Clocks(wall=1000.0, monotonic=100.0, boot="one"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    stored, problem = SESSIONS.load(path)
    assert stored == ()
    assert problem is not None
    assert f"{path}.bad" in problem
    assert "its sessions are ignored" in problem
    assert path.with_name(f"{SESSIONS.name}.bad").exists()


def test_a_missing_file_has_no_session(path: Path) -> None:
    assert SESSIONS.load(path) == ((), None)
