"""The order of requests: one turn at a time, administrators first, one of each user."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.turns import LoopTurns, Turns
from sentinel.protocol.commands import Level
from tests.harness.timing import TIMEOUT_S

READ, OPERATE, ADMINISTER, OWN = Level.READ, Level.OPERATE, Level.ADMINISTER, Level.OWN
#: What users send: a name and a level.
Sent = tuple[str, Level]


async def wait_for(turns: Turns, sent: Sent, order: list[str]) -> None:
    """Wait for a turn, and note it, as a request does."""
    if await turns.take(*sent, asyncio.get_running_loop().create_future()):
        order.append(sent[0])


async def answer(sent: Sequence[Sent]) -> list[str]:
    """Let requests wait during a turn, then end each turn; return the order of their users."""
    turns, order = Turns(), list[str]()
    await wait_for(turns, ("before", OWN), [])
    tasks = [asyncio.create_task(wait_for(turns, one, order)) for one in sent]
    for number in range(len(sent)):
        await asyncio.sleep(0)
        assert len(order) == number, "one turn at a time"
        turns.end()
    await asyncio.gather(*tasks)
    turns.end()
    await wait_for(turns, ("after", READ), order)
    assert order.pop() == "after", "no turn is left over"
    return order


@pytest.mark.parametrize(
    ("sent", "order"),
    [
        ([("a", READ)] * 3, "aaa"),
        ([*[("a", READ)] * 3, ("b", READ)], "abaa"),
        ([*[("a", READ)] * 3, ("b", OPERATE), ("c", Level.NONE)], "abcaa"),
        ([*[("a", READ)] * 3, *[("b", READ)] * 2], "ababa"),
        ([*[("a", READ)] * 2, ("d", ADMINISTER), ("r", OWN)], "rdaa"),
        ([("a", OPERATE), *[("d", ADMINISTER)] * 2, *[("r", OWN)] * 2], "rrdda"),
    ],
)
def test_the_order(sent: list[Sent], order: str) -> None:
    assert "".join(asyncio.run(answer(sent))) == order


LEVELS = {"a": READ, "b": READ, "c": OPERATE, "d": ADMINISTER, "r": OWN}


@given(st.lists(st.sampled_from(sorted(LEVELS)), max_size=40))
def test_all_get_turns_and_none_waits_for_two_turns_of_another_user(users: list[str]) -> None:
    order = asyncio.run(answer([(user, LEVELS[user]) for user in users]))
    assert sorted(order) == sorted(users)
    assert order == sorted(order, key=lambda user: -max(LEVELS[user], OPERATE))
    others = [user for user in order if LEVELS[user] <= OPERATE]
    for user in set(others):
        last = len(others) - others[::-1].index(user)
        before = others[:last]
        assert all(before.count(other) <= before.count(user) + 1 for other in set(others))


def test_a_request_that_gives_up_or_is_cancelled_passes_its_turn_on() -> None:
    async def run() -> None:
        turns, loop, order = Turns(), asyncio.get_running_loop(), list[str]()
        await wait_for(turns, ("before", OWN), [])
        gone = loop.create_future()
        gives_up = asyncio.create_task(turns.take("a", OWN, gone))
        is_cancelled = asyncio.create_task(wait_for(turns, ("b", OWN), order))
        is_late = asyncio.create_task(wait_for(turns, ("c", OWN), order))
        last = asyncio.create_task(wait_for(turns, ("d", READ), order))
        await asyncio.sleep(0)
        gone.set_result(False)
        is_cancelled.cancel()
        turns.end()
        is_late.cancel()  # it has the turn already, and has not learned so
        async with asyncio.timeout(TIMEOUT_S):
            await last
        await asyncio.gather(gives_up, is_cancelled, is_late, return_exceptions=True)
        assert (gives_up.result(), order) == (False, ["d"])
        assert is_cancelled.cancelled()
        assert is_late.cancelled()

    asyncio.run(run())


def test_the_event_loop_begins_one_answer_at_a_time_and_that_of_root_next() -> None:
    async def run() -> None:
        turns, order = LoopTurns(), list[str]()
        tasks = [asyncio.create_task(wait_for(turns, ("a", READ), order)) for _ in range(9)]
        while len(order) < 3:
            before = len(order)
            await asyncio.sleep(0)
            assert len(order) <= before + 1
        await wait_for(turns, ("r", OWN), order)
        assert order.index("r") <= 4
        await asyncio.gather(*tasks)
        assert order.count("a") == 9

    asyncio.run(run())


def test_a_free_turn_is_taken_at_once() -> None:
    async def run() -> None:
        order: list[str] = []
        waiting = wait_for(Turns(), ("a", READ), order)
        with pytest.raises(StopIteration):
            waiting.send(None)
        assert order == ["a"]

    asyncio.run(run())
