"""Names of users do not wait for a name service that does not answer."""

from __future__ import annotations

import os
import pwd
import threading

import pytest

from sentinel.host.user_names import UserNames


def test_a_name_is_looked_up_once() -> None:
    asked: list[int] = []

    def find(uid: int) -> str | None:
        asked.append(uid)
        return {7: "anna"}.get(uid)

    names = UserNames(find)
    assert [names.get(uid) for uid in (7, 7, 8, None)] == ["anna", "anna", None, None]
    assert asked == [7, 8]


def test_the_name_of_this_user_is_found() -> None:
    assert UserNames().get(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name


def test_a_name_service_that_hangs_delays_each_user_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.host.user_names._PATIENCE_S", 0.01)
    answers = threading.Event()

    def find(uid: int) -> str:
        answers.wait()
        return f"user-{uid}"

    names = UserNames(find)
    assert names.get(7) is None
    monkeypatch.setattr("sentinel.host.user_names._PATIENCE_S", 1e9)
    assert names.get(7) is None, "it does not wait again"
    answers.set()
    assert [names.get(8), names.get(7)] == ["user-8", "user-7"]
