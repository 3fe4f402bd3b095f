"""Start, watch and replace the API process, the spare probe and the standby stressor. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.gpu_state import Starting
from sentinel.core.node.probe_supervision import INITIALISATION_TIMEOUT_S, next_pause
from sentinel.core.observation import ApiFacts, Observation, SpareFacts
from sentinel.core.state import ApiDown, ApiUp, ProbeUp, SpareProcess, State
from sentinel.core.step import (
    Action,
    Event,
    KillApi,
    KillSpareProbe,
    KillStandby,
    RequestReload,
    StartApi,
    StartSpareProbe,
    StartStandby,
    Step,
    upcoming,
)

#: An API process without a report for so long is replaced, in seconds; it reports once a second.
SILENCE_TIMEOUT_S = 10.0
#: The time limit of its start, in seconds: it imports a web server, maybe from a slow disk.
START_TIMEOUT_S = 60.0


#: A daemon that no client could reach for so long releases its GPUs, in seconds.
LOST_AFTER_S = 30.0
#: A daemon whose first API processes all failed, so many of them, ends.
MAX_FIRST_FAILURES = 3


def first_api(now: float) -> ApiDown:
    """Return the state before the first API process, which is due at once."""
    return ApiDown(generation=1, until=now)


def step_api(state: State, seen: Observation) -> Step[State]:
    """Apply the new facts about the API process, then take at most one step."""
    if seen.reload_requested and state.api is not None:
        state = replace(state, reload_requested=True)  # until one serves
    match state.api:
        case ApiDown(generation=generation, until=until):
            if state.shutdown is not None:
                return Step(state)
            if seen.now < until:
                return Step(state, due=upcoming(seen.now, until, _lost_at(state)))
            up = ApiUp(generation=generation, since=seen.now)
            start = StartApi(generation=generation)
            return Step(replace(state, api=up), actions=(start,), due=_timeout_at(up, state))
        case ApiUp() as up:
            facts = seen.api
            if facts is not None and facts.generation != up.generation:
                facts = None
            return _watch_api(state, up, facts, seen)
        case None:
            return Step(state)


def why_uncontrolled(state: State, now: float) -> str | None:
    """Explain why no client can control the stressors, if one must be able to; else None."""
    if state.api is None or not state.api_required:
        return None
    why = f": {state.api_failure}" if state.api_failure else ""
    if not state.served:
        return f"the API does not answer yet{why}"
    if now < _lost_at(state):
        return None
    return f"the API has not answered for {LOST_AFTER_S:.0f} s{why}"


def _lost_at(state: State) -> float:
    """Compute when no client has reached the daemon for too long."""
    return max(state.served_at, state.stalled_at or 0.0) + LOST_AFTER_S


def why_unreachable(state: State) -> str | None:
    """Explain why the API of a daemon will never start, or return None."""
    if not state.api_required or state.served or state.api_failures < MAX_FIRST_FAILURES:
        return None
    return f"the API cannot start: {state.api_failure}"


def _watch_api(state: State, up: ApiUp, facts: ApiFacts | None, seen: Observation) -> Step[State]:
    """Apply its reports; replace one that exited, sent garbage or is silent."""
    events: list[Event] = []
    if facts is not None:
        state, up, events = _fold_api(state, up, facts, seen.now)
    actions: list[Action] = []
    why = _why_replaced(state, up, facts, seen.now)
    if why is not None:
        if facts is None or facts.exit is None:
            actions.append(KillApi(generation=up.generation))
        state, down = _api_down(replace(state, api_failure=why), up, seen.now)
        failed = {"reason": why, "pause_s": down.until - seen.now}
        events.append(Event(name="service.failed", at=seen.now, fields=failed))
        return Step(state, actions=tuple(actions), events=tuple(events), due=down.until)
    if state.reload_requested and up.served_at is not None:
        state = replace(state, reload_requested=False)
        actions.append(RequestReload())
    due = upcoming(seen.now, _timeout_at(up, state), _lost_at(state))
    return Step(state, actions=tuple(actions), events=tuple(events), due=due)


def _fold_api(
    state: State, up: ApiUp, facts: ApiFacts, now: float
) -> tuple[State, ApiUp, list[Event]]:
    """Apply what an API process sent."""
    events: list[Event] = []
    if facts.serving:
        if up.served_at is None:
            events.append(Event(name="service.ready", at=now, fields={"start_s": now - up.since}))
        up = replace(up, served_at=now)
        state = replace(state, served=True, served_at=now, api_failure=None)
    if facts.failed is not None:
        up = replace(up, failed=facts.failed)
    for warning in facts.warnings:
        fields = {"about": warning.about, "text": warning.text}
        events.append(Event(name="service.warning", at=now, fields=fields))
    return (state if up is state.api else replace(state, api=up)), up, events


def _why_replaced(state: State, up: ApiUp, facts: ApiFacts | None, now: float) -> str | None:
    """Explain why an API process must be replaced, or return None."""
    if facts is not None and facts.exit is not None:
        return up.failed or f"it exited with code {facts.exit.code}"
    if facts is not None and facts.garbage is not None:
        return facts.garbage
    if now >= _timeout_at(up, state):
        return f"it was silent for {now - (up.served_at or up.since):.0f} s"
    return None


def _timeout_at(up: ApiUp, state: State) -> float:
    """Compute when its silence is too long; a stall of the supervisor does not count."""
    since = up.since + START_TIMEOUT_S if up.served_at is None else up.served_at + SILENCE_TIMEOUT_S
    return max(since, (state.stalled_at or 0.0) + SILENCE_TIMEOUT_S)


def _api_down(state: State, up: ApiUp, now: float) -> tuple[State, ApiDown]:
    """Schedule the next API process."""
    lived = now - up.since if up.served_at is not None else 0.0
    failures, pause = next_pause(state.api_failures, lived)
    down = ApiDown(generation=up.generation + 1, until=now + pause)
    return replace(state, api=down, api_failures=failures), down


#: A spare process is started so long after the probe was ready or the last spare one ended, in
#: seconds: both at once would make a start slower, and a broken driver ends both at once.
SPARE_PAUSE_S = 5.0
#: How long a standby stressor may take, in seconds: on an H200 host an import of torch from a cold
#: disk took 14 s, and at a low priority it waits for the jobs of the host.
STANDBY_TIMEOUT_S = 300.0


def step_spare_probe(state: State, seen: Observation) -> Step[State]:
    """Keep a spare probe beside a probe that works; none while the driver is released."""
    wanted = state.released is None and state.shutdown is None
    may_start = wanted and _probe_works(state, seen.now) and not state.config.dry_run
    orders, limit = (StartSpareProbe(), KillSpareProbe()), INITIALISATION_TIMEOUT_S
    spare, actions = _step_spare(
        state.spare_probe, seen.spare_probe, seen.now, (wanted, may_start), orders, limit
    )
    if spare != state.spare_probe:
        state = replace(state, spare_probe=spare)
    return Step(state, actions=actions, due=_spare_due(spare, state, seen.now))


def step_standby(state: State, seen: Observation) -> Step[State]:
    """Keep a standby stressor while the host has memory for it; prepared when no start runs."""
    wanted = (
        state.config.standby == "on"
        and not state.config.dry_run
        and seen.memory_left
        and state.released is None
        and state.shutdown is None
    )
    starting = any(isinstance(gpu.stressor, Starting) for gpu in state.gpu_states.values())
    # Not in the tick of another spawn: each takes milliseconds.
    spawned = state.spare_probe.running and seen.spare_probe is None
    may_start = wanted and _probe_works(state, seen.now) and not (starting or spawned)
    orders, limit = (StartStandby(), KillStandby()), STANDBY_TIMEOUT_S
    standby, actions = _step_spare(
        state.standby, seen.standby, seen.now, (wanted, may_start), orders, limit
    )
    events: tuple[Event, ...] = ()
    if standby.failures > state.standby.failures and seen.standby is not None:
        exit_ = seen.standby.exit
        fields: dict[str, object] = {
            "reason": seen.standby.failed
            or ("it ended" if exit_ is not None else "it was not ready in time"),
            "exit_code": exit_.code if exit_ is not None else None,
            "pause_s": standby.due - seen.now,
        }
        events = (Event(name="standby.failed", at=seen.now, fields=fields),)
    if standby != state.standby:
        state = replace(state, standby=standby)
    return Step(state, actions=actions, events=events, due=_spare_due(standby, state, seen.now))


def standby_used(now: float) -> SpareProcess:
    """Return the state of the standby stressor once it has become a stressor."""
    return SpareProcess(due=now + SPARE_PAUSE_S)


def _probe_works(state: State, now: float) -> bool:
    """Check that the probe has been ready for a while."""
    match state.probe:
        case ProbeUp(ready=True, since=since):
            return now >= since + SPARE_PAUSE_S
        case _:
            return False


def _spare_due(spare: SpareProcess, state: State, now: float) -> float:
    """Compute when a spare process may be started, or must be ready."""
    match state.probe:
        case ProbeUp(ready=True, since=since):
            return upcoming(now, spare.due, since + SPARE_PAUSE_S)
        case _:
            return upcoming(now, spare.due)


def _step_spare(
    spare: SpareProcess,
    facts: SpareFacts | None,
    now: float,
    may: tuple[bool, bool],
    orders: tuple[Action, Action],
    timeout_s: float,
) -> tuple[SpareProcess, tuple[Action, ...]]:
    """Take one step of a spare process.

    Args:
        spare: Its state.
        facts: The new facts about it; None without one.
        now: The time.
        may: Whether it may exist, and whether it may be started now.
        orders: The actions that start and kill it.
        timeout_s: How long it may take to be ready.
    """
    (may_exist, may_start), (start, kill) = may, orders
    if not spare.running:
        if not may_start or now < spare.due:
            return spare, ()
        return replace(spare, running=True, since=now, due=now + timeout_s), (start,)
    if not may_exist:
        return replace(spare, running=False, due=now + SPARE_PAUSE_S), (kill,)
    if facts is None:  # it has replaced a process
        return standby_used(now), ()
    late = not facts.ready and now >= spare.due
    if facts.exit is None and not late:
        return spare, ()
    failures, pause = next_pause(spare.failures, now - spare.since)
    failed = SpareProcess(due=now + SPARE_PAUSE_S + pause, failures=failures)
    return failed, (kill,) if late else ()
