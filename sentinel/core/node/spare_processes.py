"""Keep a spare probe, and a standby stressor, ready to replace another process at once. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import (
    Action,
    Event,
    KillSpareProbe,
    KillStandby,
    StartSpareProbe,
    StartStandby,
)
from sentinel.core.node.probe_supervision import INITIALISATION_TIMEOUT_S, next_pause
from sentinel.core.observation import Observation, SpareFacts
from sentinel.core.state import ProbeUp, SpareProcess, State
from sentinel.core.step import Step, upcoming
from sentinel.core.stressor_state import Starting

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
    spare, actions = _step(
        state.spare_probe, seen.spare_probe, seen.now, (wanted, may_start), orders, limit
    )
    if spare != state.spare_probe:
        state = replace(state, spare_probe=spare)
    return Step(state, actions=actions, due=_due(spare, state, seen.now))


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
    standby, actions = _step(
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
    return Step(state, actions=actions, events=events, due=_due(standby, state, seen.now))


def used(now: float) -> SpareProcess:
    """Return the state of the standby stressor once it has become a stressor."""
    return SpareProcess(due=now + SPARE_PAUSE_S)


def _probe_works(state: State, now: float) -> bool:
    """Check that the probe has been ready for a while."""
    match state.probe:
        case ProbeUp(ready=True, since=since):
            return now >= since + SPARE_PAUSE_S
        case _:
            return False


def _due(spare: SpareProcess, state: State, now: float) -> float:
    """Compute when a spare process may be started, or must be ready."""
    match state.probe:
        case ProbeUp(ready=True, since=since):
            return upcoming(now, spare.due, since + SPARE_PAUSE_S)
        case _:
            return upcoming(now, spare.due)


def _step(
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
        return used(now), ()
    late = not facts.ready and now >= spare.due
    if facts.exit is None and not late:
        return spare, ()
    failures, pause = next_pause(spare.failures, now - spare.since)
    failed = SpareProcess(due=now + SPARE_PAUSE_S + pause, failures=failures)
    return failed, (kill,) if late else ()
