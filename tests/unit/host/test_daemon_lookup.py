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
from sentinel.host.daemon_lookup import find_socket
from tests.harness.registered_daemons import RegisteredDaemons


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
