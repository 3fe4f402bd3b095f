"""A fake probe, which reads the GPUs of a world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sentinel.core.observation import Call, ChildExit, ProbeFacts
from sentinel.protocol.gpu import GpuProcess, Memory, Reading
from sentinel.protocol.probe import Inventory, Watch, XidReport, XidsWatched
from tests.harness.world.gpus import FakeGpu

if TYPE_CHECKING:
    from tests.harness.world import World

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
        facts = ProbeFacts(generation=self.generation, xids=tuple(self.xids))
        facts = replace(facts, xids_watched=self.xids_watched)
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

    def _load_wanted(self, fake: FakeGpu) -> bool:
        """Check whether the utilisation is read, as the real probe decides."""
        wanted = self.watched.load if self.watched is not None else ()
        return self._world.utilization or fake.gpu.uuid in wanted
