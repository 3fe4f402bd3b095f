"""Fakes of the supervisor's processes: stressors and their spawner, spares, the probe, the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sentinel.core.observation import (
    ApiFacts,
    Call,
    ChildExit,
    ChildFacts,
    OwnChild,
    ProbeFacts,
    ProcessFacts,
)
from sentinel.core.step import Start
from sentinel.errors import ChildExitCode
from sentinel.protocol.commands import Caller, Command, CommandReply, Level, ReloadConfig
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.probe import Inventory, Watch, XidReport, XidsWatched
from sentinel.protocol.stressor import (
    FindingAck,
    MemoryLimit,
    Pace,
    Stop,
    StressorCommand,
    StressorGroup,
)
from sentinel.protocol.views import (
    GpuView,
    HostView,
    Session,
    SessionsView,
)
from tests.harness.world.gpus import IMPORT_TIME, TEARDOWN_TIME, FakeChild, FakeGpu

if TYPE_CHECKING:
    from tests.harness.world import World


__all__ = ["FakeSpawner"]

SIGKILL = 9


class FakeSpawner:
    """Owns the world's children; checks that only living own children are signalled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.started: list[tuple[str, float]] = []
        #: The place in a group of each child that was started, or None.
        self.groups: list[tuple[str, StressorGroup | None]] = []
        self.killed: list[tuple[str, float]] = []
        self.stop_requests: list[tuple[str, float]] = []
        self.acknowledged: list[tuple[str, int, int]] = []
        self.paced: list[tuple[str, int, float]] = []
        self.cleared: list[tuple[str, float]] = []
        #: Since when the children have not run, or None.
        self.frozen_at: float | None = None
        #: The duration of the last lease of each child, in seconds.
        self.leases: dict[str, float] = {}
        #: Whether it said that the probe reads, too.
        self.shared: dict[str, bool] = {}
        self._new: dict[str, ChildFacts] = {}

    def start(self, gpu: Gpu, order: Start) -> None:
        """Start a child; one for clearing takes leaked memory and load with it."""
        if order.standby:
            self._world.standby.become_stressor()
        generation = order.generation
        fake = self._world.gpus[gpu.uuid]
        assert fake.child is None, "a second child on one GPU"
        self._world.next_pid += 1
        pid = self._world.next_pid
        fake.child = FakeChild(
            generation=generation, pid=pid, started_at=self._world.now, committed=order.committed
        )
        if order.clearing:
            fake.child.unresponsive, fake.child.dies_at = True, self._world.now + IMPORT_TIME
            self.cleared.append((gpu.uuid, self._world.now))
            if fake.can_be_cleared:
                fake.unlisted, fake.utilization = 0, 0.0
        identity = OwnChild(pid=pid, started=pid)
        self._new[gpu.uuid] = ChildFacts(generation=generation, child=identity)
        self.started.append((gpu.uuid, self._world.now))
        self.groups.append((gpu.uuid, order.group))

    def kill(self, uuid: str, generation: int) -> None:
        """Kill the child, which takes its teardown time."""
        child = self._own(uuid, generation)
        self.killed.append((uuid, self._world.now))
        if child.dies_at is None or child.dies_at > self._world.now + TEARDOWN_TIME:
            child.dies_at, child.code = self._world.now + TEARDOWN_TIME, -SIGKILL
        before = self._new.get(uuid, ChildFacts(generation=generation))
        self._new[uuid] = replace(before, killed_at=self._world.now)

    def send(self, uuid: str, generation: int, message: StressorCommand) -> None:
        """Record a message; a living child obeys it, unless it is unresponsive."""
        if isinstance(message, FindingAck):  # the child may be gone
            self.acknowledged.append((uuid, generation, message.number))
            return
        child = self._own(uuid, generation)
        match message:
            case Pace(share=share):
                child.share = share
                self.paced.append((uuid, generation, share))
            case MemoryLimit():
                child.memory_limit = message
            case Stop():
                self.stop_requests.append((uuid, self._world.now))
                if not child.unresponsive and child.dies_at is None:
                    child.dies_at, child.code = self._world.now + 0.05, ChildExitCode.DONE

    def watched_at(self, uuid: str) -> float:
        """Return when the child last looked: now, if it has a limit and can watch."""
        child = self._world.gpus[uuid].child
        watches = child is not None and child.watches and child.memory_limit.used is not None
        return (self.frozen_at or self._world.now) if watches else 0.0

    def renew_lease(self, uuid: str, seconds: float, *, shared: bool = False) -> None:
        """Record the lease; fake children need none."""
        self.shared[uuid] = shared
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
            nothing = ChildFacts(generation=child.generation)
            facts = found.get(uuid, nothing)
            if child.outbox or facts.messages:
                facts = replace(facts, messages=tuple(child.outbox))
                child.outbox = []
            if child.dies_at is not None and self._world.now >= child.dies_at:
                facts = replace(facts, exit=ChildExit(code=child.code, at=self._world.now))
                fake.child = None
                fake.unlisted, fake.leaked = fake.unlisted + fake.leaked, 0
            if facts != nothing:
                found[uuid] = facts
        return found

    def _own(self, uuid: str, generation: int) -> FakeChild:
        child = self._world.gpus[uuid].child
        assert child is not None, "a signal to a child that is gone"
        assert child.generation == generation, "a signal to another child"
        return child


__all__ = ["FakeSpare"]


class FakeSpare:
    """Is ready as soon as it runs, unless a test says otherwise."""

    def __init__(self) -> None:
        self.generation = 0
        self.running = False
        self.ready = True
        #: Whether it has said so, which it does once.
        self._was_ready = False
        #: How many were started.
        self.started = 0
        #: How many became a stressor.
        self.activated = 0
        #: The error and the exit of the one that runs.
        self.fails: str | None = None
        self.host_has_memory = True

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Start one."""
        assert not excluded
        assert not self.running, "a second spare process"
        self.generation, self.running, self._was_ready = generation, True, False
        self.started += 1

    def kill(self, generation: int) -> None:
        """End it."""
        assert generation == self.generation
        self.running = False

    def become_stressor(self) -> None:
        """End to be the standby stressor."""
        assert self.running, "there is no standby stressor"
        assert self.ready, "the standby stressor is not ready"
        self.running = False
        self.activated += 1

    def send(self, message: object) -> None:
        """Refuse: nothing is sent to a spare process."""
        raise AssertionError(message)

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> ProcessFacts | None:
        """Return whether it is ready, or None without one."""
        if not self.running:
            return None
        if self.fails is not None:
            self.running = False
            exit_ = ChildExit(code=1, at=0.0)
            return ProcessFacts(generation=self.generation, failed=self.fails, exit=exit_)
        works = self.ready and not self._was_ready
        self._was_ready |= works
        return ProcessFacts(generation=self.generation, works=works)

    def memory_left(self) -> bool:
        """Check that the host has memory for one."""
        return self.host_has_memory


__all__ = ["FakeProbe"]


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
        #: Since when it has not run, or None.
        self.frozen_at: float | None = None
        #: What it reports at the next tick.
        self.xids: list[XidReport] = []
        self.xids_watched: XidsWatched | None = None

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Start a new probe, from a spare one if there is one; a hang ends with the old one."""
        assert not self.alive, "a second probe beside a living one"
        self.generation, self.alive, self.skip = generation, True, excluded
        self._world.spare_probe.running = False
        self._skipped = set(excluded)  # until a watch includes them
        self.hung, self.exits_with, self._inventory_due = None, None, True
        self.stopped = False

    def kill(self, generation: int) -> None:
        """End the probe."""
        assert generation == self.generation
        self.alive = False

    def read_at(self, uuid: str) -> float:
        """Return when a GPU was last read: now, unless the probe is dead, hangs or leaves it."""
        left_out = uuid in self._skipped or self._world.gpus[uuid].silent
        hangs = self.hung is not None and self.hung.uuid in {uuid, None}
        if not self.alive or self.stopped or hangs or left_out:
            return self._read_at.get(uuid, 0.0)
        self._read_at[uuid] = self.frozen_at or self._world.now
        return self._read_at[uuid]

    def gone(self) -> bool:
        """Check that no probe is alive."""
        return not self.alive and not self._world.spare_probe.running

    def send(self, message: Watch) -> None:
        """Store what to read; skipped GPUs may be included again."""
        self.watched = message
        self._skipped.difference_update(message.gpus)

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> ProbeFacts | None:
        """Return the facts and a new reading of every watched GPU."""
        if not self.alive:
            return None
        xids, watched = tuple(self.xids), self.xids_watched
        facts = ProbeFacts(generation=self.generation, xids=xids, xids_watched=watched)
        self.xids.clear()
        self.xids_watched = None
        if self.exits_with is not None:
            self.alive = False
            calls = () if self.hung is None else (self.hung,)
            exit_ = ChildExit(code=self.exits_with, at=self._world.now)
            return replace(facts, exit=exit_, calls=calls)
        if self.stopped:
            return facts
        if self._inventory_due:
            self._inventory_due = False
            gpus = tuple(fake.gpu for fake in self._world.gpus.values())
            facts = replace(facts, inventory=Inventory(gpus=gpus, driver="fake"))
        if self.hung is not None:
            return replace(facts, calls=(self.hung,))
        readings = {
            uuid: self._read(fake)
            for uuid, fake in self._world.gpus.items()
            if not fake.silent and uuid not in self._skipped
        }
        return replace(facts, readings=readings)

    def _read(self, fake: FakeGpu) -> Reading:
        at = self._world.now
        if fake.fault is not None:
            return Reading(uuid=fake.gpu.uuid, at=at, fault=fake.fault, lost=fake.lost)
        processes = list(fake.foreign)
        child = fake.child
        if child is not None and child.memory and fake.child_pid_offset is not None:
            pid, started = (
                child.pid + fake.child_pid_offset,
                None if fake.child_pid_offset else child.pid,
            )
            processes.append(GpuProcess(pid=pid, memory=child.memory, started=started))
        total = fake.gpu.memory_total
        reading = Reading(
            uuid=fake.gpu.uuid,
            at=at,
            memory=Memory(total=total, used=fake.used, free=total - fake.used),
            processes=tuple(processes),
            omitted_processes=fake.omitted_processes,
            processes_at=at,
            exclusive=fake.exclusive,
            mig=fake.mig,
            display=fake.display,
            utilization=fake.utilization if self._load_wanted(fake) else None,
            computing=fake.computing,
            power=fake.power,
            temperature=fake.temperature,
            telemetry=fake.telemetry,
            load_at=at,
        )
        if not fake.senseless:
            return reading
        fields = {
            name: at + value if name in {"at", "processes_at"} else value
            for name, value in fake.senseless.items()
        }
        fake.senseless_reading = replace(reading, **fields)
        return fake.senseless_reading

    def _load_wanted(self, fake: FakeGpu) -> bool:
        """Check whether the utilization is read, as the real probe decides."""
        wanted = self.watched.load if self.watched is not None else ()
        return self._world.utilization or fake.gpu.uuid in wanted


__all__ = ["FakeApi"]

_ADMINISTRATOR = Caller(via="unix", uid=1000, pid=1, started=1, level=Level.ADMINISTER)


class FakeApi:
    """Posts commands, and keeps the messages that it receives.

    Args:
        now: Returns the time of the world.

    Attributes:
        serving: Whether it reports that it serves clients.
        exits: Whether it exits at the next tick.
        fails_with: The error with which every API process ends, or None.
        garbage: The invalid message to send next, or "".
        replies: The replies, in order.
        views: The latest view of each GPU, by UUID.
        host: The latest view of the daemon.
        sessions: The latest view of the sessions.
        reloads: How often it was requested to reload the settings.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.generation = 0
        self.alive = False
        self.serving = True
        self.exits = False
        self.fails_with: str | None = None
        self.garbage = ""
        self.commands: list[Command] = []
        self.replies: list[CommandReply] = []
        self.views: dict[str, GpuView] = {}
        self.host: HostView | None = None
        self.sessions: tuple[Session, ...] = ()
        self.reloads = 0
        self._number = 0

    def post(self, command: Callable[..., Command], **arguments: Any) -> int:
        """Post a command; return its number."""
        self._number += 1
        by = arguments.pop("by", _ADMINISTRATOR)
        self.commands.append(command(number=self._number, by=by, **arguments))
        return self._number

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Start a new API process."""
        assert not excluded
        assert not self.alive, "a second API process beside a living one"
        self.generation, self.alive = generation, True

    def kill(self, generation: int) -> None:
        """End the API process."""
        assert generation == self.generation
        self.alive = False

    def send(self, message: object) -> None:
        """Store a message, if it is alive."""
        if not self.alive:
            return
        match message:
            case CommandReply():
                self.replies.append(message)
            case GpuView():
                self.views[message.uuid] = message
            case HostView():
                self.host = message
            case SessionsView():
                self.sessions = message.sessions
            case ReloadConfig():
                self.reloads += 1

    def send_views(self, views: Sequence[object]) -> None:
        """Store views, if it is alive."""
        for view in views:
            self.send(view)

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> ApiFacts | None:
        """Return the posted commands and its state."""
        if not self.alive:
            return None
        if self.fails_with is not None:
            self.alive = False
            exit_ = ChildExit(code=1, at=self._now())
            return ApiFacts(generation=self.generation, failed=self.fails_with, exit=exit_)
        if self.exits:
            self.alive = self.exits = False
            exit_ = ChildExit(code=-SIGKILL, at=self._now())
            return ApiFacts(generation=self.generation, exit=exit_)
        commands, self.commands = tuple(self.commands), []
        garbage, self.garbage = self.garbage or None, ""
        return ApiFacts(
            generation=self.generation, works=self.serving, commands=commands, garbage=garbage
        )
