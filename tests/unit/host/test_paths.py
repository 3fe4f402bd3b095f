"""Paths of a daemon's socket, lock, state and log, by the environment."""

# ruff: noqa: S108 - these paths are compared and never opened

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.host.paths import MAX_SOCKET_PATH_BYTES, check_length, own_places, places, prepare
from sentinel.host.simulation import Registry

HOME = {"HOME": "/home/ann"}
USER = {**HOME, "XDG_RUNTIME_DIR": "/run/user/1000"}
UNIT = {
    "RUNTIME_DIRECTORY": "/run/sentinel:/run/other",
    "STATE_DIRECTORY": "/var/lib/sentinel:/var/lib/other",
    "LOGS_DIRECTORY": "/var/log/sentinel",
}
SIMULATED = Path("/tmp/simulated")


@pytest.mark.parametrize(
    ("environ", "uid", "simulated", "socket", "log"),
    [
        (USER, 1000, None, "/run/user/1000/sentinel/sentinel.sock", "/home/ann/.local/state"),
        (HOME, 1000, None, "/tmp/sentinel-1000/sentinel.sock", "/home/ann/.local/state"),
        ({**HOME, "XDG_RUNTIME_DIR": "a"}, 7, None, "/tmp/sentinel-7/sentinel.sock", "/home"),
        ({**HOME, "XDG_STATE_HOME": "/s"}, 7, None, "/tmp/sentinel-7/sentinel.sock", "/s/sentinel"),
        ({**HOME, "XDG_STATE_HOME": "s"}, 7, None, "/tmp/sentinel-7/sentinel.sock", "/home/ann"),
        (USER, 0, None, "/run/sentinel/sentinel.sock", "/var/lib/sentinel/sentinel.log"),
        ({}, 0, None, "/run/sentinel/sentinel.sock", "/var/lib/sentinel/sentinel.log"),
        (UNIT, 0, None, "/run/sentinel/sentinel.sock", "/var/log/sentinel/sentinel.log"),
        (UNIT, 990, None, "/run/sentinel/sentinel.sock", "/var/log/sentinel/sentinel.log"),
        (USER, 1000, SIMULATED, "/tmp/simulated/sentinel.sock", "/tmp/simulated/sentinel.log"),
        (USER, 0, SIMULATED, "/tmp/simulated/sentinel.sock", "/tmp/simulated/sentinel.log"),
        (USER | {"SENTINEL_SOCKET": "/a/b"}, 1000, SIMULATED, "/a/b", "/tmp/simulated"),
        (UNIT | {"SENTINEL_SOCKET": "/a/b"}, 0, None, "/a/b", "/var/log/sentinel"),
        (USER | {"SENTINEL_SOCKET": ""}, 0, None, "/run/sentinel/sentinel.sock", "/var/lib"),
    ],
)
def test_the_paths_follow_from_the_variables(
    environ: dict[str, str], uid: int, simulated: Path | None, socket: str, log: str
) -> None:
    found = places(environ, uid, simulated)
    assert str(found.socket) == socket
    assert str(found.record) == f"{socket}.json"
    assert str(found.log).startswith(log)
    assert found.log.name == "sentinel.log"
    assert found.named == bool(environ.get("SENTINEL_SOCKET"))


def test_a_daemon_with_a_socket_of_its_own_has_a_state_of_its_own() -> None:
    usual = places(USER, 1000)
    one, two = (places(USER | {"SENTINEL_SOCKET": f"/{name}/s"}, 1000) for name in "ab")
    assert len({usual.state, one.state, two.state}) == 3
    assert usual.shared == one.shared == two.shared == usual.state
    assert one.log.parent == one.token.parent == one.state
    again = places(USER | {"SENTINEL_SOCKET": "/a//x/../s"}, 1000)
    assert again.state == one.state


def test_the_default_socket_may_be_named() -> None:
    usual = places(USER, 1000)
    assert places(USER | {"SENTINEL_SOCKET": str(usual.socket)}, 1000).state == usual.state


def test_the_first_explicit_state_folder_wins_over_the_socket() -> None:
    found = places(UNIT | {"SENTINEL_SOCKET": "/a/b"}, 0)
    assert found.state == found.shared == Path("/var/lib/sentinel")


def test_relative_folders_are_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = places(HOME | {"STATE_DIRECTORY": "::sd:/x", "LOGS_DIRECTORY": "rel:/x"}, 1000)
    monkeypatch.chdir("/")
    assert found.state == tmp_path / "sd"
    assert found.log == tmp_path / "rel" / "sentinel.log"


def test_a_relative_socket_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SENTINEL_SOCKET: 's\.sock' is not an absolute path"):
        places({"SENTINEL_SOCKET": "s.sock"}, 1000)


def test_a_socket_path_that_is_too_long_is_an_error_with_its_length() -> None:
    check_length(Path("/" + "a" * (MAX_SOCKET_PATH_BYTES - 1)))
    with pytest.raises(ConfigError, match="has 109 bytes; at most 107 are allowed"):
        check_length(Path("/aa" + "\N{SNOWMAN}" * 35 + "a"))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away")
def test_simulated_gpus_of_another_user_are_refused(tmp_path: Path) -> None:
    assert own_places(USER, 0, tmp_path / "new").state == tmp_path / "new"
    os.chown(tmp_path, 65534, 65534)
    for use in (lambda: own_places(USER, 0, tmp_path), lambda: Registry.create(tmp_path, 1)):
        with pytest.raises(ConfigError, match="belongs to uid 65534, not to uid 0") as refused:
            use()
        assert refused.value.remedy == "Set SENTINEL_SIM_DIR to a folder of your own."
    assert not list(tmp_path.iterdir())


def test_the_remedy_for_a_folder_that_cannot_be_created_names_what_chooses_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "inner"
    run = {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    for environ, simulated, remedy in (
        ({"HOME": str(below), **run}, None, "Set HOME or XDG_STATE_HOME to"),
        ({"XDG_STATE_HOME": str(below), **run}, None, "Set HOME or XDG_STATE_HOME to"),
        ({"XDG_RUNTIME_DIR": str(below)}, None, "Set SENTINEL_SOCKET to"),
        ({}, below, "Set SENTINEL_SIM_DIR to"),
    ):
        with pytest.raises(ConfigError, match="cannot be") as refused:
            prepare(places(environ, 1000, simulated))
        assert refused.value.remedy.startswith(remedy)
