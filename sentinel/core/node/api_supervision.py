"""Start, watch and replace the API process. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Action, Event, KillApi, RequestReload, StartApi
from sentinel.core.node.backoff import next_pause
from sentinel.core.node.node_step import NodeStep
from sentinel.core.observation import ApiFacts, Observation
from sentinel.core.state import ApiDown, ApiUp, State

#: An API process without a report for so long is replaced, in seconds; it reports once a second.
SILENCE_TIMEOUT_S = 10.0
#: The time limit of its start, in seconds: it imports a web server, maybe from a slow disk.
START_TIMEOUT_S = 60.0


def first(now: float) -> ApiDown:
    """Return the state before the first API process, which is due at once."""
    return ApiDown(generation=1, until=now)


def step(state: State, seen: Observation) -> NodeStep:
    """Apply the new facts about the API process, then take at most one step."""
    if seen.reload_requested and state.api is not None:
        state = replace(state, reload_requested=True)  # until one serves
    match state.api:
        case ApiDown(generation=generation, until=until):
            if seen.now < until or state.shutdown is not None:
                return NodeStep(state=state)
            up = ApiUp(generation=generation, since=seen.now)
            start = StartApi(generation=generation)
            return NodeStep(state=replace(state, api=up), actions=(start,))
        case ApiUp() as up:
            facts = seen.api
            if facts is not None and facts.generation != up.generation:
                facts = None
            return _watch(state, up, facts, seen)
        case None:
            return NodeStep(state=state)


def deadline(state: State) -> float | None:
    """Compute when the API process needs the next step without any news."""
    match state.api:
        case ApiDown(until=until):
            return until if state.shutdown is None else None
        case ApiUp() as up:
            return _timeout_at(up, state)
        case None:
            return None


def _watch(state: State, up: ApiUp, facts: ApiFacts | None, seen: Observation) -> NodeStep:
    """Apply its reports; replace one that exited, sent garbage or is silent."""
    events: list[Event] = []
    actions: list[Action] = []
    if facts is not None and facts.serving:
        if up.served_at is None:
            start_s = seen.now - up.since
            events.append(Event(name="service.ready", at=seen.now, fields={"start_s": start_s}))
        up = replace(up, served_at=seen.now)
        state = replace(state, api=up, served=True)
    for warning in facts.warnings if facts is not None else ():
        fields = {"about": warning.about, "text": warning.text}
        events.append(Event(name="service.warning", at=seen.now, fields=fields))
    why = None
    if facts is not None and facts.exit is not None:
        why = f"it exited with code {facts.exit.code}"
    elif facts is not None and facts.garbage is not None:
        why = facts.garbage
    elif seen.now >= _timeout_at(up, state):
        why = f"it was silent for {seen.now - (up.served_at or up.since):.0f} s"
    if why is not None:
        if facts is None or facts.exit is None:
            actions.append(KillApi(generation=up.generation))
        state, pause = _down(state, up, seen.now)
        failed = {"reason": why, "pause_s": pause}
        events.append(Event(name="service.failed", at=seen.now, fields=failed))
    elif state.reload_requested and up.served_at is not None:
        state = replace(state, reload_requested=False)
        actions.append(RequestReload())
    return NodeStep(state=state, actions=tuple(actions), events=tuple(events))


def _timeout_at(up: ApiUp, state: State) -> float:
    """Compute when its silence is too long; a stall of the supervisor does not count."""
    since = up.since + START_TIMEOUT_S if up.served_at is None else up.served_at + SILENCE_TIMEOUT_S
    return max(since, (state.stalled_at or 0.0) + SILENCE_TIMEOUT_S)


def _down(state: State, up: ApiUp, now: float) -> tuple[State, float]:
    """Schedule the next API process; return the pause."""
    lived = now - up.since if up.served_at is not None else 0.0
    failures, pause = next_pause(state.api_failures, lived)
    down = ApiDown(generation=up.generation + 1, until=now + pause)
    return replace(state, api=down, api_failures=failures), pause
