"""The commands of an engine; what is asked of ClusterShell, and which process is a run's."""

from __future__ import annotations

import shlex
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.fleet.drain import parse_nodes
from sentinel.fleet.engine import Clush, EngineError, EngineMissingError, run_tool
from sentinel.fleet.run_folder import FleetFolder, FleetRun
from sentinel.host.procfs import boot_id, read_stat
from tests.harness.example_fleet import fleet_run
from tests.harness.narrowing import not_none


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a command that is found by its name."""
    path = tmp_path / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def write(tool: Path, script: bytes) -> None:
    tool.write_bytes(b"#!/bin/sh\n" + script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_variables_that_hide_jobs_are_not_passed_on(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    write(tool, b'echo "${SQUEUE_STATES:-all} $SLURM_CONF"')
    assert run_tool(("squeue",)) == "all /etc/slurm.conf\n"


def test_a_reason_in_another_encoding_is_a_reason(tool: Path) -> None:
    write(tool, b"printf 'NodeName=n1 State=IDLE Reason=d\\351fectueux [a@b]'")
    assert dict(parse_nodes(run_tool(("squeue",))))["n1"].reason.startswith("d")


def test_a_command_that_is_missing_has_an_error_of_its_own() -> None:
    with pytest.raises(EngineMissingError, match="sentinel-has-none is not installed"):
        run_tool(("sentinel-has-none",))


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run(folder: FleetFolder) -> FleetRun:
    """Return a run whose clush has not been started."""
    command = ("sentinel", "fleet", "run-node", str(folder.path))
    return fleet_run("n1", "n2", engine="clush", command=command)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process with these words, which waits."""
    started = []

    def started_with(*words: str) -> subprocess.Popen[bytes]:
        # `read` waits for its standard input, and the words after the script are its own.
        process = subprocess.Popen(
            [words[0], "-c", "echo; read line", *words[1:]],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        not_none(process.stdout).readline()  # a process has no command line for a moment after exec
        return process

    yield started_with
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            not_none(stream).close()


def with_process(run: FleetRun, process: subprocess.Popen[bytes]) -> FleetRun:
    """Name a process as the clush of a run."""
    stat = not_none(read_stat(process.pid))
    return replace(run, jobs=(f"{boot_id()}:{process.pid}:{stat.started}",))


def test_a_run_is_not_resumed_beside_its_own_clush(
    folder: FleetFolder, run: FleetRun, start: Start
) -> None:
    """The file names one clush alone: the nodes of the first would be taken for over."""
    run = with_process(run, start("/usr/bin/clush", "-n", shlex.join(run.command)))
    folder.write(run)
    (folder.logs / "clush.txt").write_text("n1: begun")
    with pytest.raises(EngineError, match="still works on its other nodes"):
        Clush(folder=folder).submit(run, folder, ["n2"])
    assert folder.read() == run
    assert (folder.logs / "clush.txt").read_text() == "n1: begun"


@pytest.mark.parametrize("name", ["a run", "moved"])
def test_the_clush_of_a_run_is_ended_with_it_also_if_its_folder_was_moved(
    folder: FleetFolder, run: FleetRun, start: Start, tmp_path: Path, name: str
) -> None:
    process = start("clush", "-n", shlex.join(run.command))
    run = with_process(run, process)
    folder.write(run)
    Clush(folder=FleetFolder(path=folder.path.rename(tmp_path / name))).cancel(run)
    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize(
    "name", ["another program", "another run of clush", "the clush of another folder"]
)
def test_a_process_that_is_none_of_the_run_is_left_alone(
    folder: FleetFolder, run: FleetRun, start: Start, tmp_path: Path, name: str
) -> None:
    words = {
        "another program": ("sleep", "-n", shlex.join(run.command)),
        "another run of clush": ("clush", "-n", "uptime"),
        "the clush of another folder": ("clush", "-n", shlex.join(run.command)),
    }
    process = start(*words[name])
    if name == "the clush of another folder":
        folder = FleetFolder(path=tmp_path / "forged")
        folder.create()
    named = with_process(run, process)
    Clush(folder=folder).cancel(named)
    assert {task.state.value for task in Clush(folder=folder).tasks(named).values()} == {"over"}
    # A signal would have come before this one.
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == -signal.SIGUSR1
