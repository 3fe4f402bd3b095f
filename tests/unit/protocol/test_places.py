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
FURTHER = "places for further requests are taken"
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
        ({"me": 12}, Level.OPERATE, "me has 12 requests, and each user has at most 12: "),
        ({"me": 12}, Level.ADMINISTER, "me has 12 requests, and each user has at most 12: "),
        ({"me": 35}, Level.OWN, None),
        ({"a": 99}, Level.READ, None),
        ({"a": 36, "me": 1}, Level.OPERATE, None),
        ({"a": 37, "me": 1}, Level.READ, f"36 of 48 {FURTHER}, and 12 are kept for administrators"),
        ({"a": 37, "me": 1}, Level.OPERATE, f"36 of 48 {FURTHER}, and 12 are kept for admin"),
        ({"a": 42, "me": 1}, Level.ADMINISTER, None),
        ({"a": 43, "me": 1}, Level.ADMINISTER, f"42 of 48 {FURTHER}, and 6 are kept for the dae"),
        ({"a": 48, "me": 1}, Level.OWN, None),
        ({"a": 49, "me": 1}, Level.OWN, f"48 of 48 {FURTHER}: their users and administrators can"),
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
    taken = take([*wishes, *[("admin", Level.ADMINISTER)] * TOTAL, *[("root", Level.OWN)] * 99])
    assert taken.count("admin") > TOTAL // 8
    assert taken.count("root") > TOTAL // 8
    assert len(taken) == TOTAL + len(set(taken))


@given(requests)
def test_two_users_leave_room_for_a_third(wishes: list[tuple[str, Level]]) -> None:
    two = [("ab"[user > "b"], level) for user, level in wishes * 2]
    taken = take([*two, *[("me", Level.READ)] * TOTAL])
    assert taken.count("me") == PLACES.share


@given(requests, st.sampled_from(LEVELS))
def test_whatever_others_take_a_user_gets_a_first_place(
    wishes: list[tuple[str, Level]], level: Level
) -> None:
    everything = [(user, Level.OWN) for user, _ in wishes] * TOTAL
    for others in (wishes, everything):
        assert PLACES.why_none(take(others), "me", level, name="me") is None


@given(st.lists(st.tuples(st.integers(1, 150).map(str), st.sampled_from(LEVELS)), max_size=400))
def test_first_places_are_bounded_and_the_owner_needs_none(wishes: list[tuple[str, Level]]) -> None:
    many = [(f"user {number}", Level.READ) for number in range(3 * TOTAL)]
    taken = take([*many, *wishes])
    assert len(taken) <= 2 * TOTAL
    owner = PLACES.why_none(take(many), "root", Level.OWN, name="root")
    assert owner is None
