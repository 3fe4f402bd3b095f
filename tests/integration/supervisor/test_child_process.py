"""The supervisor's children start without the supervisor's modules."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from sentinel.host.process_setup import Inherited
from sentinel.host.procfs import read_stat
from sentinel.supervisor.child_process import Child
from tests.harness.child_functions import fork_and_wait, send_modules, send_safe_path
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.isolation import STRANGER
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


@pytest.mark.parametrize("group", ["its parent's", "its own"])
def test_what_a_child_has_forked_is_killed_when_the_child_that_was_killed_alone_is_reaped(
    group: str,
) -> None:
    child = Child(fork_and_wait, group, (), {})
    child.runs_own_code = group == "its own"
    child.channel.setblocking(True)
    forked = child.channel.recv(20).decode()
    child.kill_alone()
    eventually(child.ended)
    assert is_alive(forked)
    assert child.reap() == -signal.SIGKILL
    eventually(lambda: not is_alive(forked))


def test_own_code_is_reaped_although_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    child = Child(send_safe_path, None, (), {})
    child.runs_own_code = True
    eventually(child.ended)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        assert child.reap() == 0


def is_alive(pid: str) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.alive


def test_a_child_loads_no_module_of_the_supervisor() -> None:
    reading, writing = os.pipe()
    try:
        child = Child(send_modules, None, (Inherited(reading),), {})
        child.channel.setblocking(True)
        loaded = json.loads(child.channel.recv(2**16))
        eventually(child.ended)
        assert child.reap() == 0
    finally:
        os.close(reading)
        os.close(writing)
    assert "sentinel.host.process_setup" in loaded
    assert not [
        name for name in loaded if name.startswith(("sentinel.supervisor", "sentinel.core"))
    ]


def test_a_child_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('of another user')\n")
    monkeypatch.chdir(tmp_path)
    child = Child(send_safe_path, None, (), {})
    child.channel.setblocking(True)
    sent = child.channel.recv(2**16)
    eventually(child.ended)
    assert child.reap() == 0
    assert json.loads(sent) is None, "programs of a workload must search their own folder"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_root_starts_no_interpreter_that_another_user_can_fill(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    theirs, ran = tmp_path / "theirs", tmp_path / "ran"
    theirs.mkdir()
    code = f"import os\nwith open({str(ran)!r}, 'a') as file: print(os.getpid(), file=file)\n"
    (theirs / "sitecustomize.py").write_text(code)
    os.chown(theirs, STRANGER, STRANGER)
    command = [sys.executable, "-m", "sentinel", "run", "--simulate", "1", "--for", "1s"]
    environment = simulated.environment(PYTHONPATH=str(theirs))
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        _, text = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == ExitCode.USAGE
    assert f"searches {theirs} for modules: the folder {theirs} belongs to uid {STRANGER}" in text
    assert "Take the folder out of PYTHONPATH" in text
    assert ran.read_text().split() == [str(process.pid)], "only the command itself"


@pytest.mark.skipif(os.getuid() != 0, reason="root alone refuses it")
def test_root_starts_no_interpreter_whose_folder_another_user_could_create(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    command = [sys.executable, "-m", "sentinel", "run", "--simulate", "1", "--for", "1s"]
    environment = simulated.environment(PYTHONPATH=str(shared / "missing"))
    done = run_program(*command, env=environment, cwd=ROOT)
    assert done.returncode == ExitCode.USAGE
    assert f"all users may create files in the folder {shared}" in done.stderr
