"""A process is identified by its PID and start, whatever its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from sentinel.host.procfs import (
    MAX_COMMAND_LENGTH,
    ProcessStat,
    ancestors_of,
    boot_id,
    own_stat,
    read_command,
    read_stat,
)
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program

#: Sets the process name to its argument, prints "named", and waits for the end of its input.
NAMED = """
import ctypes, os, sys
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, os.fsencode(sys.argv[1]), 0, 0, 0)
print("named", flush=True)
sys.stdin.read()
"""


@contextmanager
def named(name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process with this name, in a new session."""
    with piped_program(sys.executable, "-c", NAMED, name, start_new_session=True) as process:
        try:
            assert not_none(process.stdout).readline() == "named\n"
            yield process
        finally:
            process.kill()


def stat_of(process: subprocess.Popen[str]) -> ProcessStat:
    return not_none(read_stat(process.pid))


def test_the_stat_line_of_this_process_has_its_pid() -> None:
    stat = own_stat()
    assert stat.pid == os.getpid()
    assert stat.session == os.getsid(0)
    assert stat.alive
    assert not stat.exiting
    assert stat == read_stat(os.getpid())


def test_the_start_is_in_ticks_since_boot_and_agrees_with_the_wall_clock() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    started = psutil.boot_time() + own_stat().started / ticks
    assert started == pytest.approx(psutil.Process().create_time(), abs=2)


def test_the_start_never_changes() -> None:
    assert {own_stat().started for _ in range(20)} == {own_stat().started}


@pytest.mark.parametrize(
    "name", ["two words", "a) b (c", ") Z 1 1 1", "(", ")", "a\nb", "%s", "caf\udce9"]
)
def test_a_process_name_cannot_shift_the_fields(name: str) -> None:
    with named(name) as process:
        stat = stat_of(process)
        assert stat.name == name.replace("\udce9", "\ufffd")
        assert stat.pid == process.pid
        assert stat.session == process.pid
        assert stat.state in {"S", "R", "D"}
        assert stat.started >= own_stat().started


def test_a_zombie_is_not_alive() -> None:
    with named("zombie") as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        stat = stat_of(process)
        assert stat.state == "Z"
        assert not stat.alive
        assert stat.exiting


def test_a_dead_process_has_no_details() -> None:
    with named("gone") as process:
        process.kill()
        process.wait()
        assert read_stat(process.pid) is None


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, "init"])
def test_a_missing_process_has_no_stat_line(pid: int | str) -> None:
    assert read_stat(pid) is None


def test_the_ancestors_of_a_process_are_known_up_to_init() -> None:
    found = ancestors_of(own_stat())
    assert found[0] == os.getppid()
    assert 1 not in found
    assert len(set(found)) == len(found)


def test_each_boot_has_an_id() -> None:
    assert boot_id() == boot_id() != ""


def test_a_command_line_is_that_of_the_process_and_of_no_later_one() -> None:
    with named("worker\nnext") as process:
        stat = stat_of(process)
        command = not_none(read_command(stat.pid, stat.started))
        assert command.startswith(f"{sys.executable} -c ?import ctypes")
        assert command.isprintable()
        assert read_command(stat.pid, stat.started + 1) is None
    assert read_command(stat.pid, stat.started) is None


def test_a_long_command_line_is_cut() -> None:
    with named("x" * 1000) as process:
        stat = stat_of(process)
        command = read_command(stat.pid, stat.started)
    assert command is not None
    assert len(command) == MAX_COMMAND_LENGTH
    assert command.endswith("\N{HORIZONTAL ELLIPSIS}")
