"""A pipe gets a line for each change of a node, and one when the engine falls silent."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sentinel.burnin.reports.verdict import Verdict
from sentinel.cli.display.live_table import LiveTable
from sentinel.cli.fleet.following import FleetScreen
from sentinel.fleet.engine import EngineError
from sentinel.fleet.records.progress import NodeProgress
from sentinel.fleet.status import NODE_HEADER, NODE_RIGHT, NodeState, NodeStatus

PROGRESS = NodeProgress(
    node="n1",
    state="running",
    time=datetime(2026, 11, 23, tzinfo=UTC),
    phase="steady",
    number=2,
    phases=6,
    temperature_c=71.0,
)
RUNNING = NodeStatus(node="n1", state=NodeState.RUNNING, progress=PROGRESS)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def screen(stream: io.StringIO) -> FleetScreen:
    return FleetScreen(LiveTable(stream, NODE_HEADER, NODE_RIGHT, 6))


def printed(stream: io.StringIO) -> list[str]:
    """Take the lines since the last call, without their times."""
    lines = [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]
    stream.seek(0)
    stream.truncate()
    return lines


def test_a_line_for_each_change(screen: FleetScreen, stream: io.StringIO) -> None:
    screen.show([NodeStatus(node="n1", state=NodeState.WAITING, reason="Resources")], None)
    assert printed(stream) == []  # that a node waits for its turn is no news
    screen.show([RUNNING], None)
    assert printed(stream) == ["n1  running  2 of 6 steady, 71 C"]
    screen.show([replace(RUNNING, progress=replace(PROGRESS, temperature_c=73.0))], None)
    assert printed(stream) == []
    screen.show([replace(RUNNING, progress=replace(PROGRESS, findings=1))], None)
    assert printed(stream) == ["n1  running  2 of 6 steady, 71 C, wrong results: 1"]
    done = replace(RUNNING, state=NodeState.DONE, verdict=Verdict.FAIL)
    screen.show([done], None)
    assert printed(stream) == ["n1  done  71 C, FAIL"]
    screen.show([done], None)
    assert printed(stream) == []


def test_a_node_that_is_down_at_first_sight_has_a_line(
    screen: FleetScreen, stream: io.StringIO
) -> None:
    screen.show([NodeStatus(node="n1", state=NodeState.WAITING, unavailable=True)], None)
    assert printed(stream) == ["n1  waiting  the node is down or drained"]


def test_a_task_that_is_held_has_a_line_and_another_once_it_is_released(
    screen: FleetScreen, stream: io.StringIO
) -> None:
    waits = NodeStatus(node="n1", state=NodeState.WAITING)
    hold = "JobHeldAdmin; release it: scontrol release 12"
    screen.show([waits], None)
    assert printed(stream) == []
    for _ in range(2):
        screen.show([replace(waits, hold=hold)], None)
    assert printed(stream) == [f"n1  waiting  held: {hold}"]
    screen.show([waits], None)
    assert printed(stream) == ["n1  waiting"]


def test_what_a_node_has_written_does_not_control_the_terminal(
    screen: FleetScreen, stream: io.StringIO
) -> None:
    note = "\x1b[2J\x1b]0;title\x07\nn2  done  PASS\x9b"
    screen.show([replace(RUNNING, progress=replace(PROGRESS, note=note))], EngineError("\x1b[1m"))
    lines = printed(stream)
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_the_silence_of_the_engine_is_one_line(screen: FleetScreen, stream: io.StringIO) -> None:
    silent = replace(RUNNING, state=NodeState.UNKNOWN)
    screen.show([RUNNING], None)
    printed(stream)
    for error in (EngineError("squeue failed: a"), EngineError("squeue failed: b")):
        screen.show([silent], error)
    assert printed(stream)[0] == "squeue failed: a; the nodes go on"
    screen.show([silent], EngineError("squeue failed: a"))
    assert printed(stream) == []
    screen.show([RUNNING], None)
    assert printed(stream)[0] == "the engine answers again"
