"""The probe's state machine: when to replace it, and which GPUs to leave out for now. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.actions import Action, Event, KillProbe, StartProbe
from sentinel.core.observation import Call, Observation, ProbeFacts
from sentinel.core.state import (
    GpuState,
    ProbeDown,
    ProbeUp,
    Running,
    Starting,
    State,
    Stopping,
    Suspect,
)
from sentinel.protocol.gpu import Reading

#: A call into the driver that has not returned after so many seconds hangs. The slowest seen was
#: 0.3 s, while a context was torn down.
CALL_HANGS_AFTER = 3.0
#: Initialisation may be slow: 1 to 3 s a GPU where persistence mode is off.
INITIALISATION_HANGS_AFTER = 60.0
#: Pauses before the next probe after one that ended without success, in seconds.
LONGEST_PAUSE = 30.0
#: A probe that lived so long has made good for the failures of those before it.
FORGIVEN_AFTER = 60.0
#: How often to look whether a probe is gone that was killed so that nothing uses the driver.
GONE_EVERY = 0.1
#: How long a GPU on which a call hung is left out at first and at most, in seconds.
FIRST_EXCLUSION = 10.0
LONGEST_EXCLUSION = 600.0
#: How a process ends that crashed: by SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV. A probe that
#: ends otherwise was killed by somebody, or gave up, and the call that it was in is not to blame.
CRASHES = frozenset({-4, -6, -7, -8, -11})


@dataclass(frozen=True, kw_only=True)
class ProbeStep:
    """What the probe's turn led to."""

    state: State
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


def suspected(state: State, uuid: str, now: float) -> bool:
    """Return whether the probe is to leave this GPU out now."""
    suspect = state.suspects.get(uuid)
    return suspect is not None and now < suspect.until


def readable(state: State, gpu_state: GpuState, now: float) -> bool:
    """Return whether the probe is to read this GPU now; see :func:`sentinel.core.decide.watch`."""
    match gpu_state.stressor:
        case Stopping(kill_sent=True, exit=None):
            return False
        case _:
            return not suspected(state, gpu_state.gpu.uuid, now)


def step(state: State, seen: Observation, config: Config) -> ProbeStep:
    """Fold in what became known of the probe, then take at most one step."""
    events: list[Event] = []
    probe = state.probe
    facts = seen.probe
    if facts is not None and isinstance(probe, ProbeUp) and facts.generation == probe.generation:
        state, events = _fold(state, probe, facts, seen.now)
    match state.probe:
        case ProbeUp() as up if state.released is not None and _holds_nothing(state):
            down = ProbeDown(generation=up.generation + 1, until=math.inf, reason="let go of")
            kill = KillProbe(generation=up.generation)
            state = replace(state, probe=down)
            return ProbeStep(state=state, actions=(kill,), events=tuple(events))
        case ProbeDown() as down if state.released is not None:
            if seen.probe_gone and not down.gone:
                events.append(Event(name="driver.released", at=seen.now))
            state = replace(state, probe=replace(down, until=math.inf, gone=seen.probe_gone))
            return ProbeStep(state=state, events=tuple(events))
        case ProbeDown(until=math.inf) as down:
            state = replace(state, probe=replace(down, until=seen.now))
            return ProbeStep(state=state, events=tuple(events))
        case ProbeDown(until=until, generation=generation) if seen.now >= until:
            if state.shutdown is not None:
                return ProbeStep(state=state, events=tuple(events))
            up = ProbeUp(generation=generation, since=seen.now)
            start = StartProbe(generation=generation)
            state = replace(state, probe=up)
            return ProbeStep(state=state, actions=(start,), events=tuple(events))
        case ProbeUp() as up:
            calls = facts.calls if facts is not None else ()
            done = _watch_over(state, up, calls, seen, config)
            return replace(done, events=(*events, *done.events))
        case _:
            return ProbeStep(state=state, events=tuple(events))


def _holds_nothing(state: State) -> bool:
    """Return whether no process of ours has a GPU: then the driver can be let go of."""
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    return not any(isinstance(stressor, Starting | Running | Stopping) for stressor in stressors)


def deadline(state: State, readings: Mapping[str, Reading], config: Config, now: float) -> float:
    """Return when the probe must be looked at again even if it says nothing."""
    match state.probe:
        case ProbeDown(gone=False) if state.released is not None:
            return now + GONE_EVERY
        case ProbeDown(until=until):
            return until
        case ProbeUp() as up:
            return _latest(state, up, readings) + min(config.stale_after, CALL_HANGS_AFTER)


def _fold(state: State, probe: ProbeUp, facts: ProbeFacts, now: float) -> tuple[State, list[Event]]:
    """Fold in the probe's own messages and its end."""
    events = []
    if facts.inventory is not None:
        # Counted from now: to initialise the driver may have taken longer than silence may last.
        state = replace(state, probe=replace(probe, heard=True, since=now))
        fields: dict[str, object] = {
            "driver": facts.inventory.driver,
            "gpus": len(facts.inventory.gpus),
        }
        events.append(Event(name="probe.ready", at=now, fields=fields))
    if facts.unavailable is not None:
        fields = {"code": facts.unavailable.code, "reason": facts.unavailable.reason}
        events.append(Event(name="driver.unavailable", at=now, fields=fields))
    if facts.exit is not None:
        reason = f"exited with code {facts.exit.code}"
        state, pause = _down(state, reason, now)
        fields = {"exit_code": facts.exit.code, "pause_s": pause}
        state, blamed = _blame(state, facts, facts.exit.code, now)
        if blamed is not None and blamed.uuid is not None:
            left_out = state.suspects[blamed.uuid].until - now
            fields |= {"call": blamed.name, "left_out_s": left_out}
        gpu = blamed.uuid if blamed is not None else None
        events.append(Event(name="probe.exited", at=now, gpu=gpu, fields=fields))
    return state, events


def _blame(state: State, facts: ProbeFacts, code: int, now: float) -> tuple[State, Call | None]:
    """Leave out every GPU on which a call was under way when the probe crashed.

    It may have been any of them, and one that stays in would take the next probe down, too, and
    with it the care for all. Returns the call that was begun last, as the one to name.
    """
    if code not in CRASHES:
        return state, None
    calls = [call for call in facts.calls if call.uuid is not None]
    last = {call.uuid: call for call in sorted(calls, key=lambda call: call.since)}
    for uuid, call in last.items():
        if uuid is not None:
            state = _suspect(state, uuid, call.name, now, crashed=True)
    return state, max(calls, key=lambda call: call.since, default=None)


def _down(state: State, reason: str, now: float) -> tuple[State, float]:
    """Return the state without a probe, and the pause: none at first, then 1, 2, 4 ... 30 s."""
    lived = now - state.probe.since if isinstance(state.probe, ProbeUp) else 0.0
    failures = 0 if lived >= FORGIVEN_AFTER else state.probe_failures
    pause = 0.0 if failures == 0 else min(LONGEST_PAUSE, 2.0 ** (failures - 1))
    down = ProbeDown(generation=state.probe.generation + 1, until=now + pause, reason=reason)
    return replace(state, probe=down, probe_failures=failures + 1), pause


def _watch_over(
    state: State, up: ProbeUp, calls: tuple[Call, ...], seen: Observation, config: Config
) -> ProbeStep:
    """Replace a probe that hangs in a call, or from which nothing comes any more."""
    if not any(readable(state, gpu_state, seen.now) for gpu_state in state.gpu_states.values()):
        up = replace(up, unasked=seen.now)
        state = replace(state, probe=up)
    stuck = [call for call in calls if _hangs(call, seen.now)]
    hung = min(stuck, key=lambda call: call.since, default=None)
    silent = seen.now - _latest(state, up, seen.readings)
    limit = config.stale_after if up.heard else INITIALISATION_HANGS_AFTER
    if hung is None and silent <= limit:
        return ProbeStep(state=state)
    fields: dict[str, object] = {"silent_s": silent}
    if hung is not None:
        fields |= {"call": hung.name, "since_s": seen.now - hung.since}
        if hung.uuid is not None:
            state = _suspect(state, hung.uuid, hung.name, seen.now)
            fields["pause_s"] = state.suspects[hung.uuid].until - seen.now
    event = Event(name="probe.hung", at=seen.now, gpu=hung.uuid if hung else None, fields=fields)
    state, _ = _down(state, "it hung", seen.now)
    return ProbeStep(state=state, actions=(KillProbe(generation=up.generation),), events=(event,))


def _hangs(call: Call, now: float) -> bool:
    limit = INITIALISATION_HANGS_AFTER if call.uuid is None else CALL_HANGS_AFTER
    return now - call.since > limit


def _suspect(state: State, uuid: str, call: str, now: float, *, crashed: bool = False) -> State:
    """Return the state in which this GPU is left out, longer each time."""
    before = state.suspects.get(uuid)
    strikes = before.strikes + 1 if before else 1
    pause = min(LONGEST_EXCLUSION, FIRST_EXCLUSION * 2 ** (strikes - 1))
    suspect = Suspect(until=now + pause, strikes=strikes, call=call, crashed=crashed)
    return replace(state, suspects={**state.suspects, uuid: suspect})


def _latest(state: State, up: ProbeUp, readings: Mapping[str, Reading]) -> float:
    """Return when the probe last gave a sign of life, or could not have because we did not run."""
    stamps = [reading.at for uuid, reading in readings.items() if uuid in state.gpu_states]
    return max([up.since, up.unasked, state.stalled_at or up.since, *stamps])
