"""Fakes for tests of code that drives a supervisor: a world with GPUs, children and a clock.

Nothing here starts a process or waits. Time passes when the supervisor waits, and a test changes
the world between ticks: foreign processes start and exit, children fail, the driver breaks.

    world = World(gpus=2)
    supervisor = world.supervisor(Config())
    world.run(supervisor, until=lambda: world.events("stressor.ready"))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.decide import Decision, first_state
from sentinel.core.identity import OwnChild
from sentinel.core.observation import Call, ChildExit, ChildFacts, ProbeFacts, SpareFacts
from sentinel.core.state import State
from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.probe import Inventory, Watch
from sentinel.supervisor.loop import Supervisor
from sentinel.supervisor.ports import Parts
from sentinel.testing.api import FakeApi
from sentinel.testing.gpus import (
    GIB,
    IMPORT_TIME,
    TEARDOWN_TIME,
    FakeChild,
    FakeGpu,
    fake_gpu,
    live,
)

__all__ = [
    "GIB",
    "TEARDOWN_TIME",
    "FakeApi",
    "FakeChild",
    "FakeClock",
    "FakeGpu",
    "FakeInterrupts",
    "FakeProbe",
    "FakeSpawner",
    "World",
]

SIGKILL = 9
#: More ticks than this without any time passing are a loop that never waits.
MAX_TICKS_AT_ONCE = 50
#: A run takes coarse steps after so long, in seconds: by then nothing that a test did is new.
FINE_S = 1.0
#: The maximum coarse step, in seconds; below the shortest phase of a child's start.
COARSE_TICK_S = 0.4


class World:
    """Everything outside a supervisor: time, GPUs, children and published events.

    Args:
        gpus: The number of GPUs.
        tick: The maximum step of time, in seconds.
        hidden: Why foreign processes may be missing from the lists, or None.
    """

    def __init__(self, gpus: int = 1, tick: float = 0.025, hidden: str | None = None) -> None:
        self.now = 1000.0
        self.wall = datetime(2026, 1, 7, 12, 0)  # noqa: DTZ001 - a Wednesday, local time
        self.tick = tick
        self.hidden = hidden
        self._coarse = False
        self.utilization = False
        # Seeded, so that failures can be reproduced.
        self.random_value: Callable[[], float] = random.Random(1).random  # noqa: S311 - no secret
        self.gpus = {f"GPU-{index}": FakeGpu(gpu=fake_gpu(index)) for index in range(gpus)}
        self.published: list[Event] = []
        self.next_pid = 100
        self.probe = FakeProbe(self)
        self.spawner = FakeSpawner(self)
        self.interrupts = FakeInterrupts()
        self.api = FakeApi(lambda: self.now)

    def supervisor(
        self, config: Config, *, with_api: bool = False, daemon: bool = False
    ) -> Supervisor:
        """Build a supervisor of all GPUs of this world.

        Args:
            config: Its configuration.
            with_api: Whether it has an API process.
            daemon: Whether it can only be controlled through that.
        """
        with_api = with_api or daemon
        gpus = tuple(fake.gpu for fake in self.gpus.values())
        self.utilization = config.idle_utilization is not None
        return Supervisor(
            state=replace(
                first_state(gpus, self.now, config, hidden=self.hidden, with_api=with_api),
                api_required=daemon,
            ),
            config=config,
            parts=Parts(
                probe=self.probe,
                spawner=self.spawner,
                interrupts=self.interrupts,
                clock=FakeClock(self),
                api=self.api if with_api else None,
            ),
            publish=self._publish,
        )

    def run(
        self, supervisor: Supervisor, until: Callable[[], object], within: float = 60.0
    ) -> list[Decision]:
        """Tick until a condition holds; return the decisions.

        Raises:
            AssertionError: It does not hold within that many seconds of the world's time.
        """
        begin = self.now
        decisions = []
        stuck = 0
        try:
            while not until():
                before = self.now
                if before > begin + within:
                    message = f"did not happen within {within} s; events: {self.names()}"
                    raise AssertionError(message)
                self._coarse = before >= begin + FINE_S
                decisions.append(supervisor.turn())
                stuck = 0 if self.now > before else stuck + 1
                assert stuck < MAX_TICKS_AT_ONCE, "ticks forever without waiting"
        finally:
            self._coarse = False
        return decisions

    def run_for(self, supervisor: Supervisor, seconds: float) -> list[Decision]:
        """Tick for ``seconds``; return the decisions."""
        end = self.now + seconds
        return self.run(supervisor, lambda: self.now >= end, within=seconds + 1)

    def step(self, timeout: float) -> None:
        """Let time pass for one wait of the supervisor: for ``timeout`` seconds or one tick."""
        tick = max(self.tick, COARSE_TICK_S) if self._coarse else self.tick
        self.pass_time(min(timeout, tick))

    def pass_time(self, seconds: float) -> None:
        """Advance time and the children at once."""
        self.now += seconds
        self.wall += timedelta(seconds=seconds)
        for fake in self.gpus.values():
            if fake.child is not None:
                live(fake, fake.child, self.now)

    def newcomer(self, index: int = 0, memory: int = GIB) -> GpuProcess:
        """Start a foreign process on a GPU; it is listed at once."""
        self.next_pid += 1
        process = GpuProcess(
            pid=self.next_pid, memory=memory, started=self.next_pid, name="python", user="alice"
        )
        self.at(index).foreign.append(process)
        return process

    def at(self, index: int) -> FakeGpu:
        """Return the GPU with this index."""
        return self.gpus[f"GPU-{index}"]

    def events(self, name: str) -> list[Event]:
        """Return the published events of one name."""
        return [event for event in self.published if event.name == name]

    def names(self) -> list[str]:
        """Return the names of all published events, in order."""
        return [event.name for event in self.published]

    def _publish(self, _: State, events: tuple[Event, ...]) -> None:
        self.published += events


class FakeClock:
    """A clock that advances when the supervisor waits, by at most one tick of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """Return the world's time in seconds."""
        return self._world.now

    def local(self) -> datetime:
        """Return the world's local time."""
        return self._world.wall

    def random_value(self) -> float:
        """Return the next random number."""
        return self._world.random_value()

    def wait(self, files: Sequence[int], timeout: float) -> bool:
        """Advance time by at most one tick, so that no change in the world is missed."""
        del files
        self._world.step(timeout)
        return True


class FakeInterrupts:
    """Shutdown and reload requests of a test."""

    def __init__(self) -> None:
        self.pending: tuple[str | None, bool] = (None, False)
        self.reload_pending = False

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> tuple[str | None, bool]:
        """Return the pending shutdown request, once."""
        pending, self.pending = self.pending, (None, False)
        return pending

    def reload_requested(self) -> bool:
        """Check for a pending reload request, once."""
        wanted, self.reload_pending = self.reload_pending, False
        return wanted


class FakeProbe:
    """Reads the world's GPUs at every tick; can hang and exit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.generation = 0
        self.alive = False
        self.skip: tuple[str, ...] = ()
        self.watched: Watch | None = None
        self.hung: Call | None = None
        self.exits_with: int | None = None
        self._skipped: set[str] = set()
        self._inventory_due = False
        #: The process is stopped: it reads and sends nothing.
        self.stopped = False
        self._read_at: dict[str, float] = {}
        #: A spare probe waits.
        self.spare = False

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Start a new probe; a hang ends with the old one."""
        assert not self.alive, "a second probe beside a living one"
        self.generation, self.alive, self.skip, self.spare = generation, True, skip, False
        self._skipped = set(skip)  # until a watch includes them
        self.hung, self.exits_with, self._inventory_due = None, None, True
        self.stopped = False

    def kill(self, generation: int) -> None:
        """End the probe."""
        assert generation == self.generation
        self.alive = False

    def start_spare(self) -> None:
        """Start a spare probe, which is ready at once."""
        assert not self.spare, "a second spare probe"
        self.spare = True

    def kill_spare(self) -> None:
        """End the spare probe."""
        self.spare = False

    def collect_spare(self) -> SpareFacts | None:
        """Return that the spare probe is ready, or None without one."""
        return SpareFacts(ready=True) if self.spare else None

    def read_at(self, uuid: str) -> float:
        """Return when a GPU was last read: now, unless the probe is dead, hangs or leaves it."""
        left_out = uuid in self._skipped or self._world.gpus[uuid].silent
        hangs = self.hung is not None and self.hung.uuid in {uuid, None}
        if not self.alive or self.stopped or hangs or left_out:
            return self._read_at.get(uuid, 0.0)
        self._read_at[uuid] = self._world.now
        return self._world.now

    def gone(self) -> bool:
        """Check that no probe is alive."""
        return not self.alive and not self.spare

    def watch(self, what: Watch) -> None:
        """Store what to read; skipped GPUs may be included again."""
        self.watched = what
        self._skipped.difference_update(what.gpus)

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Return the facts and a new reading of every watched GPU."""
        if not self.alive:
            return None, {}
        facts = ProbeFacts(generation=self.generation)
        if self.exits_with is not None:
            self.alive = False
            calls = () if self.hung is None else (self.hung,)
            exit_ = ChildExit(code=self.exits_with, at=self._world.now)
            return replace(facts, exit=exit_, calls=calls), {}
        if self.stopped:
            return facts, {}
        if self._inventory_due:
            self._inventory_due = False
            gpus = tuple(fake.gpu for fake in self._world.gpus.values())
            facts = replace(facts, inventory=Inventory(gpus=gpus, driver="fake"))
        if self.hung is not None:
            return replace(facts, calls=(self.hung,)), {}
        readings = {
            uuid: self._read(fake)
            for uuid, fake in self._world.gpus.items()
            if not fake.silent and uuid not in self._skipped
        }
        return facts, readings

    def _read(self, fake: FakeGpu) -> Reading:
        at = self._world.now
        if fake.fault is not None:
            return Reading(uuid=fake.gpu.uuid, at=at, fault=fake.fault)
        processes = list(fake.foreign)
        child = fake.child
        if child is not None and child.memory and fake.child_pid_offset is not None:
            pid, started = (
                child.pid + fake.child_pid_offset,
                None if fake.child_pid_offset else child.pid,
            )
            processes.append(GpuProcess(pid=pid, memory=child.memory, started=started))
        total = fake.gpu.memory_total
        return Reading(
            uuid=fake.gpu.uuid,
            at=at,
            memory=Memory(total=total, used=fake.used, free=total - fake.used),
            processes=tuple(processes),
            omitted_processes=fake.omitted_processes,
            processes_at=at,
            exclusive=False,
            mig=False,
            display=fake.display,
            utilization=fake.utilization if self._load_wanted(fake) else None,
            computing=fake.computing,
            power=fake.power,
            temperature=fake.temperature,
            telemetry=fake.telemetry,
            load_at=at,
        )

    def _load_wanted(self, fake: FakeGpu) -> bool:
        """Check whether the utilisation is read, as the real probe decides."""
        wanted = self.watched.load if self.watched is not None else ()
        return self._world.utilization or fake.gpu.uuid in wanted


class FakeSpawner:
    """Owns the world's children; checks that only living own children are signalled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.started: list[tuple[str, float]] = []
        self.killed: list[tuple[str, float]] = []
        self.stop_requests: list[tuple[str, float]] = []
        self.acknowledged: list[tuple[str, int, int]] = []
        self.paced: list[tuple[str, int, float]] = []
        self.cleared: list[tuple[str, float]] = []
        #: The duration of the last lease of each child, in seconds.
        self.leases: dict[str, float] = {}
        self._new: dict[str, ChildFacts] = {}

    def start(
        self, gpu: Gpu, generation: int, *, clearing: bool = False, committed: int = 0
    ) -> None:
        """Start a child; one for clearing takes leaked memory and load with it."""
        fake = self._world.gpus[gpu.uuid]
        assert fake.child is None, "a second child on one GPU"
        self._world.next_pid += 1
        pid = self._world.next_pid
        fake.child = FakeChild(
            generation=generation, pid=pid, started_at=self._world.now, committed=committed
        )
        if clearing:
            fake.child.unresponsive, fake.child.dies_at = True, self._world.now + IMPORT_TIME
            self.cleared.append((gpu.uuid, self._world.now))
            if fake.can_be_cleared:
                fake.unlisted, fake.utilization = 0, 0.0
        identity = OwnChild(pid=pid, started=pid)
        self._new[gpu.uuid] = ChildFacts(generation=generation, child=identity)
        self.started.append((gpu.uuid, self._world.now))

    def kill(self, uuid: str, generation: int) -> None:
        """Kill the child, which takes its teardown time."""
        child = self._own(uuid, generation)
        self.killed.append((uuid, self._world.now))
        if child.dies_at is None or child.dies_at > self._world.now + TEARDOWN_TIME:
            child.dies_at, child.code = self._world.now + TEARDOWN_TIME, -SIGKILL
        before = self._new.get(uuid, ChildFacts(generation=generation))
        self._new[uuid] = replace(before, killed_at=self._world.now)

    def acknowledge(self, uuid: str, generation: int, number: int) -> None:
        """Record an acknowledgement; the child may be gone."""
        self.acknowledged.append((uuid, generation, number))

    def set_pace(self, uuid: str, generation: int, share: float) -> None:
        """Set and record the pace of a living child."""
        self._own(uuid, generation).share = share
        self.paced.append((uuid, generation, share))

    def request_stop(self, uuid: str, generation: int) -> None:
        """End the child, unless it is unresponsive."""
        child = self._own(uuid, generation)
        self.stop_requests.append((uuid, self._world.now))
        if not child.unresponsive and child.dies_at is None:
            child.dies_at, child.code = self._world.now + 0.05, ChildExitCode.DONE

    def limit_memory(self, uuid: str, generation: int, used: int | None) -> None:
        """Store the limit of a living child."""
        self._own(uuid, generation).memory_limit = used

    def watched_at(self, uuid: str) -> float:
        """Return when the child last looked: now, if it has a limit and can watch."""
        child = self._world.gpus[uuid].child
        watches = child is not None and child.watches and child.memory_limit is not None
        return self._world.now if watches else 0.0

    def renew_lease(self, uuid: str, seconds: float) -> None:
        """Record the lease; fake children need none."""
        self.leases[uuid] = seconds

    def files(self) -> list[int]:
        """Return a number for each living child; they are never read."""
        return [fake.child.pid for fake in self._world.gpus.values() if fake.child is not None]

    def collect(self) -> dict[str, ChildFacts]:
        """Return the messages and exits of the children."""
        found, self._new = self._new, {}
        for uuid, fake in self._world.gpus.items():
            child = fake.child
            if child is None:
                continue
            facts = found.get(uuid, ChildFacts(generation=child.generation))
            messages, child.outbox = tuple(child.outbox), []
            facts = replace(facts, messages=messages)
            if child.dies_at is not None and self._world.now >= child.dies_at:
                facts = replace(facts, exit=ChildExit(code=child.code, at=self._world.now))
                fake.child = None
                fake.unlisted, fake.leaked = fake.unlisted + fake.leaked, 0
            if facts != ChildFacts(generation=child.generation):
                found[uuid] = facts
        return found

    def _own(self, uuid: str, generation: int) -> FakeChild:
        child = self._world.gpus[uuid].child
        assert child is not None, "a signal to a child that is gone"
        assert child.generation == generation, "a signal to another child"
        return child
