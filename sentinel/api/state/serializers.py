"""Makes what clients get of what the supervisor showed; times become ages and dates."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from sentinel.api.schemas import status as schemas
from sentinel.api.state.snapshots import Views
from sentinel.host.procfs import read_stat
from sentinel.protocol import views as protocol_views
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import ServiceSpec
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.telemetry import Telemetry

#: How much of a UUID is shown to people, if that is enough: `GPU-` and eight digits.
_SHORT = 12

#: Fields of a view that are shown under another name, or in another way.
_OTHERWISE = {
    "at",
    "since",
    "read",
    "until",
    "processes",
    "allocated_processes",
    "handover",
    "health_since",
    "telemetry",
    "ended",
    "leaked",
}


def status(spec: ServiceSpec, views: Views) -> schemas.Status:
    """Return all there is to see.

    Raises:
        ProblemError: Nothing was shown yet.
    """
    now = time.monotonic()
    return schemas.Status(
        daemon=daemon(spec, views, now),
        gpus=[gpu_state(view, views, now) for view in views.gpus],
        reservations=[reservation(held, views, now) for held in views.host.reservations],
        allocations=[allocation(given, views, now) for given in views.host.allocations],
    )


def daemon(spec: ServiceSpec, views: Views, now: float) -> schemas.Daemon:
    """Return what clients get of the daemon as a whole."""
    host = views.host
    return schemas.Daemon(
        pid=host.pid,
        host=os.uname().nodename,
        version=spec.version,
        phase=host.phase,
        since=datetime.fromtimestamp(spec.began, UTC).astimezone(),
        driver=host.driver,
        simulated=host.simulated,
        workload=host.workload,
        socket=spec.socket,
        tcp=spec.tcp,
        token=spec.token,
        log=spec.log,
        age_s=_age(host.at, now) or 0.0,
        ending=host.ending,
    )


def gpu_state(view: protocol_views.GpuView, views: Views, now: float) -> schemas.GpuState:
    """Return what clients get of one GPU."""
    plain = {name: value for name, value in vars(view).items() if name not in _OTHERWISE}
    return schemas.GpuState(
        **plain,
        gpu=_short(view.uuid, [other.uuid for other in views.gpus]),
        since_s=_age(view.since, now),
        read_s=_age(view.read, now),
        until_s=None if view.until is None else round(max(0.0, view.until - now), 3),
        processes=[_process(process) for process in view.processes],
        allocated_processes=[_process(process) for process in view.allocated_processes],
        handover=_handover(view.handover, now),
        health_since_s=_age(view.health_since, now),
        telemetry=_telemetry(view.telemetry, now),
    )


def reservation(held: protocol_views.Reservation, views: Views, now: float) -> schemas.Reservation:
    """Return what clients get of one reservation."""
    indices = {view.uuid: view.index for view in views.gpus}
    return schemas.Reservation(
        id=held.id,
        gpus=list(held.gpus),
        indices=[indices[uuid] for uuid in held.gpus if uuid in indices],
        reason=held.reason,
        since=_date(held.since, now),
        until=None if held.until is None else _date(held.until, now),
        bound=held.bound,
        holder=_holder(held.by),
    )


def allocation(given: protocol_views.Allocation, views: Views, now: float) -> schemas.Allocation:
    """Return what clients get of memory that was promised."""
    indices = {view.uuid: view.index for view in views.gpus}
    return schemas.Allocation(
        id=given.id,
        gpu=given.gpu,
        index=indices.get(given.gpu),
        size=given.size,
        since=_date(given.since, now),
        holder=_holder(given.by),
    )


def _holder(by: Caller) -> schemas.Holder:
    """Return who it is, by the name of the process as long as that is there."""
    process = read_stat(by.pid) if by.pid is not None else None
    if process is not None and process.started != by.started:  # another one of this number
        process = None
    return schemas.Holder(uid=by.uid, pid=by.pid, name=process.name if process else None)


def _process(process: GpuProcess) -> schemas.Process:
    return schemas.Process(
        pid=process.pid,
        kind=process.kind,
        memory=process.memory,
        name=process.name,
        user=process.user,
    )


def _telemetry(told: Telemetry | None, now: float) -> schemas.Telemetry | None:
    if told is None:
        return None
    fields = {name: value for name, value in vars(told).items() if name != "at"}
    return schemas.Telemetry(**fields, age_s=_age(told.at, now) or 0.0)


def _handover(view: protocol_views.HandoverView | None, now: float) -> schemas.Handover | None:
    if view is None:
        return None
    return schemas.Handover(
        ago_s=_age(view.at, now) or 0.0,
        evidence=view.evidence,
        exit=view.exit,
        kill=view.kill,
        memory_back=view.memory_back,
    )


def _age(at: float | None, now: float) -> float | None:
    """Return how many seconds ago something was, to the millisecond."""
    return None if at is None else round(max(0.0, now - at), 3)


def _date(at: float, now: float) -> datetime:
    """Return a time of the monotonic clock as a date with an offset, to the second."""
    moment = datetime.fromtimestamp(time.time() + at - now, UTC).astimezone()
    return moment.replace(microsecond=0)


def _short(uuid: str, all_of_them: list[str]) -> str:
    """Return the beginning of a UUID that names this GPU and no other."""
    length = _SHORT
    while sum(other.startswith(uuid[:length]) for other in all_of_them) > 1 and length < len(uuid):
        length += 1
    return uuid[:length]
