"""What is known of each node of a fleet run: unknown is never over, and a report alone neither."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.engine import Task, TaskState
from sentinel.fleet.records.progress import NodeProgress
from sentinel.fleet.status import NodeState, NodeStatus, describe, is_stalled, merge, note, summary

OVER = Task(state=TaskState.OVER)
RUNNING = Task(state=TaskState.RUNNING)
WAITING = Task(state=TaskState.WAITING, reason="Resources")
DOWN = Task(state=TaskState.WAITING, reason="BeginTime", node_unavailable=True)
HELD = Task(state=TaskState.WAITING, hold="JobHeldAdmin; release it: scontrol release 12")
TURN = Task(state=TaskState.WAITING, awaits_turn=True)
PROGRESS = NodeProgress(
    node="n",
    state="running",
    time=datetime(2026, 11, 23, tzinfo=UTC),
    phase="steady",
    number=2,
    phases=6,
    left_s=90.0,
    gpus=8,
    temperature_c=71.0,
)


def one(task: Task | None, verdict: Verdict | None = None) -> NodeStatus:
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
    task: Task | None, verdict: Verdict | None, state: NodeState
) -> None:
    status = one(task, verdict)
    assert status.state is state
    assert status.is_over == (task is OVER)


def test_a_run_is_stalled_only_if_all_that_is_left_cannot_begin() -> None:
    assert is_stalled([one(OVER), one(DOWN)])
    assert not is_stalled([one(DOWN), one(WAITING)])
    assert not is_stalled([one(DOWN), one(RUNNING)])
    assert not is_stalled([one(DOWN), one(None)])
    assert not is_stalled([one(OVER, Verdict.PASS)])


def test_a_task_that_is_held_cannot_begin_either_nor_one_whose_turn_comes_after_it() -> None:
    assert is_stalled([one(OVER), one(HELD), one(DOWN)])
    assert is_stalled([one(HELD), one(TURN)])
    assert is_stalled([one(DOWN), one(TURN)])
    assert not is_stalled([one(TURN)])  # it is released now
    assert not is_stalled([one(HELD), one(TURN), one(RUNNING)])
    assert note(one(HELD)) == "held: JobHeldAdmin; release it: scontrol release 12"
    assert not one(TURN).is_stuck
    assert note(one(TURN)) == ""


def test_a_missing_node_has_the_end_of_its_task() -> None:
    ended = Task(state=TaskState.OVER, reason="job 12 has ended: TIMEOUT")
    assert note(one(ended)) == "no report, job 12 has ended: TIMEOUT"
    assert note(one(ended, Verdict.PASS)) == "PASS"


def test_a_row_has_the_phase_while_it_runs_and_the_verdict_afterwards() -> None:
    running = ("n", "running", "2 of 6 steady", "1m 30s", "71 C", "", "")
    assert describe(one(RUNNING))[:3] == running[:3]
    assert describe(one(RUNNING))[4:] == running[4:]
    done = describe(one(OVER, Verdict.FAIL))
    assert done[2:4] == ("", "")
    assert done[-1] == "FAIL"
    assert note(one(OVER)) == "no report"
    assert note(one(DOWN)) == "the node is down or drained"
    assert note(one(WAITING)) == "Resources"


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
