"""Reservations: commands, leases, and the queue of the requests that wait for GPUs. Pure.

A request is granted for a lease of some seconds, and so is its place in the queue. The API process
extends the lease while the client waits, and ends it once the answer is stored. So what no client
has been told ends by itself, whichever process has died.

Each GPU goes to the first request in the queue that can use it: one for named GPUs can use these,
one for a number of GPUs can use every GPU. So a later request is served earlier only on GPUs that
no request before it can use, and delays none. A large request is not passed by smaller ones: how
long foreign processes run is not known, so every GPU that a smaller one took could be the one that
the large one needs next. GPUs that a request still has to wait for are not kept free meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.core import health
from sentinel.core.gpu_state import Busy, GpuState, Idle, Stopped, Unknown
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_owner,
    check_places,
    check_seconds,
    names_of,
    not_found,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State, reservation_of
from sentinel.core.step import Event, Step, gpu_event, upcoming
from sentinel.protocol.commands import LEASE_S, Caller, CancelReservation, Extend, Refusal, Reserve
from sentinel.protocol.places import Places
from sentinel.protocol.views import Reservation
from sentinel.units import format_indices

#: The limit of all reservations together.
_MAX_RESERVATIONS = 256
#: The limit of the requests that wait: each tick compares every one with all before it.
QUEUE = Places(48, "requests in the queue", "their users and administrators")
#: The limit of the characters of a reason.
_MAX_REASON_LENGTH = 200
#: An answer lists at most so many allocations.
_MAX_LISTED = 10
#: And so many reasons; GPUs with the same one are named together.
_MAX_REASONS = 4


# --- commands --------------------------------------------------------------------------------


def reserve(state: State, command: Reserve, seen: Observation) -> Accepted:
    """Grant a request, or append it to the queue; the same request again has the same answer."""
    now = seen.now
    request = Reservation(
        id=command.id,
        named=command.gpus,
        count=command.count or len(command.gpus),
        reason=command.reason,
        by=command.by,
        since=now,
        seconds=command.seconds,
        bound=command.bound,
        lease=now + LEASE_S,
    )
    known = state.reservations.get(command.id)
    if known is not None and not _is_same(known, request):
        raise RefusedError(Refusal.CONFLICT, f"the id {command.id!r} is in use")
    if known is not None:
        return Accepted(_with(state, _extended(known, now)), _answer(state, known), known.gpus)
    check_gpus(state, command.gpus)
    check_seconds(command.seconds)
    _check_reservation(state, command)
    gpus, why = choose(state, request, claims(state))
    if not gpus and command.wait:
        return _enqueue(state, request, why)
    if not gpus:
        raise RefusedError(Refusal.CONFLICT, why)
    text = f"reserved {names_of(state, gpus)}"
    return Accepted(_grant(state, request, gpus, now), text, gpus)


def _is_same(known: Reservation, request: Reservation) -> bool:
    """Check whether a request is that of a known reservation, sent again by the same user."""
    return _wish(known) == _wish(request)


def _wish(request: Reservation) -> tuple[object, ...]:
    """Return what a client has asked for, and who it is: the process only where it matters."""
    by = request.by
    process = (by.pid, by.started) if request.bound else None
    wish = (request.named, request.count, request.seconds, request.reason, request.bound)
    return (*wish, by.account, process)


def _check_reservation(state: State, command: Reserve) -> None:
    """Refuse an invalid reservation, or one too many."""
    by = command.by
    wrong = None
    if len(state.reservations) >= _MAX_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        raise RefusedError(Refusal.CONFLICT, text)
    if bool(command.gpus) == bool(command.count) or command.count < 0:
        wrong = "name either GPUs or their number"
    elif len(set(command.gpus)) != len(command.gpus):
        wrong = "a GPU is named twice"
    elif command.count > len(state.gpu_states):
        wrong = f"{command.count} GPUs are requested, and there are {len(state.gpu_states)}"
    elif len(command.reason) > _MAX_REASON_LENGTH or not command.reason.isprintable():
        wrong = f"a reason is one line of at most {_MAX_REASON_LENGTH} characters"
    elif command.bound and (by.pid is None or by.started is None):
        wrong = (
            "the client process is not visible here, so nothing can be bound to it; give a duration"
        )
    if wrong is not None:
        raise RefusedError(Refusal.INVALID, wrong)


def extend(state: State, command: Extend, seen: Observation) -> Accepted:
    """Extend the lease of a reservation or a request, or end it: only what is granted is kept."""
    known = state.reservations.get(command.id)
    if known is None or (command.kept and not known.gpus):
        raise not_found("reservation", command.id, state.reservations)
    known = replace(known, lease=None) if command.kept else _extended(known, seen.now)
    return Accepted(_with(state, known), f"reservation {command.id} lasts", known.gpus)


def cancel(state: State, command: CancelReservation, seen: Observation) -> Accepted:
    """End a reservation, or take a request out of the queue."""
    known = state.reservations.get(command.id)
    if known is None:
        raise not_found("reservation", command.id, state.reservations)
    what = f"{'reservation' if known.gpus else 'request'} {command.id}"
    check_owner(command.by, known.by, what)
    text = f"{what} is over" if known.gpus else _why_waiting(state, known)
    return Accepted(_end(state, known, command.by, seen.now), text, known.gpus)


# --- leases and ends -------------------------------------------------------------------------


def expire(state: State, seen: Observation) -> Step[State]:
    """End the reservations and requests whose time or lease is over."""
    step, now = Step(state), seen.now
    for known in state.reservations.values():
        if any(end is not None and now >= end for end in (known.until, known.lease)):
            step = step.then(_end, known, None, now)
    left = step.state.reservations.values()
    return step._replace(due=min((_due(known, now) for known in left), default=math.inf))


def _due(known: Reservation, now: float) -> float:
    """Compute when a reservation or its lease ends."""
    return upcoming(now, known.until, known.lease)


def _extended(known: Reservation, now: float) -> Reservation:
    """Extend the lease, if there is one."""
    return known if known.lease is None else replace(known, lease=now + LEASE_S)


def _end(state: State, known: Reservation, by: Caller | None, now: float) -> Step[State]:
    """Remove a reservation or a request; ``by`` is None if its time is over."""
    left = {id_: other for id_, other in state.reservations.items() if id_ != known.id}
    fields = {"id": known.id, "by": caller_fields(by)}
    if not known.gpus:
        left_queue = {**fields, "waited_s": now - known.since}
        event = Event(name="reservation.left", at=now, fields=left_queue)
        return Step(replace(state, reservations=left), events=(event,))
    events = [
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, **fields)
        for uuid in known.gpus
        if uuid in state.gpu_states
    ]
    return Step(replace(state, reservations=left), events=tuple(events))


def _with(state: State, known: Reservation) -> Step[State]:
    """Replace or append a reservation."""
    return Step(replace(state, reservations={**state.reservations, known.id: known}))


# --- the queue -------------------------------------------------------------------------------


def serve(state: State, seen: Observation) -> Step[State]:
    """Serve the requests whose GPUs are available, unless the daemon is shutting down."""
    step = Step(state)
    for request in _waiting(state) if state.shutdown is None else ():
        gpus, _ = choose(step.state, request, claims(step.state, before=request.id))
        if gpus:
            step = step.then(_grant, request, gpus, seen.now)
    return step


def claims(state: State, before: str | None = None) -> dict[str, str]:
    """Map each GPU to the first waiting request that can use it, of those before ``before``."""
    claimed: dict[str, str] = {}
    for request in _waiting(state):
        if request.id == before:
            break
        for uuid in request.named or state.gpu_states:
            claimed.setdefault(uuid, request.id)
    return claimed


def _waiting(state: State) -> Iterator[Reservation]:
    """Yield the requests in the queue."""
    return (request for request in state.reservations.values() if not request.gpus)


def _enqueue(state: State, request: Reservation, why: str) -> Accepted:
    """Append a valid request for GPUs that are not available, because of ``why``."""
    by = request.by
    users = [waiting.by.account for waiting in _waiting(state)]
    check_places(QUEUE, users, by, why)
    step = _with(state, request)
    fields = {
        "id": request.id,
        "reason": request.reason,
        "count": request.count,
        "place": len(users) + 1,
        "why": why,
        "by": caller_fields(by),
    }
    event = Event(name="reservation.queued", at=request.since, fields=fields)
    text = f"{_answer(step.state, request)}: {why}"
    return Accepted(step._replace(events=(event,)), text)


def _answer(state: State, request: Reservation) -> str:
    """Describe what a request has: its GPUs, or its place."""
    if request.gpus:
        return f"reserved {names_of(state, request.gpus)}"
    return f"waits at place {_place(state, request.id)}"


def _why_waiting(state: State, request: Reservation) -> str:
    """Explain why a request still waits, and at which place."""
    _, why = choose(state, request, claims(state, before=request.id))
    place = _place(state, request.id)
    return f"{why or 'the GPUs were not available'}; place {place} in the queue"


def _place(state: State, id_: str) -> int:
    """Count the requests that wait up to this one."""
    return [request.id for request in _waiting(state)].index(id_) + 1


# --- the choice of GPUs ----------------------------------------------------------------------


def choose(
    state: State, request: Reservation, claims: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Choose the GPUs of a valid request.

    Args:
        state: The state.
        request: The request.
        claims: The GPUs of earlier requests in the queue, with the ids of these.

    Returns:
        The UUIDs, or none and why too few GPUs are available.
    """
    blocked = {
        uuid: reason
        for uuid in request.named or state.gpu_states
        if (reason := _why_not(state, state.gpu_states[uuid], claims)) is not None
    }
    why = _summary(list(blocked.values()))
    if request.named:
        return ((), why) if blocked else (request.named, "")
    free = [gpu_state for uuid, gpu_state in state.gpu_states.items() if uuid not in blocked]
    if len(free) < request.count:
        return (), f"{len(free)} of {request.count} GPUs can be reserved: {why}"
    free.sort(key=_preference)
    return tuple(gpu_state.gpu.uuid for gpu_state in free[: request.count]), ""


def _grant(state: State, request: Reservation, gpus: tuple[str, ...], now: float) -> Step[State]:
    """Reserve GPUs; the lease goes on."""
    until = None if request.seconds is None else now + request.seconds
    fields = {
        "id": request.id,
        "reason": request.reason,
        "for_s": request.seconds,
        "bound": request.bound,
        "waited_s": now - request.since,
        "by": caller_fields(request.by),
    }
    events = [gpu_event("gpu.reserved", state.gpu_states[uuid], now, **fields) for uuid in gpus]
    granted = replace(request, gpus=gpus, since=now, until=until)
    return _with(state, granted)._replace(events=tuple(events), due=_due(granted, now))


def _preference(gpu_state: GpuState) -> tuple[float, bool, int]:
    """Sort key: coolest, then free, then lowest index."""
    held = not isinstance(gpu_state.stressor, Stopped)
    return -health.multiplier(gpu_state), held, gpu_state.gpu.index


@dataclass(frozen=True)
class _Reason:
    """Why one GPU cannot be reserved."""

    index: int
    #: What GPUs with the same reason share.
    text: str
    #: What is added for a GPU that is alone with its reason.
    more: str = ""


def _summary(reasons: Sequence[_Reason]) -> str:
    """Describe why GPUs cannot be reserved: those with the same reason together."""
    groups: dict[str, list[_Reason]] = {}
    for reason in reasons:
        groups.setdefault(reason.text, []).append(reason)
    parts = []
    for text, group in list(groups.items())[:_MAX_REASONS]:
        alone = len(group) == 1
        name = f"GPU {group[0].index} is" if alone else f"GPUs {_indices(group)} are"
        parts.append(f"{name} {text}{group[0].more if alone else ''}")
    left = [reason for group in list(groups.values())[_MAX_REASONS:] for reason in group]
    if left:
        parts.append(f"and {len(left)} more, GPU{'' if len(left) == 1 else 's'} {_indices(left)}")
    return "; ".join(parts)


def _indices(reasons: Sequence[_Reason]) -> str:
    return format_indices(reason.index for reason in reasons)


def _why_not(state: State, gpu_state: GpuState, claims: Mapping[str, str]) -> _Reason | None:
    """Explain why a GPU cannot be reserved now, or return None if it can."""
    index = gpu_state.gpu.index
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        purpose = f": {reserved.reason}" if reserved.reason else ""
        return _Reason(index, f"reserved{purpose} ({reserved.id})")
    if gpu_state.allocations:
        ids = ", ".join(sorted(gpu_state.allocations)[:_MAX_LISTED])
        return _Reason(index, "partly allocated", f": {ids}")
    match gpu_state.occupancy:
        case Idle():
            earlier = claims.get(gpu_state.gpu.uuid)
            if earlier is None:
                return None
            return _Reason(index, f"for an earlier request ({earlier})")
        case Busy(reason=reason, processes=processes):
            names = ", ".join(dict.fromkeys(process.name or "a process" for process in processes))
            pids = ", ".join(str(process.pid) for process in processes[:_MAX_LISTED])
            text = f"{reason}: {names}" if names else reason
            return _Reason(index, text, f" (pid {pids})" if pids else "")
        case Unknown(reason=reason):
            return _Reason(index, f"unknown: {reason}")
