"""What a follower concludes from look to look: once is not over, and silence says nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.burnin.reports.verdict import Verdict
from sentinel.errors import ConfigError
from sentinel.fleet.engine import EngineError, EngineMissingError, Task, TaskState
from sentinel.fleet.follow import MIN_PAUSE_S, FleetFollower, engine_of
from sentinel.fleet.records.progress import NodeProgress, write_progress
from sentinel.fleet.records.run_file import FleetFolder, FleetRun
from sentinel.fleet.status import NodeState

NOW = datetime(2026, 11, 23, tzinfo=UTC)
RUN = FleetRun(
    id="x", engine="slurm", plan="x", plan_hash="0" * 16, nodes=("a", "b"), started=NOW, batch=1
)


class FakeEngine:
    """Has the tasks that a test gives it, and counts how often it was asked to advance."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(RUN.nodes, TaskState.RUNNING)
        self.held: set[str] = set()
        self.answers = True
        self.is_missing = False
        self.refuses = False
        self.advanced = 0
        #: The run of the last question.
        self.asked: FleetRun | None = None

    def submit(self, run: FleetRun, folder: FleetFolder, nodes: Sequence[str]) -> FleetRun:
        raise AssertionError("a follower submits nothing")

    def tasks(self, run: FleetRun) -> Mapping[str, Task]:
        self.asked = run
        if self.is_missing:
            raise EngineMissingError("squeue is not installed on this host")
        if not self.answers:
            raise EngineError("squeue failed")
        return {
            node: Task(state=state, awaits_turn=node in self.held)
            for node, state in self.states.items()
        }

    def advance(self, run: FleetRun, ending: str | None = None) -> None:
        self.advanced += 1
        if self.refuses:
            raise EngineError("scontrol failed: Access denied")

    def cancel(self, run: FleetRun) -> None:
        raise AssertionError("a follower cancels nothing")


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    found = FleetFolder(path=tmp_path)
    found.create()
    return found


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def follower(folder: FleetFolder, engine: FakeEngine) -> FleetFollower:
    return FleetFollower(folder, RUN, engine)


def states(follower: FleetFollower) -> list[NodeState]:
    return [one.state for one in follower.look()]


def test_a_task_is_over_only_if_it_is_so_twice(
    follower: FleetFollower, engine: FakeEngine, folder: FleetFolder
) -> None:
    engine.states["a"] = TaskState.OVER
    folder.report("a").write_text(json.dumps({"verdict": "PASS"}))
    assert states(follower) == [NodeState.RUNNING, NodeState.RUNNING]
    assert states(follower) == [NodeState.DONE, NodeState.RUNNING]
    engine.states["a"] = TaskState.RUNNING  # resumed
    assert states(follower)[0] is NodeState.RUNNING
    engine.states["a"] = TaskState.OVER
    assert states(follower)[0] is NodeState.RUNNING


def test_an_engine_without_an_answer_makes_every_node_unknown(
    follower: FleetFollower, engine: FakeEngine, folder: FleetFolder
) -> None:
    engine.states = dict.fromkeys(RUN.nodes, TaskState.OVER)
    follower.look()
    assert states(follower) == [NodeState.MISSING, NodeState.MISSING]
    engine.answers = False
    assert states(follower) == [NodeState.UNKNOWN, NodeState.UNKNOWN]
    assert follower.engine_error is not None
    engine.answers = True
    assert NodeState.UNKNOWN not in states(follower)
    assert follower.engine_error is None


def test_a_host_without_the_engine_cannot_follow_for_ever(
    follower: FleetFollower, engine: FakeEngine
) -> None:
    engine.is_missing = True
    with pytest.raises(EngineMissingError):
        follower.look()
    engine.is_missing = False
    follower.look()
    engine.is_missing = True  # its disk is away for a moment
    assert set(states(follower)) == {NodeState.UNKNOWN}


def test_held_tasks_are_let_begin_unless_the_run_is_cancelled(
    follower: FleetFollower, engine: FakeEngine, folder: FleetFolder
) -> None:
    follower.look()
    assert engine.advanced == 0
    engine.held = {"b"}
    follower.look()
    assert engine.advanced == 1
    folder.cancelled.touch()
    follower.look()
    assert engine.advanced == 1


def test_tasks_are_known_even_if_they_may_not_be_released(
    follower: FleetFollower, engine: FakeEngine
) -> None:
    engine.states["n1"], engine.held, engine.refuses = TaskState.WAITING, {"n1"}, True
    assert NodeState.UNKNOWN not in states(follower)
    assert follower.engine_error is not None
    assert follower.engine_error.what == "scontrol failed: Access denied"


def test_a_resumption_in_another_terminal_is_followed(
    folder: FleetFolder, follower: FleetFollower, engine: FakeEngine
) -> None:
    folder.write(RUN)
    follower.look()
    assert engine.asked is not None
    assert engine.asked.tasks == {}
    folder.write(replace(RUN, tasks={"a": "7"}))
    follower.look()
    assert engine.asked.tasks == {"a": "7"}
    folder.run_file.write_text("{")  # for a moment, on some disks
    follower.look()
    assert engine.asked.tasks == {"a": "7"}


def test_files_are_read_again_when_they_were_replaced(
    follower: FleetFollower, folder: FleetFolder
) -> None:
    assert follower.look()[0].verdict is None
    folder.report("a").write_text('{"verdict": ')  # a half-written file is none
    assert follower.look()[0].verdict is None
    folder.report("a").write_text(json.dumps({"verdict": "INCOMPLETE"}))
    assert follower.look()[0].verdict is Verdict.INCOMPLETE
    folder.report("a").write_text(json.dumps({"verdict": "FAIL"}))
    assert follower.look()[0].verdict is Verdict.FAIL
    progress = NodeProgress(node="a", state="running", time=NOW, findings=3)
    write_progress(folder.progress("a"), progress)
    assert follower.look()[0].progress == progress
    assert follower.pause_s >= MIN_PAUSE_S


def test_an_unknown_engine_is_named(folder: FleetFolder) -> None:
    run = FleetRun(id="x", engine="ray", plan="x", plan_hash="0", nodes=("a",), started=NOW)
    with pytest.raises(ConfigError, match="engine 'ray' is unknown"):
        engine_of(run, folder)
