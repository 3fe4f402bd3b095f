"""The children of a sentinel end with it, however it ends."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from typing import Self

import psutil
import pytest

from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.sentinel_process import SentinelProcess, eventually, gone
from tests.harness.timing import TIMEOUT_S

#: A slow host must not be the reason for which a stressor ends.
PATIENT = ("--poll", "200ms", "--unwatched-after", "5s")
QUICK = (*PATIENT, "--rearm", "300ms", "--workload", "hold")
STUBBORN = (*PATIENT, "--workload", "bad_workloads:stubborn")
#: The signals that end a sentinel.
SIGNALS = [
    signal.SIGTERM,
    pytest.param(signal.SIGINT, marks=pytest.mark.long),
    pytest.param(signal.SIGHUP, marks=pytest.mark.long),
]

pytestmark = pytest.mark.usefixtures("fake_torch")


def occupied(sentinel: SentinelProcess, gpus: range) -> list[psutil.Process]:
    """Wait until every GPU is occupied; return the stressors."""
    for gpu in gpus:
        sentinel.wait_for("stressor.ready", gpu=gpu)
    stressors = sentinel.stressors()
    assert len(stressors) == len(gpus)
    return stressors


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_sentinel_cleanly(host: GpuHost, number: signal.Signals) -> None:
    gpus = host.gpus(2)
    with host.sentinel(gpus, *QUICK) as sentinel:
        stressors = occupied(sentinel, gpus)
        assert sentinel.stop(number) == 0
        assert all(map(gone, stressors))
        assert not sentinel.errors
        stops = [event for event in sentinel.events if event["event"] == "stressor.stopped"]
        assert [stop["cause"] for stop in stops] == ["shutdown" for _ in gpus]
        assert sentinel.events[-1]["event"] == "sentinel.stopped"


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_group_of_a_newborn_child_is_not_its_crash(
    simulated: SimulatedHost, number: signal.Signals
) -> None:
    """A child is in the group of the supervisor until it starts a session of its own."""
    with simulated.sentinel(2, *QUICK) as sentinel:
        sentinel.wait_for("stressor.starting")
        os.killpg(sentinel.process.pid, number)
        assert sentinel.wait_for_exit() in {0, 128 + number}
        causes = {
            event["cause"] for event in sentinel.events if event["event"] == "stressor.stopped"
        }
        assert causes <= {"shutdown"}
        assert not {"stressor.failed", "probe.exited"} & {*sentinel.names()}


@pytest.mark.long
def test_a_storm_of_signals_ends_sentinel_once_and_cleanly(simulated: SimulatedHost) -> None:
    with simulated.sentinel(2, *QUICK) as sentinel:
        stressors = occupied(sentinel, simulated.gpus(2))
        numbers = itertools.cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        with suppress(ProcessLookupError):
            for number in itertools.islice(numbers, 300):
                sentinel.process.send_signal(number)
        assert sentinel.wait_for_exit() in {0, 130}
        assert all(map(gone, stressors))
        assert not sentinel.errors
        assert sentinel.names().count("sentinel.stopped") == 1
        assert sentinel.names()[-1] == "sentinel.stopped"


@pytest.mark.long
def test_the_second_interrupt_waits_for_no_grace(host: GpuHost) -> None:
    with host.sentinel(1, *STUBBORN, "--grace", "5m") as sentinel:
        stressors = occupied(sentinel, range(1))
        sentinel.process.send_signal(signal.SIGINT)
        sentinel.wait_for("sentinel.stopping")
        sentinel.process.send_signal(signal.SIGINT)
        assert sentinel.wait_for_exit() == 130
        assert all(map(gone, stressors))
        assert not sentinel.errors


@pytest.mark.long
def test_children_that_ignore_a_stop_are_killed_after_the_grace(host: GpuHost) -> None:
    gpus = host.gpus(3)
    with host.sentinel(gpus, *STUBBORN, "--grace", "1s") as sentinel:
        stressors = occupied(sentinel, gpus)
        assert sentinel.stop() == 0
        stopping = sentinel.wait_for("sentinel.stopping")
        assert sentinel.wait_for("sentinel.stopped")["at"] - stopping["at"] >= 1.0
        assert all(map(gone, stressors))


@pytest.mark.parametrize(
    "after", ["stressor.ready", pytest.param("stressor.starting", marks=pytest.mark.long)]
)
def test_the_children_of_a_killed_supervisor_end(host: GpuHost, after: str) -> None:
    gpus = host.gpus(2)
    with host.sentinel(gpus, *QUICK) as sentinel:
        sentinel.wait_for(after, count=len(gpus))
        family = sentinel.children()
        sentinel.process.kill()
        eventually(lambda: all(map(gone, family)))


@pytest.mark.long
@pytest.mark.parametrize("workload", ["forks", "starts_processes"])
def test_what_a_workload_started_ends_with_a_killed_supervisor(
    host: GpuHost, workload: str
) -> None:
    with host.sentinel(1, "--workload", f"bad_workloads:{workload}") as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        started: list[psutil.Process] = []

        def found() -> bool:
            """Look for the process, which the workload starts some time after Ready."""
            started[:] = [
                child for stressor in sentinel.stressors() for child in stressor.children()
            ]
            return bool(started)

        eventually(found)
        sentinel.process.kill()
        eventually(lambda: all(map(gone, started)))


@pytest.mark.long
def test_a_stopped_supervisor_frees_every_gpu_and_continues_later(host: GpuHost) -> None:
    gpus = host.gpus(2)
    with host.sentinel(gpus, *QUICK) as sentinel:
        stressors = occupied(sentinel, gpus)
        sentinel.process.send_signal(signal.SIGSTOP)
        eventually(lambda: all(map(gone, stressors)) and all(map(host.empty, gpus)))
        sentinel.process.send_signal(signal.SIGCONT)
        for gpu in gpus:
            sentinel.wait_for("stressor.ready", gpu=gpu, count=2)
        assert "stressor.failed" not in sentinel.names()
        with host.job() as newcomer:
            assert newcomer.got_memory()


@pytest.mark.long
def test_a_stopped_supervisor_frees_a_gpu_with_a_stuck_interpreter(host: GpuHost) -> None:
    stuck = ("--workload", "bad_workloads:holds_the_interpreter", "--poll", "200ms")
    with host.sentinel(1, *stuck) as sentinel:
        stressors = occupied(sentinel, range(1))
        sentinel.process.send_signal(signal.SIGSTOP)
        eventually(lambda: all(map(gone, stressors)))
        sentinel.process.send_signal(signal.SIGCONT)


class Terminal:
    """A pseudo terminal with a command on it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = b""
        self.process = subprocess.Popen(
            command,
            env=environment,
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
        self.process.wait(TIMEOUT_S)
        os.close(self._ours)


def _own_terminal() -> None:
    """Make the pseudo terminal on standard input the controlling one."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _titled(parent: int, words: str) -> psutil.Process:
    family = psutil.Process(parent).children(recursive=True)
    (found,) = [child for child in family if words in " ".join(child.cmdline())]
    return found


@pytest.mark.long
def test_ctrl_c_on_a_terminal_prints_no_traceback(host: GpuHost) -> None:
    command = [sys.executable, "-m", "sentinel", *host.flags([0]), *QUICK]
    with Terminal(command, host.environment()) as terminal:
        terminal.read_until(b"occupied")
        terminal.press(b"\x03")
        assert b"Traceback" not in terminal.read_until(b"exit code 0")
        assert terminal.process.wait(TIMEOUT_S) == 0


@pytest.mark.long
def test_ctrl_z_on_a_terminal_frees_the_gpu_and_fg_occupies_it_again(host: GpuHost) -> None:
    # A shell with job control is needed: the kernel stops no orphaned process group.
    sentinel = " ".join([sys.executable, "-m", "sentinel", *host.flags([0]), *QUICK])
    command = ["bash", "-mc", f"{sentinel}; sleep 1000"]
    with Terminal(command, host.environment()) as terminal:
        terminal.read_until(b"occupied")
        supervisor = _titled(terminal.process.pid, "sentinel: supervisor")
        stressor = _titled(terminal.process.pid, "keeps idle GPU")
        terminal.press(b"\x1a")
        eventually(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        eventually(lambda: gone(stressor))
        supervisor.send_signal(signal.SIGCONT)
        terminal.read_until(b"occupied")
        supervisor.send_signal(signal.SIGINT)
        assert b"Traceback" not in terminal.read_until(b"exit code 0")


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)],
)
def test_a_signal_before_it_is_ready_has_its_own_exit_code(
    host: GpuHost, number: signal.Signals, code: int
) -> None:
    with host.sentinel(1, *QUICK) as sentinel:
        # The probe starts first and finds the GPUs a moment later.
        eventually(sentinel.children)
        sentinel.process.send_signal(number)
        assert sentinel.wait_for_exit() in {code, 0}  # 0 if it was ready before the signal
        assert "Traceback" not in sentinel.errors


@pytest.mark.long
def test_sentinel_survives_a_closed_standard_output(host: GpuHost) -> None:
    with host.sentinel(1, *QUICK, read=False) as sentinel:
        assert sentinel.process.stdout is not None
        sentinel.process.stdout.close()
        eventually(lambda: not host.empty())
        with host.job() as newcomer:
            assert newcomer.got_memory()
        assert sentinel.stop() == 0
