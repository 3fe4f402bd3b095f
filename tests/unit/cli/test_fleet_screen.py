"""A pipe gets a line for each change of a node; a watch has an end, whatever the engine does."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sentinel.burnin.verdict import Verdict
from sentinel.cli.display.output import LiveTable, Table
from sentinel.cli.tools import fleet_report
from sentinel.cli.tools.fleet_report import FleetScreen
from sentinel.fleet.engine import EngineError, NodeTask, TaskState
from sentinel.fleet.follow import NODE_HEADER, NODE_RIGHT, NodeStatus
from sentinel.fleet.progress import NodeProgress

PROGRESS = NodeProgress(
    node="n1",
    state="running",
    time=datetime(2026, 11, 23, tzinfo=UTC),
    phase="steady",
    number=2,
    phases=6,
    temperature_c=71.0,
)


def status(state: TaskState, node: str = "n1", **of_task: Any) -> NodeStatus:
    return NodeStatus(node=node, task=NodeTask(state=state, **of_task))


RUNNING = replace(status(TaskState.RUNNING), progress=PROGRESS)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def screen(stream: io.StringIO) -> FleetScreen:
    return FleetScreen(LiveTable(stream, Table(NODE_HEADER, 6, NODE_RIGHT)))


def printed(stream: io.StringIO) -> list[str]:
    """Take the lines since the last call, without their times."""
    lines = [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]
    stream.seek(0)
    stream.truncate()
    return lines


def test_a_line_for_each_change(screen: FleetScreen, stream: io.StringIO) -> None:
    screen.show([status(TaskState.WAITING, reason="Resources")], None)
    assert printed(stream) == []  # that a node waits for its turn is no news
    screen.show([RUNNING], None)
    assert printed(stream) == ["n1  running  2 of 6 steady, 71 C"]
    screen.show([replace(RUNNING, progress=replace(PROGRESS, temperature_c=73.0))], None)
    assert printed(stream) == []
    screen.show([replace(RUNNING, progress=replace(PROGRESS, findings=1))], None)
    assert printed(stream) == ["n1  running  2 of 6 steady, 71 C, wrong results: 1"]
    done = replace(RUNNING, task=NodeTask(state=TaskState.OVER), verdict=Verdict.FAIL)
    screen.show([done], None)
    assert printed(stream) == ["n1  done  71 C, FAIL"]
    screen.show([done], None)
    assert printed(stream) == []


def test_a_node_that_is_down_at_first_sight_has_a_line(
    screen: FleetScreen, stream: io.StringIO
) -> None:
    screen.show([status(TaskState.WAITING, node_unavailable=True)], None)
    assert printed(stream) == ["n1  waiting  the node is down or drained"]


def test_a_task_that_is_held_has_a_line_and_another_once_it_is_released(
    screen: FleetScreen, stream: io.StringIO
) -> None:
    waits = status(TaskState.WAITING)
    hold = "held: JobHeldAdmin; release it: scontrol release 12"
    screen.show([waits], None)
    assert printed(stream) == []
    for _ in range(2):
        screen.show([status(TaskState.WAITING, hold=hold)], None)
    assert printed(stream) == [f"n1  waiting  {hold}"]
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
    silent = replace(RUNNING, task=NodeTask(state=TaskState.UNKNOWN))
    screen.show([RUNNING], None)
    printed(stream)
    for error in (EngineError("squeue failed: a"), EngineError("squeue failed: b")):
        screen.show([silent], error)
    assert printed(stream)[0] == "squeue failed: a; the nodes go on"
    screen.show([silent], EngineError("squeue failed: a"))
    assert printed(stream) == []
    screen.show([RUNNING], None)
    assert printed(stream)[0] == "the engine answers again"


DOWN = status(TaskState.WAITING, node_unavailable=True)
TURN = status(TaskState.WAITING, "n2", awaits_turn=True)
DONE = replace(status(TaskState.OVER, "n3"), verdict=Verdict.PASS)
BUSY = status(TaskState.RUNNING, "n3")


class Looks:
    """A follower that sees these states of all nodes, ten seconds apart, by its own clock."""

    engine_error = None
    pause_s = 0.0

    def __init__(self, *looks: tuple[NodeStatus, ...]) -> None:
        self._looks = list(looks)
        self._now = 0.0

    def look(self) -> tuple[NodeStatus, ...]:
        self._now += 10.0
        return self._looks.pop(0)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _: float) -> None:
        pass


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        pytest.param([(DONE,)], "", id="all are over"),
        pytest.param([(DOWN, TURN, DONE)] * 3, "n1, n2", id="what is left cannot begin"),
        pytest.param([(TURN, DONE)] * 3, "n2", id="nothing releases the last one"),
        pytest.param(
            [(DOWN, DONE)] * 2 + [(DOWN, BUSY)] + [(DOWN, DONE)] * 3, "n1", id="something goes on"
        ),
    ],
)
def test_a_watch_ends_once_nothing_more_can_come(
    screen: FleetScreen,
    stream: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[tuple[NodeStatus, ...]],
    left: str,
) -> None:
    follower = Looks(*looks)
    monkeypatch.setattr(fleet_report, "time", follower)
    statuses = fleet_report._watch(follower, screen, 20.0)  # type: ignore[arg-type]
    assert statuses == looks[-1]
    assert follower._looks == []
    given_up = [line for line in printed(stream) if line.startswith("given up")]
    assert given_up == ([f"given up, since their tasks cannot begin: {left}"] if left else [])
    assert fleet_report._why_missing(DOWN, 20.0) == (
        "given up after 20 s: the node is down or drained; its task stays in the queue"
    )
