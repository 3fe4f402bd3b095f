"""Nodes that cannot begin are waited for, and given up; no wait is without end."""

from __future__ import annotations

from sentinel.fleet.giving_up import GivingUp
from sentinel.fleet.status import NodeState, NodeStatus

DOWN = NodeStatus(node="n1", state=NodeState.WAITING, unavailable=True)
TURN = NodeStatus(node="n2", state=NodeState.WAITING, awaits_turn=True)
RUNNING = NodeStatus(node="n3", state=NodeState.RUNNING)
DONE = NodeStatus(node="n3", state=NodeState.DONE)


def test_nodes_are_given_up_after_a_time_without_anything_else() -> None:
    waiting = GivingUp(10.0)
    assert waiting.chosen([DOWN, RUNNING], 0.0) == ()
    assert waiting.chosen([DOWN, TURN, DONE], 50.0) == ()
    assert waiting.chosen([DOWN, TURN, DONE], 59.0) == ()
    assert waiting.chosen([DOWN, RUNNING], 60.0) == ()  # something goes on
    assert waiting.chosen([DOWN, TURN, DONE], 61.0) == ()
    assert waiting.chosen([DOWN, TURN, DONE], 71.0) == (DOWN,)
    assert waiting.chosen([DOWN, TURN, DONE], 72.0) == ()  # the wait begins again


def test_a_wait_for_the_turn_ends_if_nothing_releases_the_task() -> None:
    waiting = GivingUp(10.0)
    assert waiting.chosen([TURN, DONE], 0.0) == ()
    assert waiting.chosen([TURN, DONE], 10.0) == (TURN,)


def test_a_task_that_cannot_be_cancelled_is_given_up_the_second_time() -> None:
    waiting = GivingUp(10.0)
    assert not waiting.give_up([DOWN])
    assert waiting.give_up([DOWN])
    waiting.not_cancelled([DOWN], "scancel failed")
    assert waiting.reasons == {
        "n1": "given up after 10 s: the node is down or drained;"
        " its task was not cancelled: scancel failed"
    }
    assert not waiting.give_up([DOWN, TURN])
    assert waiting.reasons["n2"] == (
        "given up after 10 s: it waits for its turn, and could not be released"
    )
