"""A daemon is started without a terminal, and the start reports whether it answers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli.daemon import start
from sentinel.cli.main import run_command_line
from sentinel.client.transport import Address, send
from sentinel.errors import AlreadyRunningError, ConfigError, ExitCode
from sentinel.host.paths import Places, places
from sentinel.host.procfs import read_stat
from sentinel.host.registry import running
from sentinel.supervisor import daemonize
from sentinel.supervisor.daemonize import NotStartedError, Started, start_detached
from sentinel.supervisor.single_instance import claim
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

COMMAND = (sys.executable, str(TESTS / "fake_daemon.py"))


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set and return the environment of a host without a daemon."""
    for name in list(os.environ):
        if name.startswith(("SENTINEL_", "NOTIFY_", "WATCHDOG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.setenv("SENTINEL_CONFIG", os.devnull)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(daemonize, "COMMAND", COMMAND)
    return dict(os.environ)


@pytest.fixture
def where(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Return the paths of the daemon, and end it after the test; it has no status to wait for."""
    monkeypatch.setattr(start, "SETTLING_S", 0.0)
    found = places(environ, os.getuid())
    yield found
    pid = running(found)
    if pid and pid != os.getpid():
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: running(found) is None)


def launch(how: str, where: Places, wait: float = TIMEOUT_S) -> Started:
    return start_detached([how], where, wait, command=COMMAND)


def run_logs() -> str:
    """Return what `sentinel logs` shows."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run_command_line(["logs"]) == 0
    return out.getvalue()


def shut_down(where: Places) -> dict[str, Any]:
    """Shut a fake daemon down; return its report about itself."""
    answer = send(Address(socket=str(where.socket)), "POST", "/v1/stop", {}, TIMEOUT_S)
    eventually(lambda: running(where) is None)
    return answer


# --- how it is started -----------------------------------------------------------------------


def test_a_started_daemon_answers_and_has_no_terminal(where: Places) -> None:
    started = launch("answer", where)
    assert running(where) == started.pid
    stat = not_none(read_stat(started.pid))
    assert stat.session == started.pid
    files = {
        number: str(Path(f"/proc/{started.pid}/fd/{number}").readlink()) for number in range(3)
    }
    assert files == {0: "/dev/null", 1: str(where.stderr), 2: str(where.stderr)}
    assert shut_down(where)["cwd"] == str(where.state)
    assert where.stderr.read_text() == "printed before\nprinted by the daemon\n"


def test_a_daemon_outlives_the_session_that_started_it(
    where: Places, environ: dict[str, str]
) -> None:
    module = "tests.integration.supervisor.test_daemonize"
    code = f"import sys, {module} as t; t.launch('answer', t.places(t.os.environ, t.os.getuid()))"
    shell = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('started', flush=True); sys.stdin.read()"],
        env=environ | {"PYTHONPATH": f"{ROOT}:{TESTS}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with shell:
        assert not_none(shell.stdout).readline() == b"started\n"
        os.killpg(shell.pid, signal.SIGHUP)
        os.killpg(shell.pid, signal.SIGKILL)
    assert send(Address(socket=str(where.socket)), "GET", "/v1/health", None, TIMEOUT_S) == {
        "schema_version": 1
    }


def test_paths_in_variables_become_absolute_and_those_of_systemd_are_removed(
    where: Places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTINEL_SIM_DIR", "pretended")
    monkeypatch.setenv("SENTINEL_GOLDENS", "off")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:mine")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/nowhere")
    monkeypatch.setenv("LOGS_DIRECTORY", "logs:more")
    launch("answer", where)
    env = shut_down(where)["env"]
    assert env["SENTINEL_SIM_DIR"] == str(tmp_path / "pretended")
    assert env["SENTINEL_GOLDENS"] == "off"
    assert env["PYTHONPATH"] == f"{ROOT}:{tmp_path}/mine"
    assert env["LOGS_DIRECTORY"] == f"{tmp_path}/logs:{tmp_path}/more"
    assert "NOTIFY_SOCKET" not in env


# --- how it can fail -------------------------------------------------------------------------


@mostly_long(
    "how, code, words",
    [
        ("fail", ExitCode.NO_SUCH_GPU, "exited with code 4 .*\n.*no such GPU: 9\nThere are: 0, 1$"),
        (
            "fail-late",
            ExitCode.NO_DRIVER,
            "exited with code 5 .*\nprinted before\n.*\nsentinel: there is no driver$",
        ),
        (
            "crash",
            ExitCode.USAGE,
            "was ended by SIGKILL .*: see `dmesg`. before it answered:\nIt printed nothing",
        ),
    ],
)
def test_a_daemon_that_exits_before_it_answers_is_an_error_with_its_last_output(
    where: Places, how: str, code: ExitCode, words: str
) -> None:
    with pytest.raises(NotStartedError, match=words) as caught:
        launch(how, where)
    assert caught.value.exit_code is code
    shown = run_logs()
    assert "not started" in shown
    assert " ".join(caught.value.remedy.splitlines()[-1].split()) in " ".join(shown.split())


@pytest.mark.long
def test_a_daemon_that_never_answers_is_ended(where: Places) -> None:
    with pytest.raises(NotStartedError, match="did not answer in time and was ended"):
        launch("hang", where, 1.0)
    assert running(where) is None
    assert "not started it did not answer in time" in run_logs()


def test_a_running_daemon_is_named(where: Places) -> None:
    held = claim(where)
    assert not where.log.exists()
    with pytest.raises(NotStartedError, match=f"is already running: pid {os.getpid()}") as caught:
        launch("answer", where)
    assert caught.value.exit_code is ExitCode.HELD
    assert not where.log.exists(), "the log is that of the running daemon"
    held.release()


@pytest.mark.long
def test_one_of_several_concurrent_starts_wins_and_the_others_name_it(where: Places) -> None:
    results: list[Started | NotStartedError] = []

    def launch_one() -> None:
        try:
            results.append(launch("answer", where))
        except NotStartedError as error:
            results.append(error)

    threads = [threading.Thread(target=launch_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    (winner,) = [result for result in results if isinstance(result, Started)]
    errors = [result for result in results if isinstance(result, NotStartedError)]
    assert len(errors) == 5
    assert all(f"is already running: pid {winner.pid} " in str(error) for error in errors)
    assert {error.exit_code for error in errors} == {ExitCode.HELD}


@pytest.mark.parametrize("answer", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]"])
def test_an_invalid_response_is_refused(tmp_path: Path, answer: bytes) -> None:
    where = places({"SENTINEL_SOCKET": str(tmp_path / "s"), "HOME": str(tmp_path)}, 1)
    held = claim(where)

    def serve() -> None:
        connection, _ = held.socket.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    assert not daemonize._answers(where, os.getpid())
    thread.join(TIMEOUT_S)
    held.release()


# --- the command -----------------------------------------------------------------------------


def run(*arguments: str) -> Callable[[], str]:
    """Return a function that runs ``sentinel start`` in this process and returns its output.

    The fake daemon has no GPU to wait for.
    """

    def call() -> str:
        given = [*arguments, "--wait=0"]
        result = CliRunner().invoke(start.command, given, catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    return call


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command start the fake daemon."""

    def detached(flags: list[str], where: Places, wait: float) -> Started:
        return start_detached(["answer", *flags], where, wait, command=COMMAND)

    monkeypatch.setattr(start, "start_detached", detached)


def test_the_command_starts_a_daemon_and_leaves_it_the_next_time(
    where: Places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.toml").write_text('rearm = "1s"')
    flags = ("--config", "file.toml", "--gpus", "0", "--gpus", "1", "--goldens", "g", "--poll=1s")
    output = run(*flags)()
    pid = running(where)
    assert f"started: pid {pid}\nsocket {where.socket}\nlog    {where.log}\n" in output
    assert "runs already" in run()()
    again = json.loads(run("--json")())
    assert again == {
        "schema_version": 1,
        "started": False,
        "pid": pid,
        "socket": str(where.socket),
        "log": str(where.log),
        "occupied": None,
    }
    argv = shut_down(where)["argv"][2:]
    assert argv[0] == f"--config={tmp_path}/file.toml"
    assert set(argv[1:]) == {"--gpus=0,1", f"--goldens={tmp_path}/g", "--poll=1s"}


def test_a_daemon_on_simulated_gpus_is_found_by_their_folder(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SENTINEL_SOCKET")
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "pretended"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "real"))
    assert start._places(simulated=False).socket == tmp_path / "real" / "sentinel.sock"
    where = start._places(simulated=True)
    assert (where.socket, start._pid(where)) == (tmp_path / "pretended" / "sentinel.sock", None)
    held = claim(where)
    try:
        assert start._pid(where) == os.getpid()
    finally:
        held.release()


@pytest.mark.parametrize(
    ("flag", "value", "command"), [("--poll", "1s", "set"), ("--config", "mine.toml", "reload")]
)
def test_flags_for_a_running_daemon_are_refused(
    where: Places,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flag: str,
    value: str,
    command: str,
) -> None:
    """A file, too: it would be ignored, and the command say that all is well."""
    pretend(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").touch()
    run()()
    with pytest.raises(AlreadyRunningError, match=f"use: sentinel {command}"):
        run(flag, value)()


def test_a_running_daemon_that_does_not_answer_is_an_error_with_its_pid(where: Places) -> None:
    held = claim(where)
    held.socket.close()
    with pytest.raises(NotStartedError, match=f"pid {os.getpid()}, runs and does not answer"):
        run()()
    held.release()


def test_an_invalid_setting_is_an_error_before_the_start(where: Places) -> None:
    with pytest.raises(ConfigError, match="--poll: '11m' is out of range"):
        run("--poll", "11m")()
    assert not where.log.exists()
    assert running(where) is None
