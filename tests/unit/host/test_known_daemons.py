"""The daemons of a user, running or not, and what their state directories take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.host.daemon_lookup import known_daemons
from tests.harness.registered_daemons import RegisteredDaemons

UID = 12345


@pytest.fixture(autouse=True)
def _own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sentinel.host.daemon_lookup.why_untrusted", lambda _: None)
    monkeypatch.setattr("os.getuid", os.geteuid)


@pytest.fixture
def registered() -> Iterator[RegisteredDaemons]:
    with RegisteredDaemons() as daemons:
        yield daemons


def test_running_and_ended_daemons_are_listed_with_what_they_take(
    tmp_path: Path, registered: RegisteredDaemons
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    shared = tmp_path / "sentinel"
    registered.add(shared / "sockets" / "a", socket=f"{tmp_path}/a.sock")
    registered.add(shared / "sockets" / "b", alive=False, socket=f"{tmp_path}/b.sock")
    registered.add(tmp_path / "gone", alive=False, socket=f"{tmp_path}/gone.sock")
    registered.add(tmp_path / "gpus", socket=f"{tmp_path}/c.sock", simulated="/gpus", simulate=4)
    registered.add(tmp_path / "runs", run=f"{tmp_path}/run-1")  # a burn-in is no daemon
    for state in (shared / "sockets" / "a", shared / "sockets" / "b", tmp_path / "gpus"):
        state.mkdir(parents=True)
    (shared / "sockets" / "b" / "history.db").write_bytes(bytes(100_000))
    (shared / "sockets" / "older").mkdir()
    (shared / "sockets" / "older" / "sentinel.log").write_text("{}\n")
    (shared / "sockets" / "empty").mkdir()

    found = {daemon.state.name: daemon for daemon in known_daemons(environ, UID)}
    assert found.keys() == {"a", "gpus", "b", "older"}
    assert [one.running for one in found.values()] == [True, True, False, False]
    assert (found["a"].pid, found["a"].socket) == (os.getpid(), f"{tmp_path}/a.sock")
    assert (found["a"].size, found["a"].changed) == (0, None)
    assert (found["b"].pid, found["b"].socket) == (None, f"{tmp_path}/b.sock")
    assert 100_000 <= found["b"].size < 200_000
    assert found["gpus"].simulated == 4
    assert (found["older"].socket, found["older"].since) == (None, None)
    assert found["older"].changed is not None


def test_the_shared_directory_is_measured_without_the_daemons_of_other_sockets(
    tmp_path: Path, registered: RegisteredDaemons
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    registered.add(tmp_path / "sentinel", alive=False, socket=f"{tmp_path}/default.sock")
    other = tmp_path / "sentinel" / "sockets" / "b"
    other.mkdir(parents=True)
    (other / "history.db").write_bytes(bytes(100_000))
    assert (tmp_path / "sentinel").is_dir()
    sizes = {daemon.state: daemon.size for daemon in known_daemons(environ, UID)}
    assert sizes.keys() == {tmp_path / "sentinel", other}
    assert sizes[tmp_path / "sentinel"] == 0
    assert sizes[other] >= 100_000
