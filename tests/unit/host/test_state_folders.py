"""The daemons of a user, running or not, and what their state directories take."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.host.daemons import daemon_records
from sentinel.host.daemons.state_folders import known_daemons

UID = 12345


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.host.daemons.daemon_lookup.why_untrusted", lambda _: None)
    monkeypatch.setattr("os.getuid", os.geteuid)


def record(environ: dict[str, str], state: Path, *, alive: bool = True, **facts: str | int) -> None:
    state.mkdir(parents=True)
    one = daemon_records.describe_own(state, **facts)
    if not alive:
        one = replace(one, started=one.started + 1)
    assert daemon_records.write(one, daemon_records.records_folder(environ, UID))


def test_running_and_ended_daemons_are_listed_with_what_they_take(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    shared = tmp_path / "sentinel"
    record(environ, shared / "sockets" / "a", socket="/a.sock")
    record(environ, shared / "sockets" / "b", alive=False, socket="/b.sock")
    record(environ, tmp_path / "gone", alive=False, socket="/gone.sock")
    (tmp_path / "gone").rmdir()
    record(environ, tmp_path / "gpus", socket="/c.sock", simulated="/gpus", simulate=4)
    record(environ, tmp_path / "runs", run="/runs/1")  # a burn-in is no daemon
    (shared / "sockets" / "b" / "history.db").write_bytes(bytes(100_000))
    (shared / "sockets" / "older").mkdir()
    (shared / "sockets" / "older" / "sentinel.log").write_text("{}\n")
    (shared / "sockets" / "empty").mkdir()

    found = {one.state.name: one for one in known_daemons(environ, UID)}
    assert found.keys() == {"a", "gpus", "b", "older"}
    assert [one.running for one in found.values()] == [True, True, False, False]
    assert (found["a"].pid, found["a"].socket) == (os.getpid(), "/a.sock")
    assert (found["a"].size, found["a"].changed) == (0, None)
    assert (found["b"].pid, found["b"].socket) == (None, "/b.sock")
    assert 100_000 <= found["b"].size < 200_000
    assert found["gpus"].simulated == 4
    assert (found["older"].socket, found["older"].since) == (None, None)
    assert found["older"].changed is not None


def test_the_shared_directory_is_measured_without_the_daemons_of_other_sockets(
    tmp_path: Path,
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    record(environ, tmp_path / "sentinel", alive=False, socket="/default.sock")
    other = tmp_path / "sentinel" / "sockets" / "b"
    other.mkdir(parents=True)
    (other / "history.db").write_bytes(bytes(100_000))
    sizes = {one.state: one.size for one in known_daemons(environ, UID)}
    assert sizes.keys() == {tmp_path / "sentinel", other}
    assert sizes[tmp_path / "sentinel"] == 0
    assert sizes[other] >= 100_000
