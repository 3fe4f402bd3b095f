"""What a forked process keeps of a stressor."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.stressor import forked_children
from tests.harness.isolation import adopted_orphans
from tests.harness.programs import piped_program, run_program

PROGRAM = """
import fcntl, os, signal, sys
from sentinel.stressor import forked_children
lock, device = os.open(sys.argv[2], os.O_RDWR), os.open(sys.argv[3], os.O_RDWR)
for file in (lock, device):
    fcntl.flock(file, fcntl.LOCK_EX)
if sys.argv[4] == "detach":
    forked_children.detach_forks([lock], sys.argv[1], lambda: None)
child = os.fork()
if child == 0:
    os.setsid()
    print("forked", os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


@pytest.mark.parametrize("detached", [True, False])
def test_a_forked_process_keeps_neither_a_lock_nor_the_device(
    tmp_path: Path, *, detached: bool
) -> None:
    """Both files are locked by the parent, and free once it is gone, though the child lives."""
    lock, device = tmp_path / "lock", tmp_path / "nvidia0"
    for path in (lock, device):
        path.touch()
    arguments = (str(device), str(lock), str(device), "detach" if detached else "keep")
    with piped_program(sys.executable, "-c", PROGRAM, *arguments) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        parent.kill()
        parent.wait()
        try:
            assert [is_free(path) for path in (lock, device)] == [detached] * 2
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_process_that_forks_keeps_its_own_files(tmp_path: Path) -> None:
    """One that it has opened may have the number of one that it had to close."""
    program = """
import os, sys
from sentinel.stressor import forked_children
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
forked_children.detach_forks([lock], "/dev/nvidia", lambda: None)
if os.fork() == 0:
    assert os.open(sys.argv[1], os.O_RDWR) == lock
    if os.fork() == 0:
        os.fstat(lock)
        print("open", flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""
    done = run_program(sys.executable, "-c", program, str(tmp_path / "lock"), check=True)
    assert done.stdout == "open\n"


def test_the_late_ones_of_many_forked_processes_outlive_the_hangup() -> None:
    """The kernel hangs the group up while the leader exits: what ends then, delays the exit."""
    program = """
import os, signal
from sentinel.host.process_setup import _hang_up_group_on_exit
from sentinel.stressor import forked_children
os.setsid()
_hang_up_group_on_exit()
forked_children.detach_forks([], "/dev/nvidia", lambda: None)
for _ in range(forked_children._FEW + 2):
    if not os.fork():
        print(os.getpid(), flush=True)
        signal.pause()
        signal.pause()
    os.read(0, 1)
print("all", flush=True)
signal.pause()
"""
    with (
        adopted_orphans(),
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        ) as leader,
    ):
        assert leader.stdin is not None
        assert leader.stdout is not None
        children = []
        for line in iter(leader.stdout.readline, b"all\n"):
            children.append(int(line))
            leader.stdin.write(b".")
        leader.kill()
        leader.wait()
        ends = [os.WTERMSIG(os.waitpid(child, 0)[1]) for child in children]
    late = len(children) - forked_children._FEW
    assert ends == [signal.SIGHUP] * forked_children._FEW + [signal.SIGALRM] * late


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_without_proc_the_device_files_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_children, "_FDS", "/nonexistent")
    assert forked_children._device_files("/") == []
