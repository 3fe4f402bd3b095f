"""Which daemon a command means where the host has a service of root."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.errors import AccessDeniedError
from sentinel.host import daemon_lookup
from sentinel.host.daemon_lookup import find_socket, known_daemons
from sentinel.host.registry import describe_own, take
from tests.harness.registered import RegisteredDaemons


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide the folders of an ordinary user without a daemon."""
    with tempfile.TemporaryDirectory() as made:  # short: the path of a socket is limited
        uid = os.getuid() or 1001
        monkeypatch.setattr(os, "getuid", lambda: uid)
        monkeypatch.setattr("sentinel.host.registry._is_own", lambda _: True)
        for name in ("SENTINEL_SOCKET", "SENTINEL_SIM_DIR", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{made}/run")
        monkeypatch.setenv("XDG_STATE_HOME", f"{made}/state")
        yield Path(made)


@pytest.fixture
def service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide the socket of a service."""
    path = folder / "service" / "sentinel.sock"
    path.parent.mkdir(mode=0o755)
    monkeypatch.setattr(daemon_lookup, "SERVICE_SOCKET", path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        yield path


def test_a_user_without_a_daemon_means_the_service_of_the_host(service: Path) -> None:
    assert find_socket() == str(service)


def test_without_a_service_it_is_the_default_path(folder: Path) -> None:
    assert find_socket() == str(folder / "run" / "sentinel" / "sentinel.sock")


def test_the_own_daemon_and_a_chosen_one_come_first(
    folder: Path, service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_socket("/named") == "/named"
    assert find_socket(None, folder / "sim") == str(folder / "sim" / "sentinel.sock")
    own = folder / "run" / "sentinel"
    own.mkdir(parents=True, mode=0o700)
    with RegisteredDaemons() as daemons:
        daemons.add(folder, socket=str(own / "sentinel.sock"))
        assert find_socket() == str(own / "sentinel.sock")
    assert find_socket() == str(service)
    monkeypatch.setenv("SENTINEL_SOCKET", "/chosen")
    assert find_socket() == "/chosen"


@pytest.fixture
def closed_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder for temporary files, to a user whose home cannot be written."""
    (folder / "home").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "home" / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_without_a_home_the_daemon_of_simulated_gpus_is_found(closed_home: Path) -> None:
    simulated = closed_home / f"sentinel-sim-{os.getuid()}"
    simulated.mkdir(mode=0o700)
    usual = str(closed_home / "run" / "sentinel" / "sentinel.sock")
    its = simulated / "sentinel.sock"
    entry = take(Path(f"{its}.json"), describe_own(simulated, socket=str(its)))
    assert find_socket() == str(its)
    simulated.chmod(0o777)
    assert find_socket() == usual, "another user could have put it there"
    simulated.chmod(0o700)
    entry.release()
    assert find_socket() == usual, "it has ended"


def test_a_service_in_a_folder_that_all_may_write_is_none(folder: Path, service: Path) -> None:
    service.parent.chmod(0o777)
    assert find_socket() == str(folder / "run" / "sentinel" / "sentinel.sock")


def test_a_default_folder_that_all_may_write_is_refused_with_a_remedy(folder: Path) -> None:
    shared = folder / "run"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(AccessDeniedError) as caught:
        find_socket()
    assert "--socket PATH" in caught.value.remedy


UID = 12345


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegisteredDaemons]:
    """Provide records in a folder that is trusted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(daemon_lookup, "why_untrusted", lambda _: None)
    monkeypatch.setattr("os.getuid", os.geteuid)
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
