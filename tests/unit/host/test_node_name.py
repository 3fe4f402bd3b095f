"""The name of a node is Kubernetes' name for it, or that of the host."""

from __future__ import annotations

import socket

import pytest

from sentinel.host.node_name import VARIABLE, node_name


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
