"""The loop: observe, decide, act, publish. It waits for everything at once and for nothing else.

It never sleeps, joins, reads the driver or writes to a terminal; all of that happens in processes
and threads behind the Protocols below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import (
    Acknowledge,
    Action,
    Ask,
    Event,
    Kill,
    KillProbe,
    KillService,
    Reply,
    RequestReload,
    SetPace,
    Start,
    StartProbe,
    StartService,
)
from sentinel.core.decide import Decision, decide, watch
from sentinel.core.node.shutdown import permanently_failed, unkillable
from sentinel.core.node.views import Host, gpu_views, host_view
from sentinel.core.node.watchdog import Fed, feed
from sentinel.core.observation import Observation
from sentinel.core.state import ServiceUp, State
from sentinel.errors import ExitCode
from sentinel.protocol.commands import ReloadConfig
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import Watch
from sentinel.protocol.views import GpuView
from sentinel.supervisor.ports import Parts

#: A living supervisor renews every child's lease this often, in seconds.
RENEW_EVERY = 0.5
#: How long readings are gathered while nothing is held, in seconds.
GATHER = 0.02
#: What is shown to the service: what changed at most so often, everything so often, in seconds.
SHOW_EVERY, SHOW_ALL_EVERY = 0.25, 1.0


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
        return ExitCode.USAGE if permanently_failed(self.state) else ExitCode.OK

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
            random_value=self._clock.chance(),
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
                    self.state.gpu_states[uuid].gpu,
                    start.generation,
                    clearing=start.clearing,
                    committed=start.committed,
                )
            case KillProbe(generation=generation):
                self._probe.kill(generation)
            case StartProbe(generation=generation):
                self._probe.start(generation, self._left_out())
                self._watch = None
            case KillService() | StartService() | Reply() | RequestReload():
                self._serve(action)

    def _serve(self, action: KillService | StartService | Reply | RequestReload) -> None:
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
            case RequestReload():
                self._service.tell(ReloadConfig())

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
        return tuple(uuid for uuid in self.state.gpu_states if uuid not in readable)

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
