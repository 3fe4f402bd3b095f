"""Build the views of the state that the API process publishes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.plan import Plan
from sentinel.core.burnin_state import BurninRun
from sentinel.core.events import progress_fields, usage_fields
from sentinel.core.gpu import allocations, health, verified_work
from sentinel.core.gpu.attribution import foreign_memory
from sentinel.core.gpu.verdict import Verdict
from sentinel.core.gpu_state import Busy, GpuState, Unknown
from sentinel.core.node import burnin, sessions
from sentinel.core.node.admin import admin_hold
from sentinel.core.node.status_events import explanations
from sentinel.core.observation import Observation
from sentinel.core.state import ProbeDown, State
from sentinel.core.stressor_state import Handover, Running, Starting, Stopping
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.views import (
    BurninFields,
    BurninRunView,
    GpuView,
    HandoverView,
    HostView,
    Phase,
)


class Host:
    """Facts that do not change while the daemon runs.

    Args:
        pid: The PID of the daemon.
        driver: The version of the driver, or a substitute for simulated GPUs.
        simulated: Whether the GPUs are simulated.
    """

    def __init__(self, *, pid: int, driver: str, simulated: bool) -> None:
        self.pid = pid
        self.driver = driver
        self.simulated = simulated


def host_view(state: State, now: float, host: Host) -> HostView:
    """Build the view of the daemon as a whole."""
    return HostView(
        at=now,
        pid=host.pid,
        phase=_phase(state),
        driver=host.driver,
        simulated=host.simulated,
        workload=state.config.workload,
        gpus=tuple(state.gpu_states),
        reservations=tuple(state.reservations.values()),
        allocations=tuple(
            allocation
            for gpu_state in state.gpu_states.values()
            for allocation in gpu_state.allocations.values()
        ),
        burnin=_run_view(state.burnin_run),
        ending=state.shutdown.reason if state.shutdown is not None else None,
    )


def gpu_views(state: State, seen: Observation) -> tuple[GpuView, ...]:
    """Build the view of each GPU."""
    verdicts = explanations(state, seen)
    return tuple(
        _view(state, gpu_state, seen.readings.get(uuid), verdicts[uuid], seen.now)
        for uuid, gpu_state in state.gpu_states.items()
    )


def _phase(state: State) -> Phase:
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    held = any(isinstance(stressor, Starting | Running | Stopping) for stressor in stressors)
    if state.shutdown is not None:
        return Phase.STOPPING
    if state.released is not None and isinstance(state.probe, ProbeDown) and state.probe.gone:
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
    verdict: Verdict,
    now: float,
) -> GpuView:
    hold, own = admin_hold(state, gpu_state), state.config.of(gpu_state.gpu.uuid)
    last = gpu_state.findings.last
    view = {
        "at": now,
        "uuid": gpu_state.gpu.uuid,
        "index": gpu_state.gpu.index,
        "name": gpu_state.gpu.name,
        "pci_bus_id": gpu_state.gpu.pci_bus_id,
        "memory_total": gpu_state.gpu.memory_total,
        "serial": gpu_state.gpu.serial,
        "occupancy": type(gpu_state.occupancy).__name__.upper(),
        "stressor": type(gpu_state.stressor).__name__.upper(),
        "admin": hold.admin if hold else "ENABLED",
        "until": hold.until if hold else None,
        "reservation": hold.reservation if hold else None,
        "session": sessions.name_for(state, gpu_state.gpu.uuid),
        "rule": verdict.rule,
        "reason": verdict.reason,
        "rule_until": verdict.until,
        "read": reading.at if reading is not None else None,
        "ended": gpu_state.ended if math.isfinite(gpu_state.ended) else None,
        "leaked": gpu_state.leak.load or gpu_state.leak.unattributed is not None,
        "findings": gpu_state.findings.total,
        "findings_acknowledged": gpu_state.findings.acknowledged,
        "last_finding": None if last is None else f"{last.place.value} of {last.workload}",
        "since": hold.since if hold and hold.since else gpu_state.changed,
        "processes": _plain(gpu_state.occupancy.processes)
        if isinstance(gpu_state.occupancy, Busy)
        else (),
        "workload": own.workload,
        "handover": _handover(gpu_state.handover),
        "budget": allocations.budget(gpu_state, reading, own),
        "yields": gpu_state.yields,
        "starts": gpu_state.generation,
        "telemetry": gpu_state.telemetry,
        "multiplier": health.multiplier(gpu_state),
        "burnin": _burnin_view(state, gpu_state, own.plan, hold.reason if hold else None),
        "verified": verified_work.work_of(gpu_state),
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
            "outstanding": allocations.outstanding(gpu_state),
        }
    return GpuView(**{**view, **usage_fields(reading), **_stressor_fields(gpu_state)})  # type: ignore[arg-type]


def _stressor_fields(gpu_state: GpuState) -> dict[str, object]:
    """Return the fields about a living stressor."""
    stressor = gpu_state.stressor
    if not isinstance(stressor, Starting | Running | Stopping):
        return {}
    fields: dict[str, object] = {"pid": stressor.child.pid if stressor.child is not None else None}
    if not isinstance(stressor, Running):
        return fields
    fields |= {"held": stressor.ready.held, "note": stressor.note, "share": stressor.pacing.sent}
    return fields | progress_fields(stressor.progress)


def _run_view(run: BurninRun | None) -> BurninRunView | None:
    if run is None:
        return None
    return BurninRunView(
        id=run.id, plan=run.plan.name, gpus=run.gpus, by=run.by, since=run.since, bound=run.bound
    )


def _burnin_view(
    state: State, gpu_state: GpuState, plan: Plan | None, hold: str | None
) -> BurninFields | None:
    """Build the view of a GPU's plan; it is kept until the plans of all GPUs are over."""
    run = state.burnin_run
    if run is not None and gpu_state.gpu.uuid in run.gpus:
        plan, done = run.plan, run.done.get(gpu_state.gpu.uuid)
        gpu_state = gpu_state if done is None else replace(gpu_state, burnin=done)
    return None if plan is None else burnin.view_of(gpu_state, plan, hold)


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
