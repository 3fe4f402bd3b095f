"""The loop: observe, decide, act, publish. It waits for everything at once and for nothing else.

It never sleeps, joins, reads the driver or writes to a terminal; all of that happens in processes
and threads behind the Protocols below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sentinel.config import Config
from sentinel.control import Answer, GpuView, HostView, Reread
from sentinel.core.actions import (
    Acknowledge,
    Action,
    Ask,
    AskReread,
    Event,
    Kill,
    KillProbe,
    KillService,
    Reply,
    SetPace,
    Start,
    StartProbe,
    StartService,
)
from sentinel.core.decide import Decision, decide, watch
from sentinel.core.ending import hopeless, unkillable
from sentinel.core.feeding import Fed, feed
from sentinel.core.model import ServiceUp, State
from sentinel.core.observation import ChildFacts, Observation, ProbeFacts, ServiceFacts
from sentinel.core.view import Host, gpu_views, host_view
from sentinel.errors import ExitCode
from sentinel.messages import Gpu, Reading, Watch

__all__ = ["Clock", "Interrupts", "Manager", "Parts", "Probe", "Service", "Spawner", "Supervisor"]

#: A living supervisor renews every child's lease this often, in seconds.
RENEW_EVERY = 0.5
#: How long readings are gathered while nothing is held, in seconds.
GATHER = 0.02
#: What is shown to the service: what changed at most so often, everything so often, in seconds.
SHOW_EVERY, SHOW_ALL_EVERY = 0.25, 1.0


class Clock(Protocol):
    """The time, chance, and the only place where the supervisor waits."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def local(self) -> datetime:
        """Return what a clock on the wall shows."""

    def chance(self) -> float:
        """Return a number from 0 to 1 that nobody can know; it spreads pauses."""

    def wait(self, files: Sequence[int], timeout: float) -> None:
        """Return when one of ``files`` can be read, or after ``timeout`` seconds."""


class Probe(Protocol):
    """The process that reads the GPUs, as the supervisor sees it."""

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe; it leaves the UUIDs in ``skip`` out."""

    def kill(self, generation: int) -> None:
        """Kill the probe and forget it, whether it dies or not."""

    def watch(self, what: Watch) -> None:
        """Tell the probe what to read."""

    def gone(self) -> bool:
        """Return whether no probe of ours lives, not even one that was killed."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Return what became known since the last call, and the newest reading of each GPU."""


class Spawner(Protocol):
    """The stressor children, as the supervisor sees them. Nothing here blocks."""

    def start(
        self, gpu: Gpu, generation: int, *, clearing: bool = False, promised: int = 0
    ) -> None:
        """Spawn a stressor on ``gpu`` that leaves ``promised`` bytes more than it is told to.

        One for ``clearing`` ends once it has had a context.
        """

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and everything it started."""

    def ask(self, uuid: str, generation: int) -> None:
        """Ask the child to end."""

    def acknowledge(self, uuid: str, generation: int, number: int) -> None:
        """Tell the child that its finding of this number is known."""

    def pace(self, uuid: str, generation: int, share: float) -> None:
        """Tell the child to keep its GPU busy for this share of the time."""

    def renew(self) -> None:
        """Renew the lease of every child."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> dict[str, ChildFacts]:
        """Return what became known of each child since the last call."""


class Service(Protocol):
    """The process that talks to clients, as the supervisor sees it. Nothing here blocks."""

    def start(self, generation: int) -> None:
        """Spawn a service."""

    def kill(self, generation: int) -> None:
        """Kill the service and forget it."""

    def tell(self, message: Answer | GpuView | HostView | Reread) -> None:
        """Send it a view, an answer or a wish, once it has room for it."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> ServiceFacts | None:
        """Return what became known since the last call."""


class Interrupts(Protocol):
    """Where requests to end come from: signals, or the clock of a test."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> tuple[str | None, bool]:
        """Return why to end, if somebody asked since the last call, and whether at once."""

    def reread(self) -> bool:
        """Return whether somebody asked since the last call for the settings to be read anew."""


class Manager(Protocol):
    """Who started us and wants to know how we are: systemd, or nobody."""

    #: How long it waits for a sign of life, in seconds; ``None`` where it does not.
    watchdog: float | None

    @property
    def listened(self) -> bool:
        """Whether it wants to know."""

    def send(self, lines: Sequence[str]) -> bool:
        """Tell it; return whether that went out. Must not block."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that a supervisor has around it; without a ``service`` nobody is served."""

    probe: Probe
    spawner: Spawner
    interrupts: Interrupts
    clock: Clock
    service: Service | None = None
    manager: Manager | None = None


class Supervisor:
    """Owns the State and replaces it, tick by tick, until a shutdown is finished.

    Args:
        state: The first state, from :func:`sentinel.core.decide.first_state`.
        config: What was set.
        parts: Read the GPUs, own the children, say when to end, tell the time, talk to clients.
        publish: Takes the new state and the events of each tick; must not block.
        host: What is shown of where all this runs.

    Attributes:
        state: All that is known.
        config: What is set, as of the last tick.
    """

    def __init__(
        self,
        *,
        state: State,
        config: Config,
        parts: Parts,
        publish: Callable[[State, tuple[Event, ...]], None],
        host: Host | None = None,
    ) -> None:
        self.state = state
        self.config = config
        self._probe = parts.probe
        self._spawner = parts.spawner
        self._interrupts = parts.interrupts
        self._clock = parts.clock
        self._service = parts.service
        self._manager = parts.manager
        self._fed = Fed()
        self._publish = publish
        self._host = host or Host(pid=0, driver="", simulated=False)
        self._shown: dict[str, GpuView] = {}
        self._show_at = self._show_all_at = 0.0
        self._readings: dict[str, Reading] = {}
        self._watch: Watch | None = None
        self._wake_at = self._due = self._renew_at = parts.clock.now()

    def run(self) -> ExitCode:
        """Tick until a shutdown is finished.

        Returns:
            7 when a child could not be killed, 2 when no stressor could ever run, else 0.
        """
        while not self.state.finished:
            self.turn()
        if unkillable(self.state):
            return ExitCode.UNKILLABLE
        return ExitCode.USAGE if hopeless(self.state) else ExitCode.OK

    def turn(self) -> Decision:
        """Wait until something happens or is due, then tick."""
        self._wait()
        return self.tick()

    def tick(self) -> Decision:
        """Observe, decide, act and publish once."""
        seen = self._observe()
        decision = decide(self.state, seen, self.config)
        self.state, self.config = decision.state, decision.config
        self._wake_at = decision.wake_at
        self._show(seen, now=any(isinstance(action, Reply) for action in decision.actions))
        for action in decision.actions:
            self._act(action)
        self._tell()
        self._feed(seen)
        self._publish(decision.state, decision.events)
        return decision

    def _wait(self) -> None:
        """Wait until something happens or is due."""
        files = [*self._probe.files(), *self._spawner.files(), *self._interrupts.files()]
        files += self._service.files() if self._service is not None else []
        self._due = min(self._wake_at, self._renew_at) if self._has_children() else self._wake_at
        self._clock.wait(files, max(0.0, self._due - self._clock.now()))
        if not self._has_children() and not (self._watch and self._watch.held):
            # Nobody waits for us while nothing is held: let the readings of a poll come together.
            self._clock.wait(self._interrupts.files(), GATHER)

    def _observe(self) -> Observation:
        """Collect everything that is new into one value, stamped after the last of it."""
        facts, readings = self._probe.collect()
        self._readings.update(readings)
        children = self._spawner.collect()
        stop, at_once = self._interrupts.collect()
        now = self._clock.now()
        return Observation(
            now=now,
            local=self._clock.local(),
            dice=self._clock.chance(),
            readings=dict(self._readings),
            children=children,
            probe=facts,
            service=self._service.collect() if self._service is not None else None,
            reread=self._interrupts.reread(),
            probe_gone=self._probe.gone(),
            stop=stop,
            at_once=at_once,
            stalled=max(0.0, now - self._due),
        )

    def _act(self, action: Action) -> None:
        """Perform one action."""
        match action:
            case Kill(uuid=uuid, generation=generation):
                self._spawner.kill(uuid, generation)
            case Ask(uuid=uuid, generation=generation):
                self._spawner.ask(uuid, generation)
            case Acknowledge(uuid=uuid, generation=generation, number=number):
                self._spawner.acknowledge(uuid, generation, number)
            case SetPace(uuid=uuid, generation=generation, share=share):
                self._spawner.pace(uuid, generation, share)
            case Start(uuid=uuid) as start:
                self._spawner.start(
                    self.state.slots[uuid].gpu,
                    start.generation,
                    clearing=start.clearing,
                    promised=start.promised,
                )
            case KillProbe(generation=generation):
                self._probe.kill(generation)
            case StartProbe(generation=generation):
                self._probe.start(generation, self._left_out())
                self._watch = None
            case KillService() | StartService() | Reply() | AskReread():
                self._serve(action)

    def _serve(self, action: KillService | StartService | Reply | AskReread) -> None:
        """Perform one action on the service."""
        if self._service is None:
            return
        match action:
            case KillService(generation=generation):
                self._service.kill(generation)
            case StartService(generation=generation):
                self._service.start(generation)
                self._show_at = self._show_all_at = 0.0  # it knows nothing yet
            case Reply(answer=answer):
                self._service.tell(answer)
            case AskReread():
                self._service.tell(Reread())

    def _show(self, seen: Observation, *, now: bool) -> None:
        """Show the service what has changed, if it is time; ``now`` before an answer."""
        if self._service is None or not isinstance(self.state.service, ServiceUp):
            return
        if not now and seen.now < self._show_at:
            return
        all_ = seen.now >= self._show_all_at
        self._show_at = seen.now + SHOW_EVERY
        if all_:
            self._show_all_at = seen.now + SHOW_ALL_EVERY
        for view in gpu_views(self.state, seen, self.config):
            before = self._shown.get(view.uuid)
            if all_ or before is None or replace(before, at=view.at) != view:
                self._shown[view.uuid] = view
                self._service.tell(view)
        self._service.tell(host_view(self.state, seen.now, self.config, self._host))

    def _left_out(self) -> tuple[str, ...]:
        """Return the GPUs that a new probe must not touch."""
        readable = watch(self.state, self._clock.now()).gpus
        return tuple(uuid for uuid in self.state.slots if uuid not in readable)

    def _tell(self) -> None:
        """Tell the probe what to read when that changed, and renew the leases when they are due."""
        now = self._clock.now()
        wanted = watch(self.state, now)
        if wanted != self._watch:
            self._watch = wanted
            self._probe.watch(wanted)
        if self._has_children() and now >= self._renew_at:
            self._spawner.renew()
            self._renew_at = now + RENEW_EVERY

    def _feed(self, seen: Observation) -> None:
        """Tell whoever started us how we are, if it is time."""
        if self._manager is None or not self._manager.listened:
            return
        food = feed(self.state, seen, self.config, self._fed, self._manager.watchdog)
        if not food.lines or self._manager.send(food.lines):
            self._fed = food.fed
        self._wake_at = min(self._wake_at, max(food.due, seen.now))

    def _has_children(self) -> bool:
        return bool(self._spawner.files())
