"""``run --once`` names the stressors of this user's daemon, which it reads as foreign processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.cli.daemon import run
from sentinel.host.simulation import Registry
from tests.harness.command_line import CommandLine
from tests.harness.registered import RegisteredDaemons
from tests.harness.stub_daemon import GPU, STATUS, Reply, stub_daemon

RESERVED = 2**30


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Provide one simulated GPU that this process uses, as a stressor would."""
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "gpus"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SENTINEL_SOCKET", raising=False)
    registry = Registry.create(tmp_path / "gpus", 1)
    with closing(registry.attach(registry.gpus()[0].uuid)) as share:
        assert share.allocate(RESERVED)
        yield registry


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Provide the command line, with what its child processes print."""
    return CommandLine(capfd)


@pytest.fixture(autouse=True)
def _daemon(registry: Registry, tmp_path: Path) -> Iterator[None]:
    """Register this process as the daemon of these GPUs."""
    with RegisteredDaemons() as daemons:
        folder = registry.folder
        daemons.add(folder, socket=str(tmp_path / "s"), simulated=str(folder), simulate=1)
        yield


def test_the_stressor_of_a_daemon_is_named_with_its_socket(
    tmp_path: Path, cli: CommandLine
) -> None:
    socket = tmp_path / "s"
    status = {**STATUS, "gpus": [{**GPU, "pid": os.getpid()}]}
    with stub_daemon(socket, status):
        out = cli("run", "--once").out
        assert f"busy: no stressor would start: occupied by the daemon at {socket}" in out
        assert f"1.0 GiB - stressor of the daemon at {socket}" in out
        (gpu,) = cli.json("run", "--once", "--json")["gpus"]
    assert gpu["daemon_stressors"] == {str(os.getpid()): str(socket)}
    assert gpu["verdict"]["rule"] == "process"


def test_a_run_that_occupies_nothing_warns_of_the_daemon_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = {**STATUS, "gpus": [{**GPU, "pid": None}]}
    with stub_daemon(tmp_path / "s", idle) as daemon:
        run._warn_of_daemons(1)
        assert capsys.readouterr().err == ""
        daemon.replies["GET /v1/status"] = Reply(STATUS)
        run._warn_of_daemons(1)
    assert f"daemon at {tmp_path}/s occupies GPUs" in capsys.readouterr().err


def test_a_process_that_is_not_the_stressor_stays_foreign(tmp_path: Path, cli: CommandLine) -> None:
    with stub_daemon(tmp_path / "s", {**STATUS, "gpus": [{**GPU, "pid": os.getppid()}]}):
        assert "used by foreign processes" in cli("run", "--once").out


def test_a_daemon_that_does_not_answer_is_left_out(cli: CommandLine) -> None:
    assert "used by foreign processes" in cli("run", "--once").out
