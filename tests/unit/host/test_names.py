"""Names of nodes and users do not wait for a name service that does not answer."""

from __future__ import annotations

import os
import pwd
import socket
import threading

import pytest

from sentinel.host.names import VARIABLE, UserNames, node_name


@pytest.mark.parametrize(("given", "name"), [("worker-7", "worker-7"), (" n1\n", "n1")])
def test_the_variable_names_the_node(
    monkeypatch: pytest.MonkeyPatch, given: str, name: str
) -> None:
    monkeypatch.setenv(VARIABLE, given)
    assert node_name() == name


@pytest.mark.parametrize("given", [None, "", " "])
def test_without_it_the_host_does(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    assert node_name() == socket.gethostname()


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
    monkeypatch.setattr("sentinel.host.names._PATIENCE_S", 0.01)
    answers = threading.Event()

    def find(uid: int) -> str:
        answers.wait()
        return f"user-{uid}"

    names = UserNames(find)
    assert names.get(7) is None
    monkeypatch.setattr("sentinel.host.names._PATIENCE_S", 1e9)
    assert names.get(7) is None, "it does not wait again"
    answers.set()
    assert [names.get(8), names.get(7)] == ["user-8", "user-7"]
