"""Run the supervisor's loop: observe, react, kill, conclude, act, publish.

The loop waits for everything at once and for nothing else. It never sleeps, joins, reads the driver
or writes to a terminal; processes and threads behind the Protocols of ``ports`` do that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sentinel.core.decide import conclude, kills, react
from sentinel.core.newcomer import held_since
from sentinel.core.node.daemon import (
    SentNotifications,
    next_notification,
    permanently_failed,
    unkillable,
)
from sentinel.core.node.status import Host, gpu_views, host_view
from sentinel.core.observation import Observation, WatchTimes
from sentinel.core.state import State
from sentinel.core.step import (
    Action,
    Event,
    Kill,
    KillProcess,
    Role,
    Send,
    SendTo,
    Start,
    StartProcess,
    Step,
)
from sentinel.errors import ExitCode
from sentinel.protocol.gpu import Reading
from sentinel.protocol.views import GpuView, HostView, SessionsView, View
from sentinel.supervisor.ports import ManagedProcess, Parts
from sentinel.supervisor.stressor_pool import RENEW_SHORT_EVERY_S, Leases

#: After a longer pause between two looks at the times of the last reads, in seconds, blindness
#: counts from the second look: all processes may have been stopped together.
MAX_LOOK_PAUSE_S = 0.1
#: Readings are gathered for so long while nothing is held, in seconds.
GATHER_S = 0.02
#: The longest sleep beside a child and without one, in seconds. A SIGSTOP shows as late waking:
#: sleeping at most this long bounds the error. Without a child, a stop of less than two seconds may
#: go unnoticed: what counts from a stop has limits of five seconds and more.
MAX_SLEEP_S, MAX_IDLE_SLEEP_S = 0.2, 1.0
#: The minimum interval of views that changed, and the interval of all views, in seconds.
VIEWS_EVERY_S, ALL_VIEWS_EVERY_S = 0.25, 1.0

#: Actions after the views: answers refer to them, and a start takes milliseconds.
_AFTER_VIEWS = SendTo | StartProcess | Start


class Supervisor:
    """Owns the state and replaces it, tick by tick, until a shutdown is finished.

    Args:
        state: The first state, from :func:`sentinel.core.decide.first_state`.
        parts: The probe, the children, the API process, signals, the clock and systemd.
        publish: Takes the new state and the events of each tick; must not block.
        host: Facts about the daemon, for its view.

    Attributes:
        state: The state after the last tick.
    """

    def __init__(
        self,
        *,
        state: State,
        parts: Parts,
        publish: Callable[[State, tuple[Event, ...]], None],
        host: Host | None = None,
    ) -> None:
        self.state = state
        self._probe = parts.probe
        self._spawner = parts.spawner
        self._standby = parts.standby
        self._spare_probe = parts.spare_probe
        self._interrupts = parts.interrupts
        self._clock = parts.clock
        self._api = parts.api
        self._manager = parts.manager
        self._processes: dict[Role, ManagedProcess] = {
            Role.PROBE: parts.probe,
            Role.SPARE_PROBE: parts.spare_probe,
            Role.STANDBY: parts.standby,
        }
        if parts.api is not None:
            self._processes[Role.API] = parts.api
        self._sent = SentNotifications()
        self._publish = publish
        self._host = host or Host(pid=0, driver="", simulated=False)
        self._views: dict[str, GpuView] = {}
        self._host_view: HostView | None = None
        self._sessions = SessionsView()
        self._views_at = self._all_views_at = 0.0
        self._readings: dict[str, Reading] = {}
        self._leases = Leases(parts.spawner)
        self._wake_at = self._due = parts.clock.now()
        self._looked_at = self._supervised_since = self._observed_at = self._due
        self._late = 0.0

    def run(self) -> ExitCode:
        """Tick until a shutdown is finished.

        Returns:
            7 if a child could not be killed, 2 if no stressor could ever run or no client could
            ever reach a daemon, RESTART if it is to start again, else 0.
        """
        while not self.state.finished:
            self.turn()
        if unkillable(self.state):
            return ExitCode.UNKILLABLE
        shutdown = self.state.shutdown
        unreachable = shutdown is not None and shutdown.unreachable
        failed = unreachable or permanently_failed(self.state)
        if failed:
            return ExitCode.USAGE
        return ExitCode.RESTART if self.state.restart else ExitCode.OK

    def turn(self) -> Step[State]:
        """Wait until something happens or is due, then tick."""
        self._wait()
        return self.tick()

    def tick(self) -> Step[State]:
        """Observe, decide and act once: kills first, replies and events after their views."""
        seen = self._observe()
        reaction = react(self.state, seen)
        killed = kills(reaction)
        for kill in killed:
            self._spawner.kill(kill.uuid, kill.generation)
        decision = conclude(self.state, reaction, seen)
        self.state, self._wake_at = decision.state, decision.due
        actions = [action for action in decision.actions if action not in killed]
        later = [action for action in actions if isinstance(action, _AFTER_VIEWS)]
        for action in actions:
            if action not in later:
                self._act(action)
        # Before the events: a client that has one reads a state that includes it.
        answers = any(isinstance(action, SendTo) and action.role is Role.API for action in later)
        self._send_views(seen, at_once=answers or bool(decision.events))
        for action in later:
            self._act(action)
        if self._has_children():
            self._leases.renew(self.state, self._clock.now(), seen.watched)
        self._notify(seen)
        self._publish(decision.state, decision.events)
        return decision

    def _wait(self) -> None:
        """Wait until something happens or is due."""
        files = [*self._spawner.files(), *self._interrupts.files()]
        files += [file for process in self._processes.values() for file in process.files()]
        has_children = self._has_children()
        self._due = min(self._wake_at, self._leases.due) if has_children else self._wake_at
        # A stop may also come between two waits.
        self._late = self._clock.now() - self._observed_at
        longest = MAX_SLEEP_S if has_children else MAX_IDLE_SLEEP_S
        while True:
            began = self._clock.now()
            pause = min(longest, max(0.0, self._due - began))
            if has_children and self._leases.any_short:
                pause = min(pause, RENEW_SHORT_EVERY_S)
            happened = self._clock.wait(files, pause)
            now = self._clock.now()
            self._late = max(self._late, now - began - pause)
            # Short leases are renewed without a tick, which takes far longer.
            if happened or now >= self._due:
                break
            if has_children and not self._leases.renew(self.state, now, self._watch_times()):
                break
        if not self._has_children() and not self._probe_watches_held():
            # Nothing is held, so nothing is urgent: gather the readings of one poll.
            began = self._clock.now()
            self._clock.wait(self._interrupts.files(), GATHER_S)
            self._late = max(self._late, self._clock.now() - began - GATHER_S)

    def _observe(self) -> Observation:
        """Collect everything new into one observation, stamped after the last of it."""
        facts = self._probe.collect()
        if facts is not None:
            self._readings.update(facts.readings)
        children = self._spawner.collect()
        stop, at_once = self._interrupts.collect()
        now = self._observed_at = self._clock.now()
        return Observation(
            now=now,
            local=self._clock.local(),
            random_value=self._clock.random_value(),
            readings=dict(self._readings),
            children=children,
            watched=self._watch_times(),
            probe=facts,
            spare_probe=self._spare_probe.collect(),
            standby=self._standby.collect(),
            memory_left=self._standby.memory_left(),
            api=self._api.collect() if self._api is not None else None,
            reload_requested=self._interrupts.reload_requested(),
            probe_gone=self._probe.gone(),
            stop=stop,
            at_once=at_once,
            stalled=max(self._late, now - self._due),
        )

    def _watch_times(self) -> dict[str, WatchTimes]:
        """Return when the memory of each held GPU was last read, by the probe and its stressor."""
        now = self._clock.now()
        if now - self._looked_at > MAX_LOOK_PAUSE_S:
            self._supervised_since = now
        self._looked_at = now
        return {
            uuid: WatchTimes(
                probe=self._probe.read_at(uuid),
                stressor=self._spawner.watched_at(uuid),
                supervised=self._supervised_since,
            )
            for uuid, gpu_state in self.state.gpu_states.items()
            if held_since(gpu_state) is not None
        }

    def _act(self, action: Action) -> None:
        """Perform one action."""
        match action:
            case Kill(uuid=uuid, generation=generation):
                self._spawner.kill(uuid, generation)
            case Send(uuid=uuid, generation=generation, message=message):
                self._spawner.send(uuid, generation, message)
            case Start(uuid=uuid) as start:
                self._spawner.start(self.state.gpu_states[uuid].gpu, start)
            case KillProcess(role=role, generation=generation):
                self._processes[role].kill(generation)
            case StartProcess(role=role, generation=generation, excluded=excluded):
                self._processes[role].start(generation, excluded)
                if role is Role.API:
                    self._views_at = self._all_views_at = 0.0  # a new one has no views yet
            case SendTo(role=role, message=message):
                self._processes[role].send(message)

    def _send_views(self, seen: Observation, *, at_once: bool) -> None:
        """Send the API process the views that have changed, if they are due or ``at_once``."""
        if self._api is None or self.state.api is None or not self.state.api.running:
            return
        if not at_once and seen.now < self._views_at:
            return
        all_ = seen.now >= self._all_views_at
        self._views_at = seen.now + VIEWS_EVERY_S
        if all_:
            self._all_views_at = seen.now + ALL_VIEWS_EVERY_S
        fresh: list[View] = []
        for view in gpu_views(self.state, seen):
            before = self._views.get(view.uuid)
            if all_ or before is None or replace(before, at=view.at) != view:
                self._views[view.uuid] = view
                fresh.append(view)
        sessions = SessionsView(sessions=tuple(self.state.sessions.values()))
        if all_ or sessions != self._sessions:
            self._sessions = sessions
            fresh.append(sessions)
        host = host_view(self.state, seen.now, self._host)
        if all_ or self._host_view is None or replace(self._host_view, at=host.at) != host:
            self._host_view = host
            fresh.append(host)
        self._api.send_views(fresh)

    def _notify(self, seen: Observation) -> None:
        """Send a due systemd notification."""
        if self._manager is None or not self._manager.enabled:
            return
        due = next_notification(self.state, seen, self._sent, self._manager.watchdog)
        if not due.lines or self._manager.send(due.lines):
            self._sent = due.sent
        self._wake_at = min(self._wake_at, max(due.due, seen.now))

    def _has_children(self) -> bool:
        return bool(self._spawner.files())

    def _probe_watches_held(self) -> bool:
        """Check whether the probe reads a GPU as one that may be held."""
        probe = self.state.probe
        return probe.running and probe.watch is not None and bool(probe.watch.held)
