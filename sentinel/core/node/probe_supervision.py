"""Start, watch and replace the probe, and exclude GPUs on which it hangs or crashes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event, KillProbe, StartProbe
from sentinel.core.gpu.watchers import held_since
from sentinel.core.gpu_state import GpuState
from sentinel.core.node.backoff import next_pause
from sentinel.core.node.node_step import NodeStep
from sentinel.core.observation import Call, Observation, ProbeFacts
from sentinel.core.state import ProbeDown, ProbeUp, State, Suspect
from sentinel.core.stressor_state import Running, Starting, Stopping
from sentinel.protocol.gpu import Reading

#: A driver call that has not returned after so long hangs, in seconds. The slowest seen was 0.3 s,
#: while a context was torn down.
CALL_TIMEOUT_S = 3.0
#: Initialisation may be slow: 1 to 3 s a GPU where persistence mode is off.
INITIALISATION_TIMEOUT_S = 60.0
#: A probe that reads no held GPU for so long is stopped, in seconds; it reads them every 25 ms.
STOPPED_AFTER_S = 1.0
#: How often to check whether a probe killed for a release of the driver is gone, in seconds.
GONE_POLL_S = 0.1
#: How long a GPU is excluded after a hang or crash, at first and at most, in seconds.
MIN_EXCLUSION_S = 10.0
MAX_EXCLUSION_S = 600.0
#: The exit codes of a crash: SIGILL, SIGABRT, SIGBUS, SIGFPE and SIGSEGV. A probe that ends
#: otherwise was killed or gave up, and its call in flight is not to blame.
CRASH_CODES = frozenset({-4, -6, -7, -8, -11})


def suspected(state: State, uuid: str, now: float) -> bool:
    """Check whether the probe must not read this GPU now."""
    suspect = state.suspects.get(uuid)
    return suspect is not None and now < suspect.until


def readable(state: State, gpu_state: GpuState, now: float) -> bool:
    """Check whether the probe must read this GPU now; see watch_list.py."""
    match gpu_state.stressor:
        case Stopping(kill_sent=True, exit=None):
            return False
        case _:
            return not suspected(state, gpu_state.gpu.uuid, now)


def step(state: State, seen: Observation, config: Config) -> NodeStep:
    """Apply the new facts about the probe, then take at most one step."""
    events: list[Event] = []
    probe = state.probe
    facts = seen.probe
    if facts is not None and isinstance(probe, ProbeUp) and facts.generation == probe.generation:
        state, events = _fold(state, probe, facts, seen)
    match state.probe:
        case ProbeUp() as up if state.released is not None and _holds_nothing(state):
            down = ProbeDown(generation=up.generation + 1, until=math.inf, reason="released")
            kill = KillProbe(generation=up.generation)
            state = replace(state, probe=down)
            return NodeStep(state=state, actions=(kill,), events=tuple(events))
        case ProbeDown() as down if state.released is not None:
            if seen.probe_gone and not down.gone:
                events.append(Event(name="driver.released", at=seen.now))
            state = replace(state, probe=replace(down, until=math.inf, gone=seen.probe_gone))
            return NodeStep(state=state, events=tuple(events))
        case ProbeDown(until=math.inf) as down:
            state = replace(state, probe=replace(down, until=seen.now))
            return NodeStep(state=state, events=tuple(events))
        case ProbeDown(until=until, generation=generation) if seen.now >= until:
            if state.shutdown is not None:
                return NodeStep(state=state, events=tuple(events))
            up = ProbeUp(generation=generation, since=seen.now)
            start = StartProbe(generation=generation)
            state = replace(state, probe=up)
            return NodeStep(state=state, actions=(start,), events=tuple(events))
        case ProbeUp() as up:
            calls = facts.calls if facts is not None else ()
            done = _watch(state, up, calls, seen, config)
            return replace(done, events=(*events, *done.events)) if events else done
        case _:
            return NodeStep(state=state, events=tuple(events))


def _holds_nothing(state: State) -> bool:
    """Check that no child uses a GPU, so that the driver can be released."""
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    return not any(isinstance(stressor, Starting | Running | Stopping) for stressor in stressors)


def deadline(state: State, readings: Mapping[str, Reading], config: Config, now: float) -> float:
    """Compute when the probe needs the next step without any news."""
    match state.probe:
        case ProbeDown(gone=False) if state.released is not None:
            return now + GONE_POLL_S
        case ProbeDown(until=until):
            return until
        case ProbeUp() as up:
            limit = min(config.stale_after, CALL_TIMEOUT_S)
            due = _last_sign_of_life(state, up, readings) + limit
            # At slow polls a call may begin much later, and hang.
            return due if due > now or config.poll <= config.quick_poll else now + limit


def _fold(
    state: State, probe: ProbeUp, facts: ProbeFacts, seen: Observation
) -> tuple[State, list[Event]]:
    """Apply the probe's messages and its exit."""
    events = []
    now = seen.now
    if facts.inventory is not None:
        # Silence counts from now: initialising the driver may take longer than its limit.
        state = replace(state, probe=replace(probe, ready=True, since=now))
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
        state, pause = _down(state, reason, seen)
        fields = {"exit_code": facts.exit.code, "pause_s": pause}
        fields |= {"reason": facts.failed} if facts.failed is not None else {}
        state, blamed = _blame(state, facts, facts.exit.code, now)
        if blamed is not None and blamed.uuid is not None:
            left_out = state.suspects[blamed.uuid].until - now
            fields |= {"call": blamed.name, "left_out_s": left_out}
        gpu = blamed.uuid if blamed is not None else None
        events.append(Event(name="probe.exited", at=now, gpu=gpu, fields=fields))
    return state, events


def _blame(state: State, facts: ProbeFacts, code: int, now: float) -> tuple[State, Call | None]:
    """Exclude every GPU with a call in flight when the probe crashed.

    Any of them may be the cause, and would crash the next probe as well.

    Returns:
        The new state, and the latest call in flight, for the event.
    """
    if code not in CRASH_CODES:
        return state, None
    calls = [call for call in facts.calls if call.uuid is not None]
    last = {call.uuid: call for call in sorted(calls, key=lambda call: call.since)}
    for uuid, call in last.items():
        if uuid is not None:
            state = _suspect(state, uuid, call.name, now, crashed=True)
    return state, max(calls, key=lambda call: call.since, default=None)


def _down(state: State, reason: str, seen: Observation) -> tuple[State, float]:
    """Schedule the next probe; return the pause, which a spare one does not need."""
    now = seen.now
    lived = now - state.probe.since if isinstance(state.probe, ProbeUp) else 0.0
    failures, pause = next_pause(state.probe_failures, lived)
    if seen.spare_probe is not None and seen.spare_probe.ready:
        pause = 0.0
    down = ProbeDown(generation=state.probe.generation + 1, until=now + pause, reason=reason)
    return replace(state, probe=down, probe_failures=failures), pause


def _watch(
    state: State, up: ProbeUp, calls: tuple[Call, ...], seen: Observation, config: Config
) -> NodeStep:
    """Replace a probe that hangs in a call or is silent."""
    if not any(readable(state, gpu_state, seen.now) for gpu_state in state.gpu_states.values()):
        up = replace(up, unused_at=seen.now)
        state = replace(state, probe=up)
    stuck = [call for call in calls if _hangs(call, seen.now)]
    hung = min(stuck, key=lambda call: call.since, default=None)
    silent = seen.now - _last_sign_of_life(state, up, seen.readings)
    # All GPUs may be read at the slow poll; one that is held shows a stopped probe sooner.
    limit = config.stale_after + (config.poll if config.poll > config.quick_poll else 0.0)
    limit = limit if up.ready else INITIALISATION_TIMEOUT_S
    stopped = up.ready and _reads_no_held_gpu(state, up, calls, seen)
    if hung is None and silent <= limit and not stopped:
        return NodeStep(state=state)
    fields: dict[str, object] = {"silent_s": silent}
    if hung is not None:
        fields |= {"call": hung.name, "since_s": seen.now - hung.since}
        if hung.uuid is not None:
            state = _suspect(state, hung.uuid, hung.name, seen.now)
            fields["pause_s"] = state.suspects[hung.uuid].until - seen.now
    event = Event(name="probe.hung", at=seen.now, gpu=hung.uuid if hung else None, fields=fields)
    state, _ = _down(state, "it hung", seen)
    return NodeStep(state=state, actions=(KillProbe(generation=up.generation),), events=(event,))


def _reads_no_held_gpu(
    state: State, up: ProbeUp, calls: tuple[Call, ...], seen: Observation
) -> bool:
    """Check that no held GPU has been read for long, although no driver call explains that."""
    in_calls = {call.uuid for call in calls}
    blind = []
    for uuid, times in seen.watched.items():
        gpu_state = state.gpu_states[uuid]
        since = held_since(gpu_state)
        if since is None or uuid in in_calls or not readable(state, gpu_state, seen.now):
            continue
        last = max(since, up.since, state.stalled_at or up.since, times.probe)
        blind.append(seen.now - last > STOPPED_AFTER_S)
    return bool(blind) and all(blind)


def _hangs(call: Call, now: float) -> bool:
    limit = INITIALISATION_TIMEOUT_S if call.uuid is None else CALL_TIMEOUT_S
    return now - call.since > limit


def _suspect(state: State, uuid: str, call: str, now: float, *, crashed: bool = False) -> State:
    """Exclude a GPU, for longer each time."""
    before = state.suspects.get(uuid)
    strikes = before.strikes + 1 if before else 1
    pause = min(MAX_EXCLUSION_S, MIN_EXCLUSION_S * 2 ** (strikes - 1))
    suspect = Suspect(until=now + pause, strikes=strikes, call=call, crashed=crashed)
    return replace(state, suspects={**state.suspects, uuid: suspect})


def _last_sign_of_life(state: State, up: ProbeUp, readings: Mapping[str, Reading]) -> float:
    """Compute when the probe was last known to work; a stall of the supervisor counts as that."""
    stamps = [reading.at for uuid, reading in readings.items() if uuid in state.gpu_states]
    return max([up.since, up.unused_at, state.stalled_at or up.since, *stamps])
