"""What is said of each GPU though nothing happened: its state, and which rule decides. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import slot_event, who
from sentinel.core.gpu.occupancy import Verdict
from sentinel.core.node import limits
from sentinel.core.observation import Observation
from sentinel.core.state import Running, Slot, State
from sentinel.protocol.gpu import Reading


def explain(state: State, seen: Observation, config: Config) -> tuple[State, list[Event]]:
    """Say for each GPU which rule decides now, where that is another than was said before."""
    if not config.explain:
        return state, []
    events = []
    explained = dict(state.explained)
    for uuid, verdict in limits.verdicts(state, seen, config).items():
        if explained.get(uuid) != verdict.rule:
            explained[uuid] = verdict.rule
            fields = {"allowed": verdict.allowed, "rule": verdict.rule, "reason": verdict.reason}
            events.append(slot_event("gpu.verdict", state.slots[uuid], seen.now, **fields))
    return replace(state, explained=explained), events


def report(state: State, seen: Observation, config: Config) -> tuple[State, list[Event]]:
    """Say each GPU's state and rate now and then."""
    if seen.now < state.next_status:
        return state, []
    verdicts = limits.verdicts(state, seen, config)
    events = [
        _status_of(slot, seen.readings.get(uuid), verdicts[uuid], seen.now)
        for uuid, slot in state.slots.items()
    ]
    return replace(state, next_status=seen.now + config.status_every), events


def _why_identity(slot: Slot) -> str:
    """Return how it is known who is who on this GPU, and what may be missing."""
    known = slot.identity
    if known.hidden is None:
        return known.reason
    return f"{known.reason}; other people's processes may not be listed: {known.hidden}"


def _pace_of(running: Running) -> dict[str, object]:
    """Return how hard the stressor is to work, and does."""
    pacing = running.pacing
    return {
        "share": pacing.sent,
        "util_target": pacing.targets.util,
        "power_target_w": pacing.targets.power,
        "rests": pacing.targets.rests,
        "health": pacing.targets.health,
    }


def _status_of(slot: Slot, reading: Reading | None, verdict: Verdict, now: float) -> Event:
    fields: dict[str, object] = {
        "occupancy": type(slot.occupancy).__name__.upper(),
        "stressor": type(slot.stressor).__name__.upper(),
        "rule": verdict.rule,
        "reason": verdict.reason,
        "by": who(slot),
        "identity": slot.identity.mode.value,
        "identity_reason": _why_identity(slot),
        "memory_used": reading.memory.used if reading and reading.memory else None,
        "utilization": reading.utilization if reading else None,
        "power_w": reading.power if reading else None,
        "temperature_c": reading.temperature if reading else None,
        "sm_clock_mhz": reading.sm_clock if reading else None,
        "findings": slot.findings.total,
    }
    if isinstance(slot.stressor, Running):
        fields["rule"] = fields["reason"] = "running"
        fields["running_s"] = now - slot.stressor.since
        fields["note"] = slot.stressor.note
        fields |= _pace_of(slot.stressor)
        progress = slot.stressor.progress
        if progress is not None and progress.seconds > 0:
            fields["iterations_per_s"] = progress.iterations / progress.seconds
            fields["flops_per_s"] = progress.flops / progress.seconds
            fields["bytes_per_s"] = progress.bytes / progress.seconds
            fields["checks"] = progress.checks
            fields["errors"] = progress.errors
            fields["longest_quantum_s"] = progress.longest_quantum
    return slot_event("gpu.status", slot, now, **fields)
