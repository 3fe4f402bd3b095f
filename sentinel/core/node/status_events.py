"""Report the status of each GPU periodically, and the deciding rule when it changes. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.services import DEBUG
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event, process_fields, progress_fields, usage_fields
from sentinel.core.gpu.verdict import Verdict, by_stressor
from sentinel.core.gpu_state import GpuState
from sentinel.core.node import burnin, limits
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Step
from sentinel.core.stressor_state import Running, Starting
from sentinel.protocol.gpu import Reading


def explanations(state: State, seen: Observation) -> dict[str, Verdict]:
    """Return for each GPU the rule by which it is occupied or not.

    These are the verdicts about a start, and for a GPU with a stressor what that does. The rules
    and their times are in :mod:`sentinel.protocol.rules`.
    """
    found = {
        uuid: _explain(state, uuid, verdict)
        for uuid, verdict in limits.verdicts(state, seen).items()
    }
    # The time of a rule that is over although it still decides is not known any more.
    return {
        uuid: one if one.until is None or one.until > seen.now else replace(one, until=None)
        for uuid, one in found.items()
    }


def _explain(state: State, uuid: str, verdict: Verdict) -> Verdict:
    """Return what a stressor does that has not been stopped, or why there is none."""
    stressor = state.gpu_states[uuid].stressor
    if isinstance(stressor, Starting | Running):
        return by_stressor(stressor) or verdict
    if state.shutdown is not None:
        return limits.ending(state.shutdown)
    if not verdict.allowed:
        return verdict
    next_ = (
        "--dry-run starts no stressor" if state.config.dry_run else "its stressor is started next"
    )
    return replace(verdict, reason=f"{verdict.reason}; {next_}")


def explain(state: State, seen: Observation) -> Step[State]:
    """Report the deciding rule of each GPU for which it has changed."""
    if not state.config.explain:
        return Step(state)
    events = []
    explained = dict(state.explained)
    for uuid, verdict in explanations(state, seen).items():
        if explained.get(uuid) != verdict.rule:
            explained[uuid] = verdict.rule
            fields = {"allowed": verdict.allowed, **_rule_fields(verdict, seen.now)}
            events.append(gpu_event("gpu.verdict", state.gpu_states[uuid], seen.now, **fields))
    return Step(replace(state, explained=explained), events=tuple(events))


def log_checks(state: State, seen: Observation) -> Step[State]:
    """Report each full reading of each GPU once, at the debug level."""
    if state.config.log_level != DEBUG:
        return Step(replace(state, logged_checks={}) if state.logged_checks else state)
    events = []
    logged = dict(state.logged_checks)
    for uuid, gpu_state in state.gpu_states.items():
        reading = seen.readings.get(uuid)
        if reading is None or reading.memory is None or logged.get(uuid) == reading.processes_at:
            continue
        logged[uuid] = reading.processes_at
        fields = {
            "memory_used": reading.memory.used,
            "memory_total": reading.memory.total,
            "processes": None if reading.processes is None else len(reading.processes),
            "took_s": reading.took,
        }
        events.append(gpu_event("gpu.checked", gpu_state, seen.now, **fields))
    return Step(replace(state, logged_checks=logged), events=tuple(events))


def report(state: State, seen: Observation) -> Step[State]:
    """Report the status of each GPU if it is due."""
    if seen.now < state.next_status:
        return Step(state, due=state.next_status)
    verdicts = explanations(state, seen)
    events = tuple(
        _status_of(gpu_state, seen.readings.get(uuid), verdicts[uuid], seen.now)
        for uuid, gpu_state in state.gpu_states.items()
    )
    planned = tuple(burnin.progress_events(state, seen))
    due = seen.now + state.config.status_every
    return Step(replace(state, next_status=due), events=(*events, *planned), due=due)


def _why_identity(gpu_state: GpuState) -> str:
    """Describe how NVML lists the stressor, and what its list may lack."""
    identity = gpu_state.identity
    if identity.hidden is None:
        return identity.reason
    return f"{identity.reason}; foreign processes may not be listed: {identity.hidden}"


def _pace_of(running: Running) -> dict[str, object]:
    """Return the targets of the stressor's pace, and the share in force."""
    pacing = running.pacing
    return {
        "share": pacing.sent,
        "util_target": pacing.targets.util,
        "power_target_w": pacing.targets.power,
        "rests": pacing.targets.rests,
        "health": pacing.targets.health,
    }


def _rule_fields(verdict: Verdict, now: float) -> dict[str, object]:
    """Return the rule that decides about a GPU, and when it may decide otherwise."""
    left = None if verdict.until is None else max(0.0, verdict.until - now)
    return {"rule": verdict.rule, "reason": verdict.reason, "left_s": left}


def _status_of(gpu_state: GpuState, reading: Reading | None, verdict: Verdict, now: float) -> Event:
    fields: dict[str, object] = {
        "occupancy": type(gpu_state.occupancy).__name__.upper(),
        "stressor": type(gpu_state.stressor).__name__.upper(),
        **_rule_fields(verdict, now),
        "processes": process_fields(gpu_state),
        "identity": gpu_state.identity.mode.value,
        "identity_reason": _why_identity(gpu_state),
        **usage_fields(reading),
        "findings": gpu_state.findings.total,
    }
    if isinstance(gpu_state.stressor, Running):
        fields["running_s"] = now - gpu_state.stressor.since
        fields["note"] = gpu_state.stressor.note
        fields |= _pace_of(gpu_state.stressor)
        progress = gpu_state.stressor.progress
        if progress is not None and progress.seconds > 0:
            fields |= progress_fields(progress)
            fields["longest_quantum_s"] = progress.max_quantum_s
    return gpu_event("gpu.status", gpu_state, now, **fields)
