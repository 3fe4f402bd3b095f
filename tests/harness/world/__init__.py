"""Fakes for tests of code that drives a supervisor: a world with GPUs, children and a clock.

Nothing here starts a process or waits. Time passes when the supervisor waits, and a test changes
the world between ticks: foreign processes start and exit, children fail, the driver breaks.

    world = World(gpus=2, config=Config())
    world.run(until=lambda: world.events("stressor.ready"))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from sentinel.config.model import Config
from sentinel.core.decide import first_state
from sentinel.core.gpu_state import GpuState
from sentinel.core.state import Orders, State
from sentinel.core.step import Step
from sentinel.protocol.events import Event
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.stressor import Failed, FailureKind
from sentinel.supervisor.loop import Supervisor
from sentinel.supervisor.ports import Parts
from tests.harness.world.gpus import GIB, READY, TEARDOWN_TIME, FakeChild, FakeGpu, fake_gpu, live
from tests.harness.world.processes import FakeApi, FakeProbe, FakeSpare, FakeSpawner

__all__ = [
    "GIB",
    "TEARDOWN_TIME",
    "FakeApi",
    "FakeChild",
    "FakeClock",
    "FakeGpu",
    "FakeInterrupts",
    "FakeProbe",
    "FakeSpare",
    "FakeSpawner",
    "World",
]

#: More ticks than this without any time passing are a loop that never waits.
MAX_TICKS_AT_ONCE = 50
#: A run takes coarse steps after so long, in seconds: by then nothing that a test did is new.
FINE_S = 1.0
#: The maximum coarse step, in seconds: below the interval of readings, and while a child starts
#: below the shortest phase of its start.
COARSE_TICK_S, STARTING_TICK_S = 0.9, 0.4


class World:
    """A supervisor, and everything outside it: time, GPUs, children and published events.

    Args:
        gpus: The number of GPUs.
        config: The configuration of the supervisor.
        orders: What its command orders beside.
        tick: The maximum step of time, in seconds.
        hidden: Why foreign processes may be missing from the lists, or None.
        with_api: Whether there is an API process.
        daemon: Whether the supervisor can only be controlled through that.
    """

    def __init__(
        self,
        gpus: int = 1,
        config: Config | None = None,
        *,
        orders: Orders | None = None,
        tick: float = 0.025,
        hidden: str | None = None,
        with_api: bool = False,
        daemon: bool = False,
    ) -> None:
        self.now = 1000.0
        self.wall = datetime(2026, 1, 7, 12, 0)  # noqa: DTZ001 - a Wednesday, local time
        self.tick = tick
        self.hidden = hidden
        self._with_api, self._daemon = with_api or daemon, daemon
        self._coarse = False
        self._turned_at = 0.0
        self._orders = orders or Orders()
        self.configure(config or Config())
        # Seeded, so that failures can be reproduced.
        self.random_value: Callable[[], float] = random.Random(1).random
        self.gpus = {f"GPU-{index}": FakeGpu(gpu=fake_gpu(index)) for index in range(gpus)}
        self.published: list[Event] = []
        self.next_pid = 100
        self.probe = FakeProbe(self)
        self.spawner = FakeSpawner(self)
        self.standby, self.spare_probe = FakeSpare(), FakeSpare()
        self.interrupts = FakeInterrupts()
        self.api = FakeApi(lambda: self.now)

    def configure(self, config: Config) -> None:
        """Set the configuration of a supervisor that has not been used yet."""
        self._config = config
        self.utilization = config.idle_utilization is not None

    @cached_property
    def supervisor(self) -> Supervisor:
        """The supervisor of all GPUs of this world."""
        gpus = tuple(fake.gpu for fake in self.gpus.values())
        state = first_state(
            gpus, self.now, self._config, hidden=self.hidden, with_api=self._with_api
        )
        return Supervisor(
            state=replace(state, api_required=self._daemon, orders=self._orders),
            parts=Parts(
                probe=self.probe,
                spawner=self.spawner,
                spare_probe=self.spare_probe,
                standby=self.standby,
                interrupts=self.interrupts,
                clock=FakeClock(self),
                api=self.api if self._with_api else None,
            ),
            publish=self._publish,
        )

    @property
    def state(self) -> State:
        """The state of the supervisor."""
        return self.supervisor.state

    @state.setter
    def state(self, state: State) -> None:
        self.supervisor.state = state

    def gpu_state(self, index: int = 0) -> GpuState:
        """Return the supervisor's state of the GPU with this index."""
        return self.state.gpu_states[f"GPU-{index}"]

    def child(self, index: int = 0) -> FakeChild:
        """Return the living child of the GPU with this index."""
        child = self.at(index).child
        assert child is not None, "there is no child"
        return child

    def end_child(self, index: int = 0, code: int = 0, after: float = 0.0) -> None:
        """Let a child exit with a code, after some seconds."""
        child = self.child(index)
        child.dies_at, child.code = self.now + after, code

    def fail(
        self,
        index: int = 0,
        kind: FailureKind = FailureKind.WORKLOAD,
        reason: str = "boom",
        after: float = 0.0,
    ) -> None:
        """End a child with a failure that it reports."""
        self.child(index).outbox.append(Failed(kind=kind, reason=reason))
        self.end_child(index, 82, after)

    def come_and_go(self, index: int = 0) -> None:
        """Start a foreign process, and end it once the child is gone."""
        process = self.newcomer(index)
        self.run(lambda: self.at(index).child is None)
        self.at(index).foreign.remove(process)

    def run(self, until: Callable[[], object], within: float = 60.0) -> list[Step[State]]:
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
                self._turned_at = before
                decisions.append(self.supervisor.turn())
                stuck = 0 if self.now > before else stuck + 1
                assert stuck < MAX_TICKS_AT_ONCE, "ticks forever without waiting"
        finally:
            self._coarse = False
        return decisions

    def run_for(self, seconds: float) -> list[Step[State]]:
        """Tick for ``seconds``; return the decisions."""
        end = self.now + seconds
        return self.run(lambda: self.now >= end, within=seconds + 1)

    def step(self, timeout: float) -> bool:
        """Let time pass for one wait of the supervisor: for ``timeout`` seconds or one tick.

        Returns:
            Whether something happens: in each tick, of which coarse ones have several waits.
        """
        tick = max(self.tick, self._coarse_tick()) if self._coarse else self.tick
        self.pass_time(min(timeout, tick))
        return not self._coarse or self.now >= self._turned_at + tick

    def _coarse_tick(self) -> float:
        """Return the maximum coarse step at this moment."""
        children = [fake.child for fake in self.gpus.values() if fake.child is not None]
        starting = any(child.stage < READY for child in children)
        return STARTING_TICK_S if starting else COARSE_TICK_S

    def pass_time(self, seconds: float) -> None:
        """Advance time and the children at once."""
        self.now += seconds
        self.wall += timedelta(seconds=seconds)
        for fake in self.gpus.values():
            if fake.child is not None:
                target = self.state.config.of(fake.gpu.uuid).memory
                live(fake, fake.child, self.now, target)

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
        return self._world.step(timeout)


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
