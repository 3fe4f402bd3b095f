"""Start, watch and replace the API process, the spare probe and the standby stressor. Pure.

One rule holds for each of these processes: it is started when it may be, must work in time, must
not be silent, and is replaced when it ends: at once, then after growing pauses. The probe, which
may hang in the driver, has further rules in :mod:`sentinel.core.node.probe_supervision`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from sentinel.core.gpu_state import Starting
from sentinel.core.observation import Observation, ProcessFacts
from sentinel.core.state import Process, State
from sentinel.core.step import Event, KillProcess, Role, SendTo, StartProcess, Step, upcoming
from sentinel.protocol.commands import ReloadConfig
from sentinel.units import format_exit

P = TypeVar("P", bound=Process)

#: The maximum pause before the next process, in seconds.
MAX_PAUSE_S = 30.0
#: A process that worked for so long resets the back-off, in seconds.
FORGIVE_AFTER_S = 60.0
#: An API process without a report for so long is replaced, in seconds; it reports once a second. So
#: long after a stall of the supervisor, no process is silent.
SILENCE_TIMEOUT_S = 10.0
#: The time limit of its start, in seconds: it imports a web server, maybe from a slow disk.
API_START_TIMEOUT_S = 60.0
#: A daemon that no client could reach for so long releases its GPUs, in seconds.
LOST_AFTER_S = 30.0
#: A daemon whose first API processes all failed, so many of them, ends.
MAX_FIRST_FAILURES = 3
#: Initialising the driver may be slow: 1 to 3 s a GPU where persistence mode is off.
INITIALISATION_TIMEOUT_S = 60.0
#: A spare probe is started so long after the probe was ready or the last spare one ended, in
#: seconds: both at once would make a start slower, and a broken driver ends both at once.
SPARE_PAUSE_S = 5.0
#: A start waits for a standby stressor that loads until so long after its spawn, in seconds. On an
#: H200 host an import of torch took 3.6 to 4.8 s; a stressor of its own would begin with it later.
STANDBY_WAIT_S = 6.0
#: How long a standby stressor may take, in seconds: on an H200 host an import of torch from a cold
#: disk took 14 s, and at a low priority it waits for the jobs of the host.
STANDBY_TIMEOUT_S = 300.0


# --- the rule of all processes ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """The terms of one process at this moment."""

    role: Role
    may_exist: bool
    may_start: bool
    #: How long it may take to work, and then be silent, in seconds.
    start_timeout_s: float
    silence_timeout_s: float = math.inf
    #: The least pause between two of them, in seconds.
    pause_s: float = 0.0


def started(process: P, now: float) -> P:
    """Return the state of a process that is spawned now."""
    return replace(process, running=True, works=False, since=now, failed=None)


def stopped(process: P, due: float, reason: str | None = None) -> P:
    """Return the state of a process that is gone, or is forgotten; the next is due then."""
    following = process.generation + 1
    return replace(
        process, running=False, works=False, generation=following, due=due, reason=reason
    )


def failed(process: P, reason: str, now: float, least_pause_s: float = 0.0) -> P:
    """Schedule the next process after a failure: at once, then after 1, 2, 4 ... 30 s."""
    forgiven = process.works and now - process.since >= FORGIVE_AFTER_S
    failures = 0 if forgiven else process.failures
    pause = 0.0 if failures == 0 else min(MAX_PAUSE_S, 2.0 ** (failures - 1))
    process = stopped(process, now + least_pause_s + pause, reason)
    return replace(process, failures=failures + 1)


def _supervise(
    process: Process, facts: ProcessFacts | None, terms: _Terms, state: State, now: float
) -> tuple[Step[Process], str | None]:
    """Take one step of a process; also return why it is replaced, or None."""
    if not process.running:
        if not terms.may_start or now < process.due:
            return Step(process, due=process.due if terms.may_start else math.inf), None
        start = StartProcess(role=terms.role, generation=process.generation)
        process = started(process, now)
        return Step(process, actions=(start,), due=_timeout_at(process, terms, state)), None
    kill = KillProcess(role=terms.role, generation=process.generation)
    if not terms.may_exist:
        return Step(stopped(process, now + terms.pause_s), actions=(kill,)), None
    if facts is not None and facts.generation == process.generation:
        if facts.works:
            process = replace(process, works=True, worked_at=now, reason=None)
        if facts.failed is not None:
            process = replace(process, failed=facts.failed)
    why = _why_replaced(process, facts, now, _timeout_at(process, terms, state))
    if why is None:
        return Step(process, due=_timeout_at(process, terms, state)), None
    ended = failed(process, why, now, terms.pause_s)
    gone = facts is not None and facts.exit is not None
    due = ended.due if terms.may_start else math.inf
    return Step(ended, actions=() if gone else (kill,), due=due), why


def _why_replaced(
    process: Process, facts: ProcessFacts | None, now: float, timeout_at: float
) -> str | None:
    """Explain why a process must be replaced, or return None."""
    if facts is not None and facts.exit is not None:
        return process.failed or f"it {format_exit(facts.exit.code)}"
    if facts is not None and facts.garbage is not None:
        return facts.garbage
    if now < timeout_at:
        return None
    last = process.worked_at if process.works else None
    return f"it was silent for {now - (last or process.since):.0f} s"


def _timeout_at(process: Process, terms: _Terms, state: State) -> float:
    """Compute when its silence is too long; a stall of the supervisor does not count."""
    until = process.since + terms.start_timeout_s
    if process.works and process.worked_at is not None:
        until = process.worked_at + terms.silence_timeout_s
    return max(until, (state.stalled_at or 0.0) + SILENCE_TIMEOUT_S)


# --- the API process -------------------------------------------------------------------------


def step_api(state: State, seen: Observation) -> Step[State]:
    """Apply the new facts about the API process, then take at most one step."""
    before, now = state.api, seen.now
    if before is None:
        return Step(state)
    terms = _Terms(
        role=Role.API,
        may_exist=True,
        may_start=state.shutdown is None,
        start_timeout_s=API_START_TIMEOUT_S,
        silence_timeout_s=SILENCE_TIMEOUT_S,
    )
    (api, actions, _, due), why = _supervise(before, seen.api, terms, state, now)
    events = []
    if api.works and not before.works:
        fields: dict[str, object] = {"start_s": now - api.since}
        events.append(Event(name="service.ready", at=now, fields=fields))
    for warning in seen.api.warnings if seen.api is not None else ():
        fields = {"about": warning.about, "text": warning.text}
        events.append(Event(name="service.warning", at=now, fields=fields))
    if why is not None:
        fields = {"reason": why, "pause_s": api.due - now}
        events.append(Event(name="service.failed", at=now, fields=fields))
    reload = seen.reload_requested or state.reload_requested  # until one serves
    if reload and api.works:
        reload, message = False, SendTo(role=Role.API, message=ReloadConfig())
        actions = (*actions, message)
    if (api, reload) != (state.api, state.reload_requested):
        state = replace(state, api=api, reload_requested=reload)
    due = min(due, upcoming(now, _lost_at(state)))
    return Step(state, actions=actions, events=tuple(events), due=due)


def why_uncontrolled(state: State, now: float) -> str | None:
    """Explain why no client can control the stressors, if one must be able to; else None."""
    if state.api is None or not state.api_required:
        return None
    why = f": {state.api.reason}" if state.api.reason else ""
    if not state.served:
        return f"the API does not answer yet{why}"
    if now < _lost_at(state):
        return None
    return f"the API has not answered for {LOST_AFTER_S:.0f} s{why}"


def why_unreachable(state: State) -> str | None:
    """Explain why the API of a daemon will never start, or return None."""
    api = state.api
    if api is None or not state.api_required or state.served or api.failures < MAX_FIRST_FAILURES:
        return None
    return f"the API cannot start: {api.reason}"


def _lost_at(state: State) -> float:
    """Compute when no client has reached the daemon for too long."""
    served_at = state.api.worked_at if state.api is not None else None
    return max(served_at or 0.0, state.stalled_at or 0.0) + LOST_AFTER_S


# --- the spare probe and the standby stressor ------------------------------------------------


def step_spare_probe(state: State, seen: Observation) -> Step[State]:
    """Keep a spare probe beside a probe that works; none while the driver is released."""
    may_exist = state.driver_released is None and state.shutdown is None
    probe_works = state.probe.works and seen.now >= state.probe.since + SPARE_PAUSE_S
    terms = _Terms(
        role=Role.SPARE_PROBE,
        may_exist=may_exist,
        may_start=may_exist and probe_works and not state.config.dry_run,
        start_timeout_s=INITIALISATION_TIMEOUT_S,
        pause_s=SPARE_PAUSE_S,
    )
    step, _ = _step_spare(state.spare_probe, seen.spare_probe, terms, state, seen.now)
    if step.state != state.spare_probe:
        state = replace(state, spare_probe=step.state)
    return Step(state, actions=step.actions, due=step.due)


def step_standby(state: State, seen: Observation) -> Step[State]:
    """Keep a standby stressor while the host has memory for it.

    It loads from the first tick on, beside the probe and the API process, and the next one as soon
    as one is used: at a low priority. Not beside a stressor that loads torch itself.
    """
    may_exist = (
        state.config.standby == "on"
        and not state.config.dry_run
        and seen.memory_left
        and state.driver_released is None
        and state.shutdown is None
    )
    loading = any(
        isinstance(gpu.stressor, Starting) and not gpu.launch.standby and not gpu.stressor.attaching
        for gpu in state.gpu_states.values()
    )
    # Not in the tick of another spawn: each takes milliseconds.
    spawned = (
        (state.spare_probe.running and seen.spare_probe is None)
        or seen.probe is None
        or state.last_start == seen.now
    )
    terms = _Terms(
        role=Role.STANDBY,
        may_exist=may_exist,
        may_start=may_exist and not (loading or spawned),
        start_timeout_s=STANDBY_TIMEOUT_S,
        pause_s=SPARE_PAUSE_S,
    )
    step, why = _step_spare(state.standby, seen.standby, terms, state, seen.now)
    events: tuple[Event, ...] = ()
    if why is not None and seen.standby is not None:
        exit_ = seen.standby.exit
        fields: dict[str, object] = {
            "reason": why,
            "exit_code": exit_.code if exit_ is not None else None,
            "pause_s": step.state.due - seen.now,
        }
        events = (Event(name="standby.failed", at=seen.now, fields=fields),)
    if step.state != state.standby:
        state = replace(state, standby=step.state)
    return Step(state, actions=step.actions, events=events, due=step.due)


def is_ready(spare: Process, facts: ProcessFacts | None) -> bool:
    """Check whether a spare process can replace another one now."""
    return facts is not None and facts.exit is None and (spare.works or facts.works)


def standby_due(state: State, now: float) -> float | None:
    """Compute until when a start waits for the standby stressor, which loads; None if it does not.

    A stressor of its own would have to import torch, too, and begin later.
    """
    standby = state.standby
    due = standby.since + STANDBY_WAIT_S
    return due if standby.running and not standby.works and now < due else None


def used(process: Process, now: float, pause_s: float = 0.0) -> Process:
    """Return the state of a spare process once it has replaced another one."""
    return replace(stopped(process, now + pause_s), failures=0)


def _step_spare(
    spare: Process, facts: ProcessFacts | None, terms: _Terms, state: State, now: float
) -> tuple[Step[Process], str | None]:
    """Take one step of a spare process; one that is missing has replaced another."""
    if spare.running and terms.may_exist and facts is None:
        return Step(used(spare, now, terms.pause_s), due=now + terms.pause_s), None
    step, why = _supervise(spare, facts, terms, state, now)
    probe_due = upcoming(now, state.probe.since + SPARE_PAUSE_S if state.probe.works else None)
    return step._replace(due=min(step.due, probe_due)), why
