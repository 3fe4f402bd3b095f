"""The daemon is killed at every event that it can publish, and the next one takes over.

A scenario is repeated over the same state and the same GPUs, once for each of its events, and in
``make fuzz`` twice. The daemon kills itself there, and the next one starts without a pause.
Meanwhile no GPU is held twice, and everything that a client has been told is still true in the end.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from hypothesis import settings

from sentinel.errors import SentinelError
from sentinel.host.registry import running
from sentinel.host.simulation import Registry
from sentinel.protocol.events import EVENTS
from tests.harness.crash_points import DECIDED, WRITTEN
from tests.harness.daemon_harness import QUICK, Daemon, isolated_daemon, settings_file
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.isolation import adopted_orphans
from tests.harness.sentinel_process import eventually, gone
from tests.harness.timing import TIMEOUT_S

T = TypeVar("T")

#: The GPU that the daemon occupies, and the one that is reserved from the first run on, and why.
HELD, RESERVED, REASON = 0, 1, "kept"
FLAGS = (*QUICK, "--rearm-longest", "300ms", "--grace", "1s")
#: A plan with one phase of a few seconds.
PLAN = """
spec = "sentinel-plan-v1"
name = "short"
[[phase]]
name = "steady"
workload = "bad_workloads:checks_results"
seconds = 2
steady = true
warm_up = 1
"""

#: Events that no scenario produces, each with the reason.
UNREACHABLE = {
    "sentinel.not_started": "`sentinel start` writes it, after a daemon that has ended",
    "gpu.held_elsewhere": "it needs a sentinel of another user, and comes with the start",
    "driver.unavailable": "the driver of simulated GPUs is a folder with the daemon's state",
    "burnin.waiting": "it needs two GPUs in a phase together, and one is reserved",
    "burnin.grouped": "it needs two GPUs in a phase together, and one is reserved",
    "burnin.ungrouped": "it needs two GPUs in a phase together, and one is reserved",
    "stressor.slow_start": "the stressors of the scenarios are ready in less than ten seconds",
    "gpu.fault": "no scenario has a fault of the driver; test_known_faults.py has each",
    "gpu.fault_over": "no scenario has a fault of the driver; test_known_faults.py has each",
    "stressor.unkillable": "no process survives SIGKILL that is not stuck in a real driver",
}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


class CrashedError(Exception):
    """The daemon has killed itself."""


@dataclass
class Told:
    """What clients have been told, and every later daemon must know."""

    #: The reasons of reservations that were confirmed, and not ended.
    reserved: set[str] = field(default_factory=set)
    #: Those of which the end, or the beginning, was requested and not confirmed.
    uncertain: set[str] = field(default_factory=set)
    #: The recorded events that a client has been shown.
    events: set[tuple[datetime, str, str | None]] = field(default_factory=set)


class Run:
    """One run of the daemon, as seen by a scenario.

    Args:
        daemon: The daemon's paths and client.
        told: What clients of earlier runs have been told.
        flags: Further flags of the daemon.
        environment: Further variables.
        crash_point: The event and the moment, or nothing.
    """

    def __init__(
        self,
        daemon: Daemon,
        told: Told,
        flags: tuple[str, ...],
        environment: dict[str, str],
        crash_point: str = "",
    ) -> None:
        self.daemon = daemon
        self.settings = settings_file(daemon.host.folder)
        self.host = daemon.host
        self.jobs: set[int] = set()
        self._told = told
        self._uuids = {gpu: self.host.uuid(gpu) for gpu in (HELD, RESERVED)}
        log = daemon.places.log
        self._log_begin = log.stat().st_size if log.exists() else 0
        command = [sys.executable, "-m", "tests.harness.crash_points", "run", "--daemon"]
        with (self.host.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [*command, "--simulate", "2", *FLAGS, *flags],
                env={**os.environ, **environment, "CRASH_POINT": crash_point},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def close(self) -> None:
        """Kill the daemon if it runs."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, and check at each look that no GPU is held twice.

        Raises:
            CrashedError: The daemon has crashed.
        """

        def look() -> object:
            self._check_gpus()
            return self.process.poll() is not None or condition()

        eventually(look)
        if self.process.poll() is not None:
            raise CrashedError

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request that the daemon must fulfil.

        Raises:
            CrashedError: The daemon has crashed.
        """
        try:
            return request()
        except SentinelError:
            self.wait_for_crash()
            raise CrashedError from None

    def command(self, *words: str) -> None:
        """Run a command that must succeed.

        Raises:
            CrashedError: The daemon has crashed.
        """
        output = self.daemon.run_unchecked(*words)
        if output.code != 0:
            self.wait_for_crash(output)
            raise CrashedError

    def wait_for_crash(self, *about: object) -> None:
        """Wait until the daemon has killed itself, which must be about to happen."""
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"a command failed, and the daemon runs on: {about}, {self.logged()}")

    def child(self, words: str) -> psutil.Process:
        """Wait for a child with these words in its title."""
        found: list[psutil.Process] = []

        def look() -> object:
            with suppress(psutil.Error):
                children = psutil.Process(self.process.pid).children()
                found[:] = [child for child in children if words in " ".join(child.cmdline())]
            return found

        self.until(look)
        return found[0]

    def logged(self) -> str:
        """Read the log of this run."""
        log = self.daemon.places.log
        return log.read_text()[self._log_begin :] if log.exists() else ""

    def count(self, name: str) -> int:
        """Count the events of a name in the log of this run."""
        return self.logged().count(f'"event": "{name}"')

    def wait_for(self, name: str, count: int = 1) -> None:
        """Wait until an event is in the log for the ``count``-th time."""
        self.until(lambda: self.count(name) >= count)

    def occupied(self) -> None:
        """Wait until the daemon answers and holds its GPU; check what clients were told."""
        self.until(lambda: running(self.daemon.places) and self.count("service.ready"))
        self._check_reservations()
        self.until(lambda: self.ask(lambda: self.daemon.gpu(HELD)).occupied)
        if not self._told.reserved:
            self.reserve(RESERVED, REASON)
        past = self.ask(lambda: self.daemon.client.recorded_events(limit=1000))
        recorded = {(one.at, one.name, one.gpu) for one in past}
        assert recorded >= self._told.events, "the history has lost events that it had shown"
        self._told.events = recorded

    def reserve(self, gpu: int, reason: str) -> None:
        """Reserve a GPU for an hour, under a reason of its own."""
        self._told.uncertain.add(reason)
        self.command("reserve", "--gpus", str(gpu), "--for", "1h", "--reason", reason)
        self._told.uncertain.remove(reason)
        self._told.reserved.add(reason)

    def wait_in_queue(self, gpu: int) -> None:
        """Wait for a reserved GPU for a moment."""
        with suppress(SentinelError):
            self.daemon.client.reserve([gpu], seconds=60, wait=0.1)
        self.wait_for("reservation.left")

    def cancel_reservation(self, reason: str) -> None:
        """End a reservation."""
        found = self.ask(self.daemon.client.reservations)
        (one,) = [one.id for one in found if one.reason == reason]
        self._told.reserved.discard(reason)
        self._told.uncertain.add(reason)
        self.command("reserve", "--cancel", one)
        self._told.uncertain.remove(reason)

    def _check_reservations(self) -> None:
        reasons = {one.reason for one in self.ask(self.daemon.client.reservations)}
        assert reasons - self._told.uncertain == self._told.reserved
        for reason in reasons & self._told.uncertain:
            self.cancel_reservation(reason)
        self._told.uncertain.clear()

    def _check_gpus(self) -> None:
        for gpu, uuid in self._uuids.items():
            members = self._members(uuid)
            if len(members) > 1:  # a list is not of one moment: the first may have ended meanwhile
                members &= self._members(uuid)
            assert len(members) <= 1, f"GPU {gpu} is held by {members}"
            if gpu == RESERVED and REASON in self._told.reserved:
                assert not members, "a reserved GPU is occupied"

    def _members(self, uuid: str) -> set[int]:
        """List the processes on a GPU without the jobs of the scenario."""
        return {process.pid for process in self.host.registry.processes(uuid)} - self.jobs


@dataclass(frozen=True)
class Scenario:
    """Steps that publish events, and the environment of the daemon."""

    events: tuple[str, ...]
    steps: Callable[[Run], None]
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    #: The settings file.
    settings: str = ""


def start(run: Run) -> None:
    run.occupied()
    run.wait_for("gpu.status")


def yield_to_a_job(run: Run) -> None:
    run.occupied()
    with run.host.job(HELD, stay=0.3) as job:
        run.jobs.add(job.pid)
        run.wait_for("gpu.yielding")
        assert job.got_memory()
        job.wait_for_exit()
    run.wait_for("stressor.ready", 2)


def obey_commands(run: Run) -> None:
    run.occupied()
    run.command("pause", "0")
    run.command("resume", "0")
    run.daemon.run_unchecked("reserve", "--cancel", "unknown")
    run.wait_for("command.rejected")
    run.wait_in_queue(RESERVED)
    run.reserve(HELD, "ends")
    run.cancel_reservation("ends")
    run.ask(lambda: run.daemon.client.allocate("some", "1GiB"))
    run.ask(lambda: run.daemon.client.cancel_allocation("some"))
    run.command("reload")


def use_a_session(run: Run) -> None:
    """Start and end a session, and end the one that an earlier run has left."""
    run.occupied()
    left = [one.name for one in run.ask(run.daemon.client.sessions)]
    assert left in ([], ["train"])
    for name in left:
        run.command("session", "stop", name)
    run.command("session", "start", "train", "--gpus", str(HELD), "--chunk", "256MiB")
    assert run.ask(lambda: run.daemon.gpu(HELD)).session == "train"
    run.command("session", "stop", "train")


def burn_in(run: Run) -> None:
    """Run a plan on the held GPU, which a pause interrupts."""
    run.occupied()
    run.ask(lambda: run.daemon.client.start_burnin(PLAN, [HELD]))
    run.wait_for("burnin.warm")
    run.until(lambda: (one := run.ask(lambda: run.daemon.gpu(HELD)).burnin) and one.done_s > 0)
    run.command("pause", str(HELD))
    run.command("resume", str(HELD))
    run.wait_for("burnin.run_ended")


def release_the_driver(run: Run) -> None:
    run.occupied()
    run.command("pause", "--release")
    run.wait_for("driver.released")
    run.command("resume")
    run.wait_for("probe.ready")


def judge_health(run: Run) -> None:
    run.occupied()
    run.host.registry.warm(run.host.uuid(HELD), 95)
    run.wait_for("gpu.overheat")


def throw_an_xid(run: Run) -> None:
    run.occupied()
    run.host.registry.throw_xids(run.host.uuid(HELD), 48)
    run.wait_for("gpu.xid")


def lose_sight(run: Run) -> None:
    """Stop all that reads the memory of the held GPU."""
    run.occupied()
    stressor = run.ask(lambda: run.daemon.gpu(HELD)).pid
    assert stressor is not None
    run.child("sentinel: probe").suspend()
    psutil.Process(stressor).suspend()
    run.wait_for("gpu.unwatched")


def change_a_rule_and_lose_a_gpu(run: Run) -> None:
    run.occupied()
    run.settings.write_text("[limits]\nleave_idle = 2\n")
    run.command("reload")
    run.wait_for("stressor.stopped")
    run.host.registry.inject(run.host.uuid(HELD), "lost")
    run.wait_for("gpu.unknown")


def replace_processes(run: Run) -> None:
    run.occupied()
    run.settings.write_text('memory = "lots"\n')
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("service.warning")
    run.child("sentinel: api").kill()
    run.wait_for("service.failed")
    run.host.registry.inject(run.host.uuid(HELD), "crash")
    run.wait_for("probe.exited")


def hang_in_the_driver(run: Run) -> None:
    run.occupied()
    run.host.registry.inject(run.host.uuid(HELD), "hang")
    run.wait_for("probe.hung")


def be_stopped(run: Run) -> None:
    run.occupied()
    run.process.send_signal(signal.SIGSTOP)
    eventually(lambda: not run.daemon.pids_on_gpus())  # the lease has expired
    run.process.send_signal(signal.SIGCONT)
    run.wait_for("sentinel.stalled")


def fail_for_ever(run: Run) -> None:
    run.wait_for("stressor.fatal")


def find_a_fault(run: Run) -> None:
    run.wait_for("stressor.failed")


def count_an_error(run: Run) -> None:
    """Find wrong results, and acknowledge them."""
    run.wait_for("stressor.mismatch")
    run.until(lambda: (one := run.ask(lambda: run.daemon.gpu(HELD)).verified) and one.wrong > 0)
    run.command("health", "--acknowledge", str(HELD), "--reason", "the riser was replaced")


def leak(run: Run) -> None:
    run.occupied()
    run.wait_for("gpu.status", 4)  # the baseline of the stressor's memory is known
    run.host.registry.inject(run.host.uuid(HELD), "unattributed")
    run.wait_for("gpu.cleanup_started")


def lose_the_standby(run: Run) -> None:
    run.occupied()
    run.child("standby").kill()
    run.wait_for("standby.failed")


def overflow_the_log(run: Run) -> None:
    run.wait_for("log.dropped")


def shut_down(run: Run) -> None:
    run.occupied()
    run.process.send_signal(signal.SIGTERM)
    run.wait_for("sentinel.stopped")


EXPLAINED = ("--explain", "--status-every", "1s", "--util", "50%")
#: The scenarios that are repeated over one state each.
SCENARIOS: Mapping[str, tuple[Scenario, ...]] = {
    "start": (
        Scenario(
            (
                "sentinel.started",
                "config.unused",
                "service.ready",
                "gpu.verdict",
                "gpu.checked",
                "stressor.starting",
            ),
            start,
            flags=(*EXPLAINED, "--log-level", "debug"),
            settings='[gpu."9"]\npower = "300W"\n',
        ),
    ),
    "ready": (
        Scenario(
            ("gpu.identity", "stressor.ready", "stressor.pace", "gpu.status"),
            start,
            flags=EXPLAINED,
        ),
    ),
    "yield": (
        Scenario(("gpu.yielding", "gpu.handed_over", "gpu.busy", "gpu.idle"), yield_to_a_job),
    ),
    "commands": (
        Scenario(
            (
                *("gpu.paused", "gpu.resumed", "command.rejected"),
                *("gpu.reserved", "gpu.unreserved", "reservation.queued", "reservation.left"),
            ),
            obey_commands,
        ),
    ),
    "more commands": (
        Scenario(
            (
                "memory.allocated",
                "memory.deallocated",
                "sentinel.configured",
            ),
            obey_commands,
        ),
    ),
    "sessions": (Scenario(("session.started", "session.ended"), use_a_session),),
    "burn-in": (
        Scenario(
            (
                *("burnin.run_started", "burnin.phase_started", "burnin.progress", "burnin.warm"),
                *("burnin.interrupted", "burnin.phase_ended", "burnin.ended", "burnin.run_ended"),
                "burnin.measured",  # the exits of stressors, and how long XIDs were watched
            ),
            burn_in,
            flags=("--status-every", "1s"),
        ),
    ),
    "driver": (
        Scenario(
            (
                "driver.release_requested",
                "driver.released",
                "driver.acquire_requested",
                "probe.ready",
            ),
            release_the_driver,
        ),
    ),
    "health": (
        Scenario(("gpu.health_changed", "gpu.overheat"), judge_health),
        Scenario(("gpu.xid",), throw_an_xid),
        # A reservation releases a stressor, too: by now, the one of the first run exists.
        Scenario(("gpu.unknown", "gpu.released", "stressor.stopped"), change_a_rule_and_lose_a_gpu),
    ),
    "processes": (
        Scenario(("service.warning", "service.failed", "probe.exited"), replace_processes),
        Scenario(("probe.hung",), hang_in_the_driver),
    ),
    "failures": (
        Scenario(
            ("stressor.fatal",),
            fail_for_ever,
            flags=("--workload", "bad_workloads:refuses_its_gpu"),
        ),
        Scenario(
            ("stressor.finding", "stressor.failed"),
            find_a_fault,
            flags=("--workload", "bad_workloads:finds_and_dies"),
        ),
        Scenario(
            ("stressor.mismatch", "gpu.results_acknowledged"),
            count_an_error,
            flags=("--workload", "bad_workloads:faulty"),
        ),
    ),
    "leaks": (
        Scenario(
            ("gpu.memory_leaked", "gpu.cleanup_started"), leak, flags=("--status-every", "1s")
        ),
        Scenario(("gpu.unwatched",), lose_sight, flags=("--unwatched-after", "300ms")),
    ),
    "end": (
        Scenario(("sentinel.stalled",), be_stopped),
        Scenario(("standby.failed",), lose_the_standby, flags=("--standby", "on")),
        Scenario(
            ("log.dropped",),
            overflow_the_log,
            flags=("--status-every", "1s"),
            environment={"LOG_QUEUE": "1"},
        ),
        Scenario(("sentinel.stopping", "sentinel.stopped"), shut_down),
    ),
}


@pytest.fixture
def daemon(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Provide the paths of a daemon, whose orphans become children of this process."""
    Registry.create(simulated.folder, 2)
    with adopted_orphans(), isolated_daemon(simulated, monkeypatch) as daemon:
        yield daemon


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_next_daemon_takes_over_after_a_crash_at_any_event(daemon: Daemon, name: str) -> None:
    told = Told()
    others = {*living_children()}  # of harnesses that serve several tests
    with ExitStack() as stack:
        for scenario in SCENARIOS[name]:
            for event, moment in crash_points(scenario):
                crash(daemon, told, scenario, event, moment, stack)
        remove_faults(daemon.host)
        settings_file(daemon.host.folder).write_text("")
        last = Run(daemon, told, (), {})
        stack.callback(last.close)
        last.occupied()
        assert told.reserved == {REASON}
        daemon.run("stop")
        assert last.process.wait(TIMEOUT_S) == 0
        eventually(lambda: {*living_children()} <= others)
        check_nothing_is_left(daemon)
        for line in daemon.places.log.read_text().splitlines():
            json.loads(line)


def crash_points(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """List the events of a scenario with one of the two moments each, or with both to fuzz."""
    both = settings.get_current_profile_name() == "fuzz"
    for number, event in enumerate(scenario.events):
        for moment in (DECIDED, WRITTEN):
            if both or (number % 2 == 0) == (moment == DECIDED):
                yield event, moment


def crash(
    daemon: Daemon, told: Told, scenario: Scenario, event: str, moment: str, stack: ExitStack
) -> None:
    """Run a scenario with a daemon that kills itself at an event."""
    remove_faults(daemon.host)
    settings_file(daemon.host.folder).write_text(scenario.settings)
    run = Run(daemon, told, scenario.flags, scenario.environment, f"{event} {moment}")
    stack.callback(run.close)
    with suppress(CrashedError):
        scenario.steps(run)
        run.wait_for(event)  # it may come after the response to the command that causes it
    assert run.process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert (run.count(event) > 0) == (moment == WRITTEN)
    # A very slow host, and no scenario, makes a start last that long.
    assert not any(map(run.count, UNREACHABLE.keys() - {"stressor.slow_start"}))


def remove_faults(host: SimulatedHost) -> None:
    """Remove what a scenario has injected."""
    host.registry.inject(host.uuid(HELD), None)
    host.registry.warm(host.uuid(HELD), None)


def living_children() -> list[psutil.Process]:
    """Reap the orphans that have ended; list the living descendants of this process."""
    children = psutil.Process().children(recursive=True)
    living = [child for child in children if not gone(child)]
    for one in {*children} - {*living}:
        with suppress(ChildProcessError):
            os.waitpid(one.pid, os.WNOHANG)
    return living


def check_nothing_is_left(daemon: Daemon) -> None:
    """Check that no memory, socket or lock is left."""
    host = daemon.host
    assert all(host.empty(gpu) for gpu in (HELD, RESERVED))
    assert not daemon.places.socket.exists()
    for path in (daemon.places.record, *Path(host.folder, "locks").iterdir()):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_every_event_has_a_crash_point() -> None:
    scenarios = itertools.chain.from_iterable(SCENARIOS.values())
    covered = [event for scenario in scenarios for event in scenario.events]
    assert sorted([*covered, *UNREACHABLE]) == sorted(EVENTS)
