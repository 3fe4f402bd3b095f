"""A fake spawner, which owns the children of a world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sentinel.core.observation import ChildExit, ChildFacts, OwnChild
from sentinel.core.step import Start
from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import (
    FindingAck,
    MemoryLimit,
    Pace,
    Stop,
    StressorCommand,
    StressorGroup,
)
from tests.harness.world.gpus import IMPORT_TIME, TEARDOWN_TIME, FakeChild

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
