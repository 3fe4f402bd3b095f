"""Places that users share: what one user, many users and administrators can take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.protocol.commands import Level
from sentinel.protocol.places import Places

TOTAL = 48
PLACES = Places(TOTAL, "requests", "their users and administrators")
LEVELS = (Level.READ, Level.OPERATE, Level.ADMINISTER, Level.OWN)


def take(requests: Sequence[tuple[str, Level]]) -> list[str]:
    """Let users take places one after another; return the user of each place."""
    taken: list[str] = []
    for user, level in requests:
        if PLACES.why_none(taken, user, level, name=user) is None:
            taken.append(user)
    return taken


@pytest.mark.parametrize(
    ("taken", "level", "why"),
    [
        ({}, Level.OPERATE, None),
        ({"me": 11}, Level.OPERATE, None),
        ({"me": 12}, Level.OPERATE, "me has 12 requests, and the share of each user is 12 of 48"),
        ({"me": 12}, Level.ADMINISTER, "me has 12 requests, and the share of each user is 12"),
        ({"me": 35}, Level.OWN, None),
        ({"a": 35}, Level.OPERATE, None),
        ({"a": 36}, Level.READ, "36 of 48 requests are taken, and 12 places are kept for admin"),
        ({"a": 36}, Level.OPERATE, "36 of 48 requests are taken, and 12 places are kept for admin"),
        ({"a": 41}, Level.ADMINISTER, None),
        ({"a": 42}, Level.ADMINISTER, "42 of 48 requests are taken, and 6 places are kept for the"),
        ({"a": 47}, Level.OWN, None),
        ({"a": 48}, Level.OWN, "48 of 48 requests are taken: their users and administrators can"),
    ],
)
def test_who_gets_another_place(taken: dict[str, int], level: Level, why: str | None) -> None:
    users = [user for user, count in taken.items() for _ in range(count)]
    found = PLACES.why_none(users, "me", level, name="me")
    assert (found or "").startswith(why or "")
    assert (found is None) is (why is None)
    assert found is None or found.endswith(": their users and administrators can end some")


requests = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(LEVELS[:2])), max_size=200)


@given(requests)
def test_whatever_users_take_an_administrator_and_the_owner_get_places(
    wishes: list[tuple[str, Level]],
) -> None:
    taken = take([*wishes, *[("admin", Level.ADMINISTER)] * TOTAL, *[("root", Level.OWN)] * TOTAL])
    assert len(taken) == TOTAL
    assert taken.count("admin") >= TOTAL // 8
    assert taken.count("root") >= TOTAL // 8


@given(requests)
def test_two_users_leave_room_for_a_third(wishes: list[tuple[str, Level]]) -> None:
    two = [("ab"[user > "b"], level) for user, level in wishes * 2]
    taken = take([*two, *[("me", Level.READ)] * TOTAL])
    assert taken.count("me") == PLACES.share
