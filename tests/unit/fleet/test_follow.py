"""What a follower concludes from look to look: once is not over, and silence says nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sentinel.burnin.verdict import Verdict
from sentinel.errors import ConfigError
from sentinel.fleet.engine import EngineError, EngineMissingError, NodeTask, TaskState
from sentinel.fleet.follow import (
    MIN_PAUSE_S,
    FleetFollower,
    NodeState,
    NodeStatus,
    describe,
    engine_of,
    is_stalled,
    merge,
    note,
    summary,
)
from sentinel.fleet.progress import NodeProgress, write_progress
from sentinel.fleet.run_folder import FleetFolder, FleetRun
from tests.harness.example_fleet import SUBMITTED, fleet_run

RUN = fleet_run("a", "b", batch=1)


class FakeEngine:
    """Has the tasks that a test gives it, and counts how often it was asked to advance."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(RUN.nodes, TaskState.RUNNING)
        self.held: set[str] = set()
        #: The errors of a question and of an advance.
        self.error: EngineError | None = None
        self.refusal: EngineError | None = None
        self.advanced = 0
        #: The run of the last question.
        self.asked: FleetRun | None = None

    def submit(self, run: FleetRun, folder: FleetFolder, nodes: Sequence[str]) -> FleetRun:
        raise AssertionError("a follower submits nothing")

    def tasks(self, run: FleetRun) -> Mapping[str, NodeTask]:
        self.asked = run
        if self.error is not None:
            raise self.error
        return {
            node: NodeTask(state=state, awaits_turn=node in self.held)
            for node, state in self.states.items()
        }

    def advance(self, run: FleetRun, ending: str | None = None) -> None:
        self.advanced += 1
        if self.refusal is not None:
            raise self.refusal

    def cancel(self, run: FleetRun) -> None:
        raise AssertionError("a follower cancels nothing")


class Followed(FleetFollower):
    """Follows the run by an engine that a test controls."""

    def __init__(self, folder: FleetFolder) -> None:
        self.folder, self.engine = folder, FakeEngine()
        super().__init__(folder, RUN, self.engine)

    def node_states(self) -> list[NodeState]:
        return [status.state for status in self.look()]


@pytest.fixture
def follower(folder: FleetFolder) -> Followed:
    return Followed(folder)


def test_a_task_is_over_only_if_it_is_so_twice(follower: Followed) -> None:
    follower.engine.states["a"] = TaskState.OVER
    follower.folder.report("a").write_text(json.dumps({"verdict": "PASS"}))
    assert follower.node_states() == [NodeState.RUNNING, NodeState.RUNNING]
    assert follower.node_states() == [NodeState.DONE, NodeState.RUNNING]
    follower.engine.states["a"] = TaskState.RUNNING  # resumed
    assert follower.node_states()[0] is NodeState.RUNNING
    follower.engine.states["a"] = TaskState.OVER
    assert follower.node_states()[0] is NodeState.RUNNING


def test_an_engine_without_an_answer_makes_every_node_unknown(follower: Followed) -> None:
    follower.engine.states = dict.fromkeys(RUN.nodes, TaskState.OVER)
    follower.look()
    assert follower.node_states() == [NodeState.MISSING, NodeState.MISSING]
    follower.engine.error = EngineError("squeue failed")
    assert follower.node_states() == [NodeState.UNKNOWN, NodeState.UNKNOWN]
    assert follower.engine_error is not None
    follower.engine.error = None
    assert NodeState.UNKNOWN not in follower.node_states()
    assert follower.engine_error is None


def test_a_host_without_the_engine_cannot_follow_for_ever(follower: Followed) -> None:
    missing = EngineMissingError("squeue is not installed on this host")
    follower.engine.error = missing
    with pytest.raises(EngineMissingError):
        follower.look()
    follower.engine.error = None
    follower.look()
    follower.engine.error = missing  # its disk is away for a moment
    assert set(follower.node_states()) == {NodeState.UNKNOWN}


def test_held_tasks_are_let_begin_unless_the_run_is_cancelled(follower: Followed) -> None:
    follower.look()
    assert follower.engine.advanced == 0
    follower.engine.held = {"b"}
    follower.look()
    assert follower.engine.advanced == 1
    follower.folder.cancelled.touch()
    follower.look()
    assert follower.engine.advanced == 1


def test_tasks_are_known_even_if_they_may_not_be_released(follower: Followed) -> None:
    follower.engine.states["n1"], follower.engine.held = TaskState.WAITING, {"n1"}
    follower.engine.refusal = EngineError("scontrol failed: Access denied")
    assert NodeState.UNKNOWN not in follower.node_states()
    assert follower.engine_error is follower.engine.refusal


def test_a_resumption_in_another_terminal_is_followed(follower: Followed) -> None:
    follower.folder.write(RUN)
    follower.look()
    assert follower.engine.asked is not None
    assert follower.engine.asked.tasks == {}
    follower.folder.write(replace(RUN, tasks={"a": "7"}))
    follower.look()
    assert follower.engine.asked.tasks == {"a": "7"}
    follower.folder.run_file.write_text("{")  # for a moment, on some disks
    follower.look()
    assert follower.engine.asked.tasks == {"a": "7"}


def test_files_are_read_again_when_they_were_replaced(follower: Followed) -> None:
    assert follower.look()[0].verdict is None
    follower.folder.report("a").write_text('{"verdict": ')  # a half-written file is none
    assert follower.look()[0].verdict is None
    follower.folder.report("a").write_text(json.dumps({"verdict": "INCOMPLETE"}))
    assert follower.look()[0].verdict is Verdict.INCOMPLETE
    follower.folder.report("a").write_text(json.dumps({"verdict": "FAIL"}))
    assert follower.look()[0].verdict is Verdict.FAIL
    progress = NodeProgress(node="a", state="running", time=SUBMITTED, findings=3)
    write_progress(follower.folder.progress("a"), progress)
    assert follower.look()[0].progress == progress
    assert follower.pause_s >= MIN_PAUSE_S


def test_an_unknown_engine_is_named(folder: FleetFolder) -> None:
    with pytest.raises(ConfigError, match="engine 'ray' is unknown"):
        engine_of(fleet_run("a", engine="ray"), folder)


OVER = NodeTask(state=TaskState.OVER)
RUNNING = NodeTask(state=TaskState.RUNNING)
WAITING = NodeTask(state=TaskState.WAITING, reason="Resources")
DOWN = NodeTask(state=TaskState.WAITING, reason="BeginTime", node_unavailable=True)
HELD = NodeTask(state=TaskState.WAITING, hold="held: JobHeldAdmin; release it: scontrol release 12")
TURN = NodeTask(state=TaskState.WAITING, awaits_turn=True)
PROGRESS = NodeProgress(
    node="n",
    state="running",
    time=SUBMITTED,
    phase="steady",
    number=2,
    phases=6,
    left_s=90.0,
    gpus=8,
    temperature_c=71.0,
)


def one(task: NodeTask | None, verdict: Verdict | None = None) -> NodeStatus:
    verdicts = {} if verdict is None else {"n": verdict}
    return merge(["n"], None if task is None else {"n": task}, {"n": PROGRESS}, verdicts)[0]


@pytest.mark.parametrize(
    ("task", "verdict", "state"),
    [
        (OVER, Verdict.PASS, NodeState.DONE),
        (OVER, Verdict.INCOMPLETE, NodeState.DONE),
        (OVER, None, NodeState.MISSING),
        (RUNNING, None, NodeState.RUNNING),
        # It was requeued after its report: another one may come.
        (RUNNING, Verdict.INCOMPLETE, NodeState.RUNNING),
        (WAITING, Verdict.INCOMPLETE, NodeState.WAITING),
        # The engine does not answer.
        (None, None, NodeState.UNKNOWN),
        (None, Verdict.PASS, NodeState.UNKNOWN),
    ],
)
def test_a_node_is_over_only_by_its_engine(
    task: NodeTask | None, verdict: Verdict | None, state: NodeState
) -> None:
    status = one(task, verdict)
    assert status.state is state
    assert status.is_over == (task is OVER)


@pytest.mark.parametrize("task", [RUNNING, WAITING, DOWN, HELD])
def test_a_node_that_has_ended_with_a_final_report_is_done_before_its_task(task: NodeTask) -> None:
    """Slurm holds the task of a node that was lost after its report for as long as it likes."""
    ended = {"n": replace(PROGRESS, state="ended")}

    def state(found: Verdict, tasks: Mapping[str, NodeTask] | None, progress: Any) -> NodeState:
        return merge(["n"], tasks, progress, {"n": found})[0].state

    for verdict in (Verdict.PASS, Verdict.FAIL):
        assert state(verdict, {"n": task}, ended) is NodeState.DONE
        assert state(verdict, {"n": task}, {"n": PROGRESS}) is NodeState(task.state.value)
        assert state(verdict, None, ended) is NodeState.UNKNOWN
    assert state(Verdict.INCOMPLETE, {"n": task}, ended) is NodeState(task.state.value)


@pytest.mark.parametrize(
    ("tasks", "stalled"),
    [
        ([OVER, DOWN], True),
        ([OVER], False),
        ([DOWN, WAITING], False),
        ([DOWN, RUNNING], False),
        ([DOWN, None], False),
        ([OVER, HELD, DOWN], True),
        ([HELD, TURN], True),
        ([DOWN, TURN], True),
        ([TURN], True),  # it is released now, or never
        ([HELD, TURN, RUNNING], False),
    ],
)
def test_a_run_is_stalled_only_if_all_that_is_left_cannot_begin(
    tasks: list[NodeTask | None], *, stalled: bool
) -> None:
    assert is_stalled([one(task) for task in tasks]) == stalled


@pytest.mark.parametrize(
    ("task", "verdict", "text"),
    [
        (HELD, None, "held: JobHeldAdmin; release it: scontrol release 12"),
        (TURN, None, ""),
        (DOWN, None, "the node is down or drained"),
        (WAITING, None, "Resources"),
        (OVER, None, "no report"),
        (replace(OVER, reason="job 12 has ended: TIMEOUT"), None,
         "no report, job 12 has ended: TIMEOUT"),
        (replace(OVER, reason="job 12 has ended: TIMEOUT"), Verdict.PASS, "PASS"),
    ],
)  # fmt: skip
def test_the_note_says_what_the_state_does_not(
    task: NodeTask, verdict: Verdict | None, text: str
) -> None:
    assert note(one(task, verdict)) == text


def test_a_row_has_the_phase_while_it_runs_and_the_verdict_afterwards() -> None:
    running = ("n", "running", "2 of 6 steady", "1m 30s", "71 C", "", "")
    assert describe(one(RUNNING))[:3] == running[:3]
    assert describe(one(RUNNING))[4:] == running[4:]
    done = describe(one(OVER, Verdict.FAIL))
    assert done[2:4] == ("", "")
    assert done[-1] == "FAIL"


@pytest.mark.parametrize("left_s", [None, 0.0, 0.4])
def test_a_phase_that_has_no_time_left_shows_none(left_s: float | None) -> None:
    last = replace(one(RUNNING), progress=replace(PROGRESS, left_s=left_s))
    assert describe(last)[3] == ""  # a phase by passes ends when it has done them


def test_a_task_that_was_begun_again_is_noted() -> None:
    again = replace(one(RUNNING), progress=replace(PROGRESS, attempt=2, note="GPU 1 is busy"))
    assert note(again) == "attempt 2, GPU 1 is busy"


def test_what_needs_attention_comes_first() -> None:
    found = replace(one(RUNNING), node="found", progress=replace(PROGRESS, findings=1))
    statuses = [
        replace(one(OVER, Verdict.PASS), node="passed"),
        replace(one(WAITING), node="waits", progress=None),
        replace(one(RUNNING), node="cool", progress=replace(PROGRESS, temperature_c=40.0)),
        replace(one(RUNNING), node="hot"),
        replace(one(OVER, Verdict.INCOMPLETE), node="incomplete"),
        replace(one(DOWN), node="down"),
        replace(one(OVER, Verdict.FAIL), node="failed"),
        found,
    ]
    names = [status.node for status in sorted(statuses, key=lambda status: status.urgency)]
    assert set(names[:2]) == {"failed", "found"}
    assert names[2:] == ["down", "incomplete", "hot", "cool", "waits", "passed"]


def test_the_summary_counts_and_names_what_stands_out() -> None:
    statuses = [
        replace(one(RUNNING), node="a"),
        replace(one(RUNNING), node="b", progress=replace(PROGRESS, temperature_c=83.0, findings=2)),
        replace(one(OVER, Verdict.PASS), node="c"),
        replace(one(OVER, Verdict.FAIL), node="d"),
    ]
    assert summary(statuses) == (
        "4 nodes: 2 running, 2 done; 1 FAIL, 1 PASS; hottest 83 C (b); findings on b"
    )


def test_the_summary_has_what_nodes_wait_for() -> None:
    statuses = [replace(one(WAITING), node=f"a{number}") for number in range(5)]
    statuses += [replace(one(HELD), node="b"), replace(one(DOWN), node="c")]
    statuses += [replace(one(TURN), node="d")]
    assert summary(statuses) == (
        "8 nodes: 8 waiting; Resources: a0, a1, a2 and 2 more; held: b; down or drained: c"
    )
