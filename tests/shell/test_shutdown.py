"""However a sentinel ends, its children end too, and in time."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pytest
from sentry import PATIENCE, Sentry, eventually, gone, job, sentry, surroundings, verdict

QUICK = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold")


def occupied(one: Sentry, gpus: int) -> list[psutil.Process]:
    """Return the stressors once every GPU is occupied."""
    for index in range(gpus):
        one.wait_for("stressor.ready", index=index)
    stressors = one.stressors()
    assert len(stressors) == gpus
    return stressors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK) as one:
        stressors = occupied(one, 2)
        assert one.stop(number) == 0
        assert all(map(gone, stressors))
        assert not one.errors
        stops = [event for event in one.events if event["event"] == "stressor.stopped"]
        assert [stop["cause"] for stop in stops] == ["shutdown", "shutdown"]
        assert one.events[-1]["event"] == "sentinel.stopped"


def test_the_second_interrupt_is_immediate(tmp_path: Path) -> None:
    stubborn = ("--workload", "misbehaving:stubborn", "--grace", "5m")
    with sentry(tmp_path, "--simulate", "1", "--poll", "200ms", *stubborn) as one:
        stressors = occupied(one, 1)
        one.process.send_signal(signal.SIGINT)
        one.wait_for("sentinel.stopping")
        began = time.monotonic()
        one.process.send_signal(signal.SIGINT)
        assert one.ended() == 130
        assert time.monotonic() - began < 3
        assert all(map(gone, stressors))
        assert not one.errors


def test_children_that_do_not_end_when_asked_are_killed_after_one_shared_grace(
    tmp_path: Path,
) -> None:
    stubborn = ("--workload", "misbehaving:stubborn", "--grace", "1s")
    with sentry(tmp_path, "--simulate", "3", "--poll", "200ms", *stubborn) as one:
        stressors = occupied(one, 3)
        began = time.monotonic()
        assert one.stop() == 0
        assert 1.0 <= time.monotonic() - began < 3
        assert all(map(gone, stressors))


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK) as one:
        occupied(one, 2)
        family = one.children()
        one.process.kill()
        assert eventually(lambda: all(map(gone, family)), within=5) < 1.5


def test_a_supervisor_killed_while_its_children_are_born_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK) as one:
        one.wait_for("stressor.starting", count=2)
        family = one.children()
        one.process.kill()
        assert eventually(lambda: all(map(gone, family)), within=5) < 1.5


def test_a_stopped_supervisor_frees_every_gpu_and_goes_on_later(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK) as one:
        stressors = occupied(one, 2)
        one.process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: all(map(gone, stressors)), within=6) < 4.5
        assert one.held(0) == one.held(1) == 0
        one.process.send_signal(signal.SIGCONT)
        one.wait_for("stressor.ready", index=0, count=2)
        one.wait_for("stressor.ready", index=1, count=2)
        assert "stressor.failed" not in one.names()
        with job(tmp_path, "--gpu", "0", "--memory", "97%", "--for", "1s") as newcomer:
            assert verdict(newcomer) == "job.got"


def test_a_supervisor_that_is_stopped_over_a_stuck_interpreter_frees_the_gpu(
    tmp_path: Path,
) -> None:
    stuck = ("--workload", "misbehaving:holds_the_interpreter", "--poll", "200ms")
    with sentry(tmp_path, "--simulate", "1", *stuck) as one:
        stressors = occupied(one, 1)
        one.process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: all(map(gone, stressors)), within=6) < 4.5
        one.process.send_signal(signal.SIGCONT)


class Terminal:
    """A pseudo terminal with a command on it, as a person has it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = b""
        self.process = subprocess.Popen(
            command,
            env=surroundings(folder),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - no thread of ours runs meanwhile
        )
        os.close(theirs)

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def read_until(self, words: bytes) -> bytes:
        while words not in self._seen:
            self._seen += os.read(self._ours, 4096)
        before, _, self._seen = self._seen.partition(words)
        return before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.process.kill()
        self.process.wait(10)
        os.close(self._ours)


def _own_terminal() -> None:
    """Make the pseudo terminal on standard input the controlling one."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _titled(parent: int, words: str) -> psutil.Process:
    family = psutil.Process(parent).children(recursive=True)
    (found,) = [child for child in family if words in " ".join(child.cmdline())]
    return found


def test_ctrl_c_on_a_terminal_is_one_word_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sentinel", "--simulate", "1", *QUICK]
    with Terminal(command, tmp_path) as terminal:
        terminal.read_until(b"occupied")
        terminal.press(b"\x03")
        assert b"Traceback" not in terminal.read_until(b"exit code 0")
        assert terminal.process.wait(PATIENCE) == 0


def test_ctrl_z_on_a_terminal_frees_the_gpu_and_going_on_occupies_it_again(tmp_path: Path) -> None:
    # A shell with job control in between: the kernel stops no group without a parent outside it.
    sentinel = f"{sys.executable} -m sentinel --simulate 1 {' '.join(QUICK)}"
    with Terminal(["bash", "-mc", f"{sentinel}; sleep 1000"], tmp_path) as terminal:
        terminal.read_until(b"occupied")
        supervisor = _titled(terminal.process.pid, "sentinel: supervisor")
        stressor = _titled(terminal.process.pid, "keeps idle GPU")
        terminal.press(b"\x1a")
        eventually(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        assert eventually(lambda: gone(stressor), within=6) < 4.5
        supervisor.send_signal(signal.SIGCONT)
        terminal.read_until(b"occupied")
        supervisor.send_signal(signal.SIGINT)
        assert b"Traceback" not in terminal.read_until(b"exit code 0")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_it_is_ready_has_its_own_exit_code(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK) as one:
        # The probe's birth is the first thing that can be seen; it finds the GPUs a moment later.
        eventually(one.children)
        one.process.send_signal(number)
        assert one.ended() in {code, 0}  # 0 where it was ready after all
        assert "Traceback" not in one.errors


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK, "--for", "2s") as one:
        assert one.ended() == 0
        assert one.wait_for("sentinel.stopping")["reason"] == "its time is over"


def test_a_closed_standard_output_is_no_reason_to_die(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK, read=False) as one:
        assert one.process.stdout is not None
        one.process.stdout.close()
        eventually(lambda: one.registry.gpus() and one.held() > 0)
        with job(tmp_path, "--gpu", "0", "--memory", "97%", "--for", "1s") as newcomer:
            assert verdict(newcomer) == "job.got"
        assert one.stop() == 0
