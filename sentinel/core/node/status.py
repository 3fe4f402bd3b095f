"""Build what is shown of the state: status events, deciding rules and views. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sentinel.config.services import DEBUG
from sentinel.core import attribution, child_facts, faults, health
from sentinel.core.attribution import foreign_memory
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import Busy, GpuState, Handover, Running, Starting, Stopping, Unknown
from sentinel.core.node import sessions, starts
from sentinel.core.observation import Observation
from sentinel.core.ruling import Ruling, by_stressor
from sentinel.core.state import State, kept_free
from sentinel.core.step import Event, Step, gpu_event, process_fields, progress_fields, usage_fields
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.views import GpuView, HandoverView, HostView, Phase


def explanations(state: State, seen: Observation) -> dict[str, Ruling]:
    """Return for each GPU the rule by which it is occupied or not.

    These are the rulings about a start, and for a GPU with a stressor what that does. The rules
    and their times are in docs/reference/events.md.
    """
    found = {
        uuid: _explain(state, uuid, ruling) for uuid, ruling in starts.rulings(state, seen).items()
    }
    # The time of a rule that is over although it still decides is not known any more.
    return {
        uuid: ruling if (ruling.until or math.inf) > seen.now else replace(ruling, until=None)
        for uuid, ruling in found.items()
    }


def _explain(state: State, uuid: str, ruling: Ruling) -> Ruling:
    """Return what a stressor does that has not been stopped, or why there is none."""
    stressor = state.gpu_states[uuid].stressor
    if isinstance(stressor, Starting | Running):
        return by_stressor(state.gpu_states[uuid]) or ruling
    if state.shutdown is not None:
        return starts.ending(state.shutdown)
    if not ruling.allowed:
        return ruling
    next_ = (
        "--dry-run starts no stressor" if state.config.dry_run else "its stressor is started next"
    )
    return replace(ruling, reason=f"{ruling.reason}; {next_}")


def explain(state: State, seen: Observation) -> Step[State]:
    """Report the deciding rule of each GPU for which it has changed."""
    if not state.orders.explain:
        return Step(state)
    events = []
    explained = dict(state.explained)
    for uuid, ruling in explanations(state, seen).items():
        if explained.get(uuid) != ruling.rule:
            explained[uuid] = ruling.rule
            fields = {"allowed": ruling.allowed, **_rule_fields(ruling, seen.now)}
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
    rulings = explanations(state, seen)
    events = tuple(
        _status_of(gpu_state, seen.readings.get(uuid), rulings[uuid], seen.now)
        for uuid, gpu_state in state.gpu_states.items()
    )
    planned = tuple(burnin.progress_events(state, seen, rulings))
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


def _rule_fields(ruling: Ruling, now: float) -> dict[str, object]:
    """Return the rule that decides about a GPU, and when it may decide otherwise."""
    left = None if ruling.until is None else max(0.0, ruling.until - now)
    return {"rule": ruling.rule, "reason": ruling.reason, "left_s": left}


def _status_of(gpu_state: GpuState, reading: Reading | None, ruling: Ruling, now: float) -> Event:
    fields: dict[str, object] = {
        "occupancy": type(gpu_state.occupancy).__name__.upper(),
        "stressor": type(gpu_state.stressor).__name__.upper(),
        **_rule_fields(ruling, now),
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


@dataclass(frozen=True, kw_only=True)
class Host:
    """Facts that do not change while the daemon runs."""

    #: The PID of the daemon.
    pid: int
    #: The version of the driver, or a substitute for simulated GPUs.
    driver: str
    simulated: bool


def host_view(state: State, now: float, host: Host) -> HostView:
    """Build the view of the daemon as a whole."""
    return HostView(
        at=now,
        **vars(host),
        phase=_phase(state),
        workload=state.config.workload,
        gpus=tuple(state.gpu_states),
        reservations=tuple(state.reservations.values()),
        allocations=tuple(state.allocations.values()),
        burnin=burnin.run_view(state),
        expected_gpus=state.config.expect_gpus,
        known_faults=(
            *filter(None, map(faults.known, state.gpu_states.values())),
            *state.faults_elsewhere,
        ),
        ending=state.shutdown.reason if state.shutdown is not None else None,
    )


def gpu_views(state: State, seen: Observation) -> tuple[GpuView, ...]:
    """Build the view of each GPU."""
    rulings = explanations(state, seen)
    return tuple(
        _view(state, gpu_state, seen.readings.get(uuid), rulings[uuid], seen.now)
        for uuid, gpu_state in state.gpu_states.items()
    )


def _phase(state: State) -> Phase:
    held = any(gpu_state.is_held for gpu_state in state.gpu_states.values())
    if state.shutdown is not None:
        return Phase.STOPPING
    if state.driver_released is not None and not state.probe.running and state.probe.gone:
        return Phase.RELEASED
    if all(gpu_state.pause is not None for gpu_state in state.gpu_states.values()):
        return Phase.PAUSED
    if not state.served and state.api_required:
        return Phase.STARTING
    return Phase.OCCUPYING if held else Phase.WAITING


def _view(
    state: State,
    gpu_state: GpuState,
    reading: Reading | None,
    ruling: Ruling,
    now: float,
) -> GpuView:
    kept, own = kept_free(state, gpu_state), state.config.of(gpu_state.gpu.uuid)
    last = gpu_state.findings.last
    view = {
        "at": now,
        **vars(gpu_state.gpu),
        "occupancy": type(gpu_state.occupancy).__name__.upper(),
        "stressor": type(gpu_state.stressor).__name__.upper(),
        "admin": kept.admin if kept else "ENABLED",
        "until": kept.until if kept else None,
        "reservation": kept.reservation if kept else None,
        "session": sessions.name_for(state, gpu_state.gpu.uuid),
        "rule": ruling.rule,
        "reason": ruling.reason,
        "rule_until": ruling.until,
        "read": reading.at if reading is not None else None,
        "ended": gpu_state.ended if math.isfinite(gpu_state.ended) else None,
        "leaked": gpu_state.leak.load or gpu_state.leak.unattributed is not None,
        "findings": gpu_state.findings.total,
        "findings_acknowledged": gpu_state.findings.acknowledged,
        "faults": gpu_state.faults,
        "last_finding": None if last is None else f"{last.place.value} of {last.workload}",
        "since": kept.since if kept and kept.since else gpu_state.changed,
        "processes": _plain(gpu_state.occupancy.processes)
        if isinstance(gpu_state.occupancy, Busy)
        else (),
        "workload": own.workload,
        "handover": _handover(gpu_state.handover),
        "budget": attribution.budget(gpu_state, reading, own),
        "yields": gpu_state.yields,
        "starts": gpu_state.generation,
        "telemetry": gpu_state.telemetry,
        "multiplier": health.multiplier(gpu_state),
        "burnin": burnin.gpu_view(state, gpu_state, ruling.reason, now),
        "verified": child_facts.verified_work_of(gpu_state),
    }
    if gpu_state.health is not None and not isinstance(gpu_state.occupancy, Unknown):
        view |= {
            "health": gpu_state.health.level,
            "health_cause": health.cause(gpu_state.health),
            "health_since": gpu_state.health.since,
        }
    if reading is not None and reading.memory is not None:
        allocated = gpu_state.attribution.allocated
        view |= {
            "memory_foreign": foreign_memory(gpu_state, reading),
            "allocated_processes": _plain(p for p in reading.processes or () if p.pid in allocated),
            "memory_free": reading.memory.free,
            "outstanding": attribution.outstanding(gpu_state),
        }
    return GpuView(**{**view, **usage_fields(reading), **_stressor_fields(gpu_state)})


def _stressor_fields(gpu_state: GpuState) -> dict[str, object]:
    """Return the fields about a living stressor."""
    stressor = gpu_state.stressor
    if not isinstance(stressor, Starting | Running | Stopping):
        return {}
    fields: dict[str, object] = {
        "pid": gpu_state.child.pid if gpu_state.child is not None else None
    }
    if not isinstance(stressor, Running):
        return fields
    fields |= {"held": stressor.ready.held, "note": stressor.note, "share": stressor.pacing.sent}
    return fields | progress_fields(stressor.progress)


def _plain(processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
    """Drop the ancestors of processes, which views do not need."""
    return tuple(replace(process, ancestors=None) for process in processes)


def _handover(handover: Handover | None) -> HandoverView | None:
    if handover is None:
        return None
    return HandoverView(
        at=handover.evidence.at,
        evidence=handover.evidence.kind.value,
        exit=handover.exit,
        kill=handover.kill,
        memory_back=handover.memory_back,
    )
