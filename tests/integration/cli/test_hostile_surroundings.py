"""Closed streams, low limits, no /proc, files that are none: a clear line and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program

RUN = (
    "run",
    "--log-format",
    "json",
    "--simulate",
    "1",
    "--for",
    "100ms",
    "--workload",
    "hold",
    "--no-api",
)

pytestmark = pytest.mark.usefixtures("fake_torch")


def run(
    host: SimulatedHost, shell: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of sentinel, as ``"$@"`` in a shell script."""
    command = [sys.executable, "-m", "sentinel", *words]
    return run_program("bash", "-c", shell, "bash", *command, env=host.environment(**environment))


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in ("<&-", ">&-", "2>&-")),
        "<&- >&- 2>&-",
    ],
)
def test_closed_standard_streams_are_no_obstacle(simulated: SimulatedHost, closed: str) -> None:
    done = run(simulated, f'"$@" {closed}', *RUN)
    assert done.returncode == 0, done
    assert ("sentinel.stopped" in done.stdout) is (">&-" not in closed.split())


@pytest.mark.long
def test_too_few_open_files_are_named_before_anything_starts(simulated: SimulatedHost) -> None:
    done = run(simulated, 'ulimit -n 20; "$@"', *RUN)
    assert done.returncode == 2
    assert "a process may have 20 open files here, and 80 are needed" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(simulated, 'ulimit -Sn 40; "$@"', *RUN).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("command", [RUN[:-1], ("start", "--simulate", "1")])
def test_a_limit_of_the_size_of_files_is_named_before_anything_starts(
    simulated: SimulatedHost, command: tuple[str, ...]
) -> None:
    done = run(simulated, 'ulimit -f 0; exec "$@"', *command)
    assert done.returncode == 2
    assert "a process may write 0 bytes to a file here" in done.stderr
    assert "ulimit -f" in done.stderr


def test_a_python_without_texts_is_named(simulated: SimulatedHost) -> None:
    done = run(simulated, '"$@"', "status", PYTHONOPTIMIZE="2")
    assert done.returncode == 2
    assert "PYTHONOPTIMIZE=2, removes the texts of commands and checks" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("group", ["²", "no_such_group", "99999999999"])
def test_a_group_that_does_not_exist_is_named(group: str, simulated: SimulatedHost) -> None:
    done = run(simulated, '"$@"', "start", "--simulate", "1", "--socket-group", group)
    assert done.returncode == 2
    assert f"the group {group!r} for the socket does not exist" in done.stderr


@pytest.mark.long
def test_a_missing_proc_is_named(simulated: SimulatedHost) -> None:
    shell = 'unshare --mount bash -c \'umount -l /proc && exec "$@"\' bash "$@"'
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs the right to create mount namespaces")
    done = run(simulated, shell, *RUN)
    assert done.returncode == 2
    assert "/proc is not mounted" in done.stderr
    assert "bug" not in done.stderr


#: Texts of configuration files, and a part of the error.
CONFIGURATIONS = {
    "a = " + "[" * 100_000 + "]" * 100_000: "nested too deeply",
    ".".join(["a"] * 5_000) + " = 1": "more than 16 parts",
    "#" * 2**21: "more than 1,048,576 bytes",
}


@mostly_long("text", CONFIGURATIONS, ids=["lists", "tables", "size"])
def test_a_configuration_without_bounds_is_refused(
    simulated: SimulatedHost, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    refuses(run(simulated, '"$@"', "config", "check", str(file)), CONFIGURATIONS[text])


@mostly_long(
    "words",
    [
        ("config", "check", "{fifo}"),
        pytest.param(("run", "--config", "{fifo}", "--simulate", "1"), marks=pytest.mark.long),
        pytest.param(("run", "--config", "/dev/zero", "--simulate", "1"), marks=pytest.mark.long),
        pytest.param(("start", "--simulate", "1"), marks=pytest.mark.long),
        ("logs",),
    ],
    ids=" ".join,
)
def test_a_fifo_or_a_device_in_place_of_a_file_blocks_no_command(
    simulated: SimulatedHost, tmp_path: Path, words: Sequence[str]
) -> None:
    fifo = tmp_path / "sentinel.log"
    os.mkfifo(fifo)
    given = [word.format(fifo=fifo) for word in words]
    environment = {"LOGS_DIRECTORY": str(tmp_path)}
    refuses(run(simulated, '"$@"', *given, **environment), "not a regular file")


def refuses(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2, done
    assert why in done.stderr
    assert not any(word in done.stderr for word in ("Traceback", "bug"))


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_doctor_names_a_search_path_with_which_no_daemon_of_root_starts(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 4321, 4321)
    path = f"{os.environ.get('PYTHONPATH', ROOT)}:{theirs}"
    done = run(simulated, '"$@"', "doctor", "--simulate", "1", PYTHONPATH=path)
    assert done.returncode == 2
    assert f"searches {theirs} for modules: the folder {theirs} belongs to uid 4321" in done.stderr
    assert "Traceback" not in done.stderr
