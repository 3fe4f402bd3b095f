"""Convert the supervisor's views into the API's responses; times become ages and dates."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sentinel.api.snapshots import Views
from sentinel.host.lookups import COMMAND_LINES, USER_NAMES, node_name
from sentinel.host.procfs import read_stat, read_status
from sentinel.host.verified_store import proof_of
from sentinel.protocol import api_types, views
from sentinel.protocol.commands import ApiSpec, Caller
from sentinel.protocol.gpu import GpuProcess

#: The shortest UUID in responses: `GPU-` and eight digits.
_MIN_UUID_LENGTH = 12

#: A smaller difference of the clocks is that of the moments at which they are read.
_SAME_S = 0.1

T = TypeVar("T")


class _WallClock:
    """The wall clock, which shows one moment as the same date in every response."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def offset_s(self) -> float:
        """Return the wall clock minus the monotonic clock: the same until one is set."""
        offset_s = time.time() - time.monotonic()
        if abs(offset_s - self._offset_s) > _SAME_S:
            self._offset_s = offset_s
        return self._offset_s


_wall_clock = _WallClock()


def _like(kind: type[T], *sources: object, **others: Any) -> T:
    """Build a response with the fields that its sources have, too, and with all others."""
    names = {field.name for field in dataclasses.fields(kind)} - others.keys()  # type: ignore[arg-type]
    found = {
        name: getattr(source, name) for source in sources for name in names if hasattr(source, name)
    }
    return kind(**others, **found)


def _begun(
    kind: type[T], one: views.Grant | views.Session | views.BurninRunView, **others: Any
) -> T:
    """Describe what a client has begun: since when, and the client."""
    return _like(kind, one, since=_date(one.since), holder=_holder(one.by), **others)


def status(spec: ApiSpec, shown: Views) -> api_types.Status:
    """Describe the daemon, its GPUs, reservations, allocations and sessions.

    Raises:
        ProblemError: The supervisor has not sent its state yet.
    """
    now = time.monotonic()
    return api_types.Status(
        daemon=daemon(spec, shown, now),
        gpus=tuple(gpu_status(view, shown, now) for view in shown.gpus),
        reservations=reservations(shown),
        queue=queue(shown),
        allocations=allocations(shown),
        sessions=sessions(shown),
    )


def daemon(spec: ApiSpec, shown: Views, now: float) -> api_types.DaemonInfo:
    """Describe the daemon as a whole."""
    host = shown.host
    return _like(
        api_types.DaemonInfo,
        spec,
        host,
        host=node_name(),
        since=datetime.fromtimestamp(spec.began, UTC).astimezone(),
        forgotten=shown.forgotten(),
        age_s=_age(host.at, now) or 0.0,
        burnin=None if host.burnin is None else burnin(host.burnin),
    )


def gpu_status(view: views.GpuView, shown: Views, now: float) -> api_types.GpuStatus:
    """Describe one GPU."""
    proved, verdict = shown.verified.get(view.uuid), shown.verdicts.get(view.uuid)
    return _like(
        api_types.GpuStatus,
        view,
        gpu=_short(view.uuid, [other.uuid for other in shown.gpus]),
        since_s=_age(view.since, now),
        read_s=_age(view.read, now),
        until_s=_left(view.until, now),
        rule_until_s=_left(view.rule_until, now),
        processes=tuple(map(_process, view.processes)),
        stressor_user=None if view.pid is None else _user_of(view.pid),
        allocated_processes=tuple(map(_process, view.allocated_processes)),
        handover=view.handover
        and _like(api_types.Handover, view.handover, ago_s=_age(view.handover.at, now)),
        health_since_s=_age(view.health_since, now),
        telemetry=view.telemetry
        and _like(api_types.GpuTelemetry, view.telemetry, age_s=_age(view.telemetry.at, now)),
        burnin=view.burnin and _like(api_types.BurninProgress, view.burnin),
        verified=proved and proof_of(proved),
        verdict=verdict and _like(api_types.GpuVerdict, verdict),
    )


def burnin(one: views.BurninRunView) -> api_types.BurninInfo:
    """Describe the burn-in."""
    return _begun(api_types.BurninInfo, one)


def reservation(one: views.Reservation, shown: Views) -> api_types.ReservationInfo:
    """Describe one reservation, or a request with its place in the queue."""
    waiting = [request.id for request in shown.queue]
    return _begun(
        api_types.ReservationInfo,
        one,
        indices=_indices(one.gpus or one.named, shown),
        place=waiting.index(one.id) + 1 if one.id in waiting else 0,
        until=_date(one.until),
    )


def session(one: views.Session, shown: Views) -> api_types.SessionInfo:
    """Describe one session."""
    indices, until = _indices(one.gpus, shown), _date(one.until)
    return _begun(api_types.SessionInfo, one, indices=indices, until=until)


def reservations(shown: Views) -> tuple[api_types.ReservationInfo, ...]:
    """Describe the reservations that have their GPUs."""
    return tuple(reservation(held, shown) for held in shown.host.reservations if held.gpus)


def queue(shown: Views) -> tuple[api_types.ReservationInfo, ...]:
    """Describe the requests that wait, in the order of the queue."""
    return tuple(reservation(request, shown) for request in shown.queue)


def allocations(shown: Views) -> tuple[api_types.AllocationInfo, ...]:
    """Describe all allocations."""
    return tuple(allocation(granted, shown) for granted in shown.host.allocations)


def sessions(shown: Views) -> tuple[api_types.SessionInfo, ...]:
    """Describe all sessions."""
    return tuple(session(kept, shown) for kept in shown.sessions)


def allocation(one: views.Allocation, shown: Views) -> api_types.AllocationInfo:
    """Describe one allocation."""
    indices = {view.uuid: view.index for view in shown.gpus}
    return _begun(api_types.AllocationInfo, one, index=indices.get(one.gpu))


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
    command = None
    if process.started is not None:
        command = COMMAND_LINES.get((process.pid, process.started, process.name))
    return _like(api_types.Process, process, command=command)


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


def moment(at: float | None) -> datetime | None:
    """Convert a time of the monotonic clock into a date in UTC, the same in every response."""
    return None if at is None else datetime.fromtimestamp(at + _wall_clock.offset_s(), UTC)


def _date(at: float | None) -> datetime | None:
    """Convert a time of the monotonic clock into a date with its offset, to the second."""
    found = moment(at)
    return found and found.astimezone().replace(microsecond=0)


def _short(uuid: str, uuids: list[str]) -> str:
    """Shorten a UUID to a beginning that none of the other ``uuids`` has."""
    length = _MIN_UUID_LENGTH
    while sum(other.startswith(uuid[:length]) for other in uuids) > 1 and length < len(uuid):
        length += 1
    return uuid[:length]
