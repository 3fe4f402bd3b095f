"""The service's state machine: when to start it, and when to replace it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.core.actions import Action, Event, KillService, RequestReload, StartService
from sentinel.core.observation import Observation, ServiceFacts
from sentinel.core.state import ServiceDown, ServiceUp, State

#: A service says once a second that it answers; one that was silent for so long does not.
SILENT_AFTER = 10.0
#: How long it may take to begin, in seconds: it imports a web server, maybe from a slow disk.
BEGINS_WITHIN = 60.0
#: The longest pause before the next one, in seconds.
LONGEST_PAUSE = 30.0
#: One that answered for so long has made good for the failures of those before it.
FORGIVEN_AFTER = 60.0


@dataclass(frozen=True, kw_only=True)
class ServiceStep:
    """What the service's turn led to."""

    state: State
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


def first(now: float) -> ServiceDown:
    """Return the state before the first service, which is due at once."""
    return ServiceDown(generation=1, until=now)


def step(state: State, seen: Observation) -> ServiceStep:
    """Fold in what became known of the service, then take at most one step."""
    if seen.reread and state.service is not None:
        state = replace(state, reread=True)  # until there is somebody to do it
    match state.service:
        case ServiceDown(generation=generation, until=until):
            if seen.now < until or state.shutdown is not None:
                return ServiceStep(state=state)
            up = ServiceUp(generation=generation, since=seen.now)
            start = StartService(generation=generation)
            return ServiceStep(state=replace(state, service=up), actions=(start,))
        case ServiceUp() as up:
            facts = seen.service
            if facts is not None and facts.generation != up.generation:
                facts = None
            return _watch_over(state, up, facts, seen)
        case None:
            return ServiceStep(state=state)


def deadline(state: State) -> float | None:
    """Return when the service must be looked at again even if it says nothing."""
    match state.service:
        case ServiceDown(until=until):
            return until if state.shutdown is None else None
        case ServiceUp() as up:
            return _silent_at(up, state)
        case None:
            return None


def _watch_over(
    state: State, up: ServiceUp, facts: ServiceFacts | None, seen: Observation
) -> ServiceStep:
    """Hear a service out, and replace one that ended, talks nonsense or does not answer."""
    events: list[Event] = []
    actions: list[Action] = []
    if facts is not None and facts.serving:
        if up.heard is None:
            fields = {"start_s": seen.now - up.since}
            events.append(Event(name="service.ready", at=seen.now, fields=fields))
        up = replace(up, heard=seen.now)
        state = replace(state, service=up, served=True)
    for trouble in facts.service_warnings if facts is not None else ():
        said = {"about": trouble.about, "text": trouble.text}
        events.append(Event(name="service.warning", at=seen.now, fields=said))
    why = None
    if facts is not None and facts.exit is not None:
        why = f"it exited with code {facts.exit.code}"
    elif facts is not None and facts.garbage is not None:
        why = facts.garbage
    elif seen.now >= _silent_at(up, state):
        why = f"it was silent for {seen.now - (up.heard or up.since):.0f} s"
    if why is not None:
        if facts is None or facts.exit is None:
            actions.append(KillService(generation=up.generation))
        state, pause = _down(state, up, seen.now)
        failed = {"reason": why, "pause_s": pause}
        events.append(Event(name="service.failed", at=seen.now, fields=failed))
    elif state.reread and up.heard is not None:
        state = replace(state, reread=False)
        actions.append(RequestReload())
    return ServiceStep(state=state, actions=tuple(actions), events=tuple(events))


def _silent_at(up: ServiceUp, state: State) -> float:
    """Return when its silence is too long; what we ourselves slept through does not count."""
    since = up.since + BEGINS_WITHIN if up.heard is None else up.heard + SILENT_AFTER
    return max(since, (state.stalled_at or 0.0) + SILENT_AFTER)


def _down(state: State, up: ServiceUp, now: float) -> tuple[State, float]:
    """Return the state without a service, and the pause: none at first, then 1, 2, 4 ... 30 s."""
    lived = now - up.since if up.heard is not None else 0.0
    failures = 0 if lived >= FORGIVEN_AFTER else state.service_failures
    pause = 0.0 if failures == 0 else min(LONGEST_PAUSE, 2.0 ** (failures - 1))
    down = ServiceDown(generation=up.generation + 1, until=now + pause)
    return replace(state, service=down, service_failures=failures + 1), pause
