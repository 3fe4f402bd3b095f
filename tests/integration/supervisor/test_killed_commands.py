"""A kill during a command leaves the state before it or after it; a reused PID inherits nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from sentinel.errors import SentinelError
from sentinel.host.timed_file import SESSIONS, Clocks
from tests.harness.daemon_harness import Daemon, read_line, write_line
from tests.harness.given_settings import shown
from tests.harness.gpu_environment import SimulatedHost, named
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: The commands of a client, as it sends them.
COMMANDS = {
    "allocate": 'client.allocate("mine", "1GiB", gpu=0)',
    "reserve": "client.reserve([0], seconds=600)",
    "pause": "client.pause([0], seconds=600)",
    "session": 'client.start_session("train", [0], {"memory.keep_free": "1GiB"})',
    "configure": 'client.set({"grace": "7s", "limits.leave_idle": "1"})',
}
CLIENT = """
import sentinel
from sentinel.errors import SentinelError
client = sentinel.connect()
client.status()
print("ready", flush=True)
input()
try:
    {command}
except SentinelError:
    pass
print("done", flush=True)
input()
"""
#: The events that show that the supervisor has accepted a command.
EVENTS = {
    "allocate": "memory.allocated",
    "reserve": "gpu.reserved",
    "pause": "gpu.paused",
    "session": "session.started",
    "configure": "sentinel.configured",
}
#: Seconds between a command and the kill; a command takes about 10 ms, and with a release 100 ms.
DELAYS_S = (0.002, 0.01, 0.06)
#: The file that sets the next PID.
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
CHOOSES_PIDS = pytest.mark.skipif(
    not os.access(LAST_PID, os.W_OK), reason="needs root, and a kernel where PIDs can be chosen"
)

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


@contextmanager
def client_of(command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a client that sends a command after a line, and exits after another."""
    with piped_program(
        sys.executable, "-c", CLIENT.format(command=COMMANDS[command]), stderr=subprocess.PIPE
    ) as process:
        try:
            assert read_line(process) == "ready"
            yield process
        finally:
            process.kill()


def answers(daemon: Daemon) -> bool:
    """Check that the daemon answers, maybe by a new API process."""
    with contextlib.suppress(SentinelError):
        return daemon.client.health()
    return False


def changed(daemon: Daemon) -> set[bool]:
    """Check whether each setting of the command is shown with the new value, and is in force."""
    found = shown(daemon.client.request("GET", "/v1/settings"))
    leaves = "limits.leave_idle" in str(daemon.gpu().reason)
    return {found["grace"][0] == "7s", found["limits.leave_idle"][0] == "1", leaves}


def wait_until_accepted(daemon: Daemon, command: str, before: int) -> None:
    """Wait until a command's event was written once more than ``before``."""
    eventually(lambda: written(daemon, command) > before)


def written(daemon: Daemon, command: str) -> int:
    """Count the events of a command in the log."""
    return daemon.places.log.read_text().count(f'"event": "{EVENTS[command]}"')


def reserved_on_disk(daemon: Daemon) -> list[str]:
    """List the reservations that another daemon would restore."""
    file = daemon.places.state / "reservations.json"
    if not file.exists():
        return []
    return [one["id"] for one in json.loads(file.read_text())["reservations"]]


def sessions_on_disk(daemon: Daemon) -> list[str]:
    """List the sessions that another daemon would restore."""
    return [
        one.name for one in SESSIONS.load(daemon.places.state / SESSIONS.name, Clocks.read())[0]
    ]


def is_whole(daemon: Daemon, command: str, client: subprocess.Popen[str]) -> bool:
    """Check that the state is one from before the command, or one from after it."""
    status = daemon.client.status()
    match command:
        case "allocate":  # of a living client; that of a dead one ends
            holders = [allocation.holder.pid for allocation in status.allocations]
            return holders in ([], [client.pid] if client.poll() is None else [])
        case "reserve":
            known = [
                (reservation.id, reservation.holder.uid) for reservation in status.reservations
            ]
            on_disk = [(id_, os.getuid()) for id_ in reserved_on_disk(daemon)]
            return known == on_disk and (status.gpus[0].admin == "RESERVED") is bool(known)
        case "session":
            names = [session.name for session in status.sessions]
            return names == sessions_on_disk(daemon) == ([daemon.gpu().session] if names else [])
        case "pause":
            gpu = status.gpus[0]
            return gpu.admin == "ENABLED" or (gpu.admin == "PAUSED" and gpu.until_s is not None)
        case _:
            return len(changed(daemon)) == 1


def undo(daemon: Daemon, command: str) -> None:
    """Return to the state before the command."""
    match command:
        case "allocate":
            eventually(lambda: daemon.client.allocations() == ())
        case "reserve":
            daemon.run("reserve", "--cancel", "all")
        case "pause":
            daemon.run("resume")
        case "session":
            daemon.run_unchecked("session", "stop", "train")
            assert daemon.client.sessions() == ()
        case _:
            daemon.client.set({"grace": None, "limits.leave_idle": None})
            eventually(lambda: changed(daemon) == {False})
    daemon.wait_until_occupied(0)


def test_a_command_is_done_or_not_done_whichever_process_is_killed(daemon: Daemon) -> None:
    daemon.start(1, "--memory", "50%")
    daemon.wait_until_occupied(0)
    for number, command in enumerate(sorted(COMMANDS) * 2):
        with client_of(command) as client:
            of_client, before = number < len(COMMANDS), written(daemon, command)
            victim = client.pid if of_client else daemon.child("api, answers").pid
            write_line(client, "")
            wait_until_accepted(daemon, command, before)
            os.kill(victim, signal.SIGKILL)
            if of_client:
                client.wait(TIMEOUT_S)
            else:
                assert read_line(client) == "done"  # it learns of the loss, and does not hang
            eventually(lambda: answers(daemon))
            eventually(partial(is_whole, daemon, command, client))
            if command == "configure":  # which waits for nothing after its event
                eventually(lambda: changed(daemon) == {True})
        undo(daemon, command)


def test_a_daemon_that_is_killed_during_a_command_leaves_nothing_half_done(daemon: Daemon) -> None:
    daemon.start(1, "--memory", "50%")
    daemon.wait_until_occupied(0)
    for number, command in enumerate(sorted(COMMANDS)):
        with client_of(command) as client:
            write_line(client, "")
            time.sleep(DELAYS_S[number % len(DELAYS_S)])
            daemon.kill()  # and no memory is held
            assert read_line(client) == "done"
            daemon.start(1, "--memory", "50%")
            eventually(partial(is_whole, daemon, command, client))
            status = daemon.client.status()
            assert status.allocations == ()
            assert status.gpus[0].admin in {"ENABLED", "RESERVED"}
            assert changed(daemon) == {False}
        undo(daemon, command)


@CHOOSES_PIDS
def test_a_process_with_the_pid_of_a_dead_holder_inherits_nothing(daemon: Daemon) -> None:
    host = daemon.host
    daemon.start(2, "--memory", "50%")
    daemon.wait_until_occupied(0, 1)
    api = daemon.child("api, answers")
    with client_of("allocate") as holder:
        write_line(holder, "")
        assert read_line(holder) == "done"
        assert [allocation.holder.pid for allocation in daemon.client.allocations()] == [holder.pid]
        api.suspend()  # so that the PID is in use again before the end can be seen
        try:
            holder.kill()
            holder.wait(TIMEOUT_S)
            within = host.command(0, 0.01, TIMEOUT_S)  # of what the holder was allocated
            newcomer = with_pid(holder.pid, lambda: started(within, host))
            log = daemon.places.log  # an allocated process would not end a stressor
            eventually(lambda: '"event": "gpu.yielding"' in log.read_text())
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # replaced on a very slow host
                api.resume()
        try:
            assert json.loads(not_none(newcomer.stdout).readline())["event"] == "job.got"
            eventually(lambda: daemon.client.allocations() == ())
            eventually(lambda: [p.pid for p in daemon.gpu(0).processes] == [newcomer.pid])
        finally:
            newcomer.kill()
            newcomer.communicate()

    with daemon.start_command("exec", "--count", "1", "--", "sleep", "600") as bound:
        eventually(lambda: reserved_on_disk(daemon))
        assert [reservation.holder.pid for reservation in daemon.client.reservations()] == [
            bound.pid
        ]
        daemon.kill()
        (kept,) = reserved_on_disk(daemon)
        bound.kill()
        bound.wait(TIMEOUT_S)
        with with_pid(bound.pid, lambda: subprocess.Popen(["sleep", "600"], text=True)) as other:
            try:
                daemon.start(2)
                ended = {'"event": "gpu.unreserved"', f'"id": "{kept}"'}
                eventually(
                    lambda: any(
                        all(part in line for part in ended) for line in log.read_text().splitlines()
                    )
                )
                daemon.wait_until_occupied(0, 1)
            finally:
                other.kill()


@CHOOSES_PIDS
@pytest.mark.parametrize("was", ["own", "ignored"])
def test_a_process_with_the_pid_of_one_that_ended_between_two_readings_is_a_newcomer(
    daemon: Daemon, was: str
) -> None:
    host = daemon.host
    daemon.start(1, "--memory", "50%", "--ignore", "name=sparing")
    with ExitStack() as stack:
        if was == "ignored":
            old = stack.enter_context(host.job(share=0.01, stay=TIMEOUT_S, within=named("sparing")))
            assert old.got_memory()
            eventually(lambda: {old.pid, daemon.gpu().pid} == set(daemon.pids_on_gpus()))
            eventually(lambda: daemon.gpu().occupied)
        else:
            daemon.wait_until_occupied(0)
        pid = not_none(old.pid if was == "ignored" else daemon.gpu().pid)
        probe = daemon.child("probe, reads")
        probe.suspend()
        try:
            os.kill(pid, signal.SIGKILL)
            if was == "ignored":
                old.wait_for_exit()
            eventually(lambda: not psutil.pid_exists(pid))
            newcomer = with_pid(pid, lambda: started(host.command(0, 0.01, TIMEOUT_S), host))
            stack.callback(newcomer.communicate)
            stack.callback(newcomer.kill)
            assert json.loads(not_none(newcomer.stdout).readline())["event"] == "job.got"
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # replaced
                probe.resume()
        eventually(lambda: [process.pid for process in daemon.gpu().processes] == [pid])
        eventually(lambda: daemon.gpu().occupancy == "BUSY" and daemon.pids_on_gpus() == [pid])
        assert newcomer.poll() is None
    daemon.wait_until_occupied(0)


def started(command: list[str], host: SimulatedHost) -> subprocess.Popen[str]:
    """Start a foreign job."""
    return piped_program(*command, env=host.environment(), stdin=subprocess.DEVNULL)


def with_pid(pid: int, start: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Start a process with this PID; on a busy host, other processes take it first at times."""
    found: list[subprocess.Popen[str]] = []

    def taken() -> bool:
        LAST_PID.write_text(str(pid - 1))
        process = start()
        if process.pid == pid:
            found.append(process)
            return True
        process.kill()
        process.communicate()
        return False

    eventually(taken)
    return found[0]
