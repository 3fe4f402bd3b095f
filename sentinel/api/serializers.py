"""Convert the supervisor's views into the API's responses; times become ages and dates."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from sentinel.api.snapshots import Views
from sentinel.host.command_lines import CommandLines
from sentinel.host.names import USER_NAMES, node_name
from sentinel.host.procfs import read_stat, read_status
from sentinel.host.verified_store import LastVerdict, proof_of
from sentinel.protocol import api_types, views
from sentinel.protocol.commands import ApiSpec, Caller
from sentinel.protocol.gpu import GpuProcess, Telemetry

#: The shortest UUID in responses: `GPU-` and eight digits.
_MIN_UUID_LENGTH = 12

_COMMANDS = CommandLines()

#: Fields that are copied from a view into its response.
_COPIED = [field.name for field in dataclasses.fields(views.GpuFields)]


def status(spec: ApiSpec, shown: Views) -> api_types.Status:
    """Describe the daemon, its GPUs, reservations, allocations and sessions.

    Raises:
        ProblemError: The supervisor has not sent its state yet.
    """
    now = time.monotonic()
    return api_types.Status(
        daemon=daemon(spec, shown, now),
        gpus=tuple(gpu_status(view, shown, now) for view in shown.gpus),
        reservations=reservations(shown, now),
        queue=queue(shown, now),
        allocations=tuple(allocation(one, shown, now) for one in shown.host.allocations),
        sessions=tuple(session(one, shown, now) for one in shown.sessions),
    )


def daemon(spec: ApiSpec, shown: Views, now: float) -> api_types.DaemonInfo:
    """Describe the daemon as a whole."""
    host = shown.host
    return api_types.DaemonInfo(
        pid=host.pid,
        host=node_name(),
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
        journal=spec.journal,
        visible_devices=spec.visible_devices,
        age_s=_age(host.at, now) or 0.0,
        burnin=None if host.burnin is None else burnin(host.burnin, now),
        ending=host.ending,
    )


def gpu_status(view: views.GpuView, shown: Views, now: float) -> api_types.GpuStatus:
    """Describe one GPU."""
    proved = shown.verified.get(view.uuid)
    return api_types.GpuStatus(
        **{name: getattr(view, name) for name in _COPIED},
        gpu=_short(view.uuid, [other.uuid for other in shown.gpus]),
        since_s=_age(view.since, now),
        read_s=_age(view.read, now),
        until_s=_left(view.until, now),
        rule_until_s=_left(view.rule_until, now),
        processes=tuple(map(_process, view.processes)),
        stressor_user=None if view.pid is None else _user_of(view.pid),
        allocated_processes=tuple(map(_process, view.allocated_processes)),
        handover=_handover(view.handover, now),
        health_since_s=_age(view.health_since, now),
        telemetry=_telemetry(view.telemetry, now),
        burnin=None if view.burnin is None else api_types.BurninProgress(**vars(view.burnin)),
        verified=None if proved is None else proof_of(proved),
        verdict=_verdict(shown.verdicts.get(view.uuid)),
    )


def burnin(one: views.BurninRunView, now: float) -> api_types.BurninInfo:
    """Describe the burn-in."""
    return api_types.BurninInfo(
        id=one.id, plan=one.plan, gpus=one.gpus, since=_date(one.since, now), holder=_holder(one.by)
    )


def reservation(one: views.Reservation, shown: Views, now: float) -> api_types.ReservationInfo:
    """Describe one reservation, or a request with its place in the queue."""
    waiting = [request.id for request in shown.queue]
    return api_types.ReservationInfo(
        id=one.id,
        gpus=one.gpus,
        indices=_indices(one.gpus or one.named, shown),
        count=one.count,
        place=waiting.index(one.id) + 1 if one.id in waiting else 0,
        reason=one.reason,
        since=_date(one.since, now),
        until=_end(one.until, now),
        bound=one.bound,
        holder=_holder(one.by),
    )


def session(one: views.Session, shown: Views, now: float) -> api_types.SessionInfo:
    """Describe one session."""
    return api_types.SessionInfo(
        name=one.name,
        gpus=one.gpus,
        indices=_indices(one.gpus, shown),
        settings=one.settings,
        since=_date(one.since, now),
        until=_end(one.until, now),
        holder=_holder(one.by),
        suspended=one.suspended,
    )


def reservations(shown: Views, now: float) -> tuple[api_types.ReservationInfo, ...]:
    """Describe the reservations that have their GPUs."""
    return tuple(reservation(one, shown, now) for one in shown.host.reservations if one.gpus)


def queue(shown: Views, now: float) -> tuple[api_types.ReservationInfo, ...]:
    """Describe the requests that wait, in the order of the queue."""
    return tuple(reservation(request, shown, now) for request in shown.queue)


def allocation(one: views.Allocation, shown: Views, now: float) -> api_types.AllocationInfo:
    """Describe one allocation."""
    indices = {view.uuid: view.index for view in shown.gpus}
    return api_types.AllocationInfo(
        id=one.id,
        gpu=one.gpu,
        index=indices.get(one.gpu),
        size=one.size,
        since=_date(one.since, now),
        holder=_holder(one.by),
    )


def budget(view: views.GpuView, allocations: Iterable[views.Allocation]) -> api_types.MemoryBudget:
    """Compute the budget of one GPU from all ``allocations``."""
    sizes = [given.size for given in allocations if given.gpu == view.uuid]
    return api_types.MemoryBudget(
        gpu=view.uuid,
        index=view.index,
        total=view.memory_total,
        limit=view.budget,
        allocated=sum(sizes),
        available=max(0, view.budget - sum(sizes)),
        count=len(sizes),
    )


def _user_of(pid: int) -> str | None:
    """Name the user of a process; None if it has ended."""
    uids = read_status(pid, "Uid")
    return (USER_NAMES.get(int(uids[0])) or uids[0]) if uids else None


def _holder(by: Caller) -> api_types.Holder:
    """Describe a caller, with the name of its process while that exists."""
    process = read_stat(by.pid) if by.pid is not None else None
    if process is not None and process.started != by.started:  # the PID is in use again
        process = None
    return api_types.Holder(
        uid=by.uid,
        user=by.user or USER_NAMES.get(by.uid),  # a stored reservation has none
        pid=by.pid,
        name=process.name if process else None,
    )


def _process(process: GpuProcess) -> api_types.Process:
    return api_types.Process(
        pid=process.pid,
        kind=process.kind,
        memory=process.memory,
        name=process.name,
        user=process.user,
        command=None
        if process.started is None
        else _COMMANDS.get(process.pid, process.started, process.name),
    )


def _telemetry(telemetry: Telemetry | None, now: float) -> api_types.GpuTelemetry | None:
    if telemetry is None:
        return None
    fields = {name: value for name, value in vars(telemetry).items() if name != "at"}
    return api_types.GpuTelemetry(**fields, age_s=_age(telemetry.at, now) or 0.0)


def _handover(view: views.HandoverView | None, now: float) -> api_types.Handover | None:
    if view is None:
        return None
    fields = {name: value for name, value in vars(view).items() if name != "at"}
    return api_types.Handover(**fields, ago_s=_age(view.at, now) or 0.0)


def _verdict(last: LastVerdict | None) -> api_types.GpuVerdict | None:
    if last is None:
        return None
    return api_types.GpuVerdict(
        verdict=last.verdict, plan=last.plan, run=last.run, ended=last.ended
    )


def _age(at: float | None, now: float) -> float | None:
    """Compute an age in seconds, to the millisecond."""
    return None if at is None else round(max(0.0, now - at), 3)


def _left(until: float | None, now: float) -> float | None:
    """Compute the time until a moment in seconds, to the millisecond."""
    return None if until is None else round(max(0.0, until - now), 3)


def _indices(uuids: Iterable[str], shown: Views) -> tuple[int, ...]:
    """List the indices of GPUs, without those that are missing."""
    indices = {view.uuid: view.index for view in shown.gpus}
    return tuple(indices[uuid] for uuid in uuids if uuid in indices)


def _end(at: float | None, now: float) -> datetime | None:
    return None if at is None else _date(at, now)


def _date(at: float, now: float) -> datetime:
    """Convert a time of the monotonic clock into a date with its offset, to the second."""
    moment = datetime.fromtimestamp(time.time() + at - now, UTC).astimezone()
    return moment.replace(microsecond=0)


def _short(uuid: str, uuids: list[str]) -> str:
    """Shorten a UUID to a beginning that none of the other ``uuids`` has."""
    length = _MIN_UUID_LENGTH
    while sum(other.startswith(uuid[:length]) for other in uuids) > 1 and length < len(uuid):
        length += 1
    return uuid[:length]
