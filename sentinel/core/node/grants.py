"""Grants, which are reservations and allocations: commands, leases and ends. Pure.

A request is granted for a lease of some seconds, and so is its place in the queue. The API process
extends the lease while the client waits, and ends it with the answer. So what no client has been
told ends by itself, whichever process has died.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sentinel.core.attribution import available, budget
from sentinel.core.gpu_state import GpuState, Unknown
from sentinel.core.gpu_step import reattribute
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
from sentinel.core.node.reservation_queue import (
    choose,
    claims,
    place,
    servable,
    waiting,
    why_waiting,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State, reservation_of
from sentinel.core.step import Event, Step, gpu_event, upcoming
from sentinel.protocol.commands import (
    LEASE_S,
    Allocate,
    Caller,
    CancelGrant,
    Extend,
    GrantKind,
    Refusal,
    Reserve,
)
from sentinel.protocol.places import Places
from sentinel.protocol.views import Allocation, Grant, Reservation
from sentinel.units import format_count, format_size

#: The limit of all reservations together.
_MAX_RESERVATIONS = 256
#: The limit of the requests that wait: each tick compares every one with all before it.
QUEUE = Places(48, "requests in the queue", "their users and administrators")
#: The limit of the characters of a reason.
_MAX_REASON_LENGTH = 200
#: Limits of all allocations together and of the id of one: one message lists all of them.
_ALLOCATIONS = Places(128, "allocations", "their users and administrators")
_MAX_ID_LENGTH = 100
#: An answer lists at most so many ids of a kind; None: all of them.
_MAX_LISTED = {GrantKind.RESERVATION: None, GrantKind.ALLOCATION: 10}


# --- requests --------------------------------------------------------------------------------


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
    known = _known(state, request, now)
    if known is not None:
        return Accepted(Step(_put(state, known)), _answer(state, known), known.gpus)
    check_gpus(state, command.gpus)
    check_seconds(command.seconds)
    _check_reservation(state, command)
    gpus, why = choose(state, request, claims(state), now)
    if not gpus and command.wait:
        return _enqueue(state, request, why)
    if not gpus:
        raise RefusedError(Refusal.CONFLICT, why)
    text = f"reserved {names_of(state, gpus)}"
    return Accepted(_grant(state, request, gpus, now), text, gpus)


def _check_reservation(state: State, command: Reserve) -> None:
    """Refuse an invalid reservation, or one too many."""
    by = command.by
    wrong, choice = None, len(command.gpus or state.gpu_states)
    if len(state.reservations) >= _MAX_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        raise RefusedError(Refusal.CONFLICT, text)
    if not (command.gpus or command.count) or command.count < 0:
        wrong = "name GPUs, or their number"
    elif len(set(command.gpus)) != len(command.gpus):
        wrong = "a GPU is named twice"
    elif command.count > choice:
        there = f"{choice} named" if command.gpus else f"the daemon has {choice}"
        text = f"{format_count(command.count, 'GPU')} requested; {there}"
        raise RefusedError(Refusal.NO_SUCH_GPU, text)
    elif len(command.reason) > _MAX_REASON_LENGTH or not command.reason.isprintable():
        wrong = f"a reason is one line of at most {_MAX_REASON_LENGTH} characters"
    elif command.bound and (by.pid is None or by.started is None):
        wrong = (
            "the client process is not visible here, so nothing can be bound to it; give a duration"
        )
    if wrong is not None:
        raise RefusedError(Refusal.INVALID, wrong)


def _enqueue(state: State, request: Reservation, why: str) -> Accepted:
    """Append a valid request for GPUs that are not available, because of ``why``."""
    by = request.by
    users = [request.by.account for request in waiting(state)]
    check_places(QUEUE, users, by, why)
    state = _put(state, request)
    fields = {
        "id": request.id,
        "reason": request.reason,
        "count": request.count,
        "place": len(users) + 1,
        "why": why,
        "by": caller_fields(by),
    }
    event = Event(name="reservation.queued", at=request.since, fields=fields)
    text = f"{_answer(state, request)}: {why}"
    return Accepted(Step(state, events=(event,)), text)


def _answer(state: State, request: Grant) -> str:
    """Describe what a request has: its GPUs, or its place."""
    if request.gpus:
        return f"reserved {names_of(state, request.gpus)}"
    return f"waits at place {place(state, request.id)}"


def serve(state: State, seen: Observation) -> Step[State]:
    """Serve the requests whose GPUs are available, unless the daemon is shutting down."""
    step = Step(state)
    for request, gpus in servable(state) if state.shutdown is None else ():
        step = step.then(_grant, request, gpus, seen.now)
    return step


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
    due = upcoming(now, until, request.lease)
    return Step(_put(state, granted), events=tuple(events), due=due)


def allocate(state: State, command: Allocate, seen: Observation) -> Accepted:
    """Allocate memory of a GPU; the same request again has the same answer."""
    check_gpus(state, (command.gpu,))
    allocation = Allocation(
        id=command.id,
        gpu=command.gpu,
        size=command.size,
        by=command.by,
        since=seen.now,
        lease=seen.now + LEASE_S,
    )
    gpu_state = state.gpu_states[command.gpu]
    text = f"allocated {format_size(command.size)} of GPU {gpu_state.gpu.index}"
    known = _known(state, allocation, seen.now)
    if known is not None:
        return Accepted(Step(_put(state, known)), text, known.gpus)
    _check_allocation(state, command)
    reading, own = seen.readings.get(command.gpu), state.config.of(command.gpu)
    left = available(gpu_state, reading, own)
    if command.size > left:
        limit = format_size(budget(gpu_state, reading, own))
        why = (
            f"{format_size(command.size)} of GPU {gpu_state.gpu.index} requested,"
            f" {format_size(left)} of {limit} can be allocated"
        )
        raise RefusedError(Refusal.CONFLICT, why)
    fields = {"id": command.id, "size": command.size, "by": caller_fields(command.by)}
    event = gpu_event("memory.allocated", gpu_state, seen.now, **fields)
    allocations = {**gpu_state.allocations, command.id: allocation}
    step = Step(state, events=(event,)).then(_change_allocations, gpu_state, allocations, seen)
    return Accepted(step, text, allocation.gpus)


def _check_allocation(state: State, command: Allocate) -> None:
    """Refuse an invalid allocation, or one too many."""
    gpu_state = state.gpu_states[command.gpu]
    users = [allocation.by.account for allocation in state.allocations.values()]
    check_places(_ALLOCATIONS, users, command.by)
    reserved = reservation_of(state, command.gpu)
    if reserved is not None and reserved.by.uid != command.by.uid:
        text = f"GPU {gpu_state.gpu.index} is reserved for another user: {reserved.reason}"
        raise RefusedError(Refusal.CONFLICT, f"{text} ({reserved.id})")
    if isinstance(gpu_state.occupancy, Unknown):
        text = f"GPU {gpu_state.gpu.index} is unknown: {gpu_state.occupancy.reason}"
        raise RefusedError(Refusal.CONFLICT, text)
    if not command.id or len(command.id) > _MAX_ID_LENGTH or not command.id.isprintable():
        text = f"an id is one line of 1 to {_MAX_ID_LENGTH} characters"
        raise RefusedError(Refusal.INVALID, text)
    if command.size <= 0:
        raise RefusedError(Refusal.INVALID, f"{command.size} is not a number of bytes above 0")


# --- grants, and what is requested again -----------------------------------------------------


def _put(state: State, grant: Grant) -> State:
    """Add a grant, or replace the one with its id."""
    if isinstance(grant, Reservation):
        return replace(state, reservations={**state.reservations, grant.id: grant})
    gpu_state = state.gpu_states[grant.gpu]
    allocations = {**gpu_state.allocations, grant.id: grant}
    return state.with_gpu(replace(gpu_state, allocations=allocations))


def _known(state: State, request: Grant, now: float) -> Grant | None:
    """Find the grant of a request that is sent again, and extend its lease.

    Args:
        state: The state.
        request: What is requested, as it would be granted.
        now: The time.

    Returns:
        The grant, or None if the request is new.

    Raises:
        RefusedError: The id is that of another request.
    """
    found = state.grants(request.kind).get(request.id)
    if found is None:
        return None
    if _wish(found) != _wish(request):
        raise RefusedError(Refusal.CONFLICT, f"the id {request.id!r} is in use")
    return _extended(found, now)


def _wish(grant: Grant) -> tuple[object, ...]:
    """Return what a client has asked for, and who it is: the process only where it matters."""
    by = grant.by
    process = (by.pid, by.started) if grant.bound else None
    who = (by.account, process)
    if isinstance(grant, Allocation):
        return (grant.gpu, grant.size, *who)
    return (grant.named, grant.count, grant.seconds, grant.reason, grant.bound, *who)


def _extended(grant: Grant, now: float) -> Grant:
    """Extend the lease, if there is one."""
    return grant if grant.lease is None else replace(grant, lease=now + LEASE_S)


# --- leases and ends -------------------------------------------------------------------------


def extend(state: State, command: Extend, seen: Observation) -> Accepted:
    """Extend the lease of a grant or a request, or end it: only what is granted is kept."""
    found = _find(state, command)
    found = replace(found, lease=None) if command.kept else _extended(found, seen.now)
    return Accepted(Step(_put(state, found)), f"{command.kind} {command.id} lasts", found.gpus)


def cancel(state: State, command: CancelGrant, seen: Observation) -> Accepted:
    """End a grant, or take a request out of the queue."""
    found = _find(state, command)
    text = f"{_noun(found)} has ended"
    if command.gives_up and isinstance(found, Reservation) and not found.gpus:
        text = why_waiting(state, found, seen.now)
    return Accepted(_end(state, found, command.by, seen), text, found.gpus)


def _find(state: State, command: Extend | CancelGrant) -> Grant:
    """Find the grant of a command whose caller may change it."""
    there = state.grants(command.kind)
    found = there.get(command.id)
    keeps = isinstance(command, Extend) and command.kept
    if found is None or (keeps and not found.gpus):
        raise not_found(command.kind, command.id, there, most=_MAX_LISTED[command.kind])
    check_owner(command.by, found.by, _noun(found))
    return found


def _noun(grant: Grant) -> str:
    """Name a grant for people; one without GPUs is a request."""
    return f"{grant.kind if grant.gpus else 'request'} {grant.id}"


def expire(state: State, seen: Observation) -> Step[State]:
    """End the grants and requests whose time or lease is over."""
    step, now = Step(state), seen.now
    for grant in _all(state):
        if any(end is not None and now >= end for end in (grant.until, grant.lease)):
            step = step.then(_end, grant, None, seen)
    ends = (end for grant in _all(step.state) for end in (grant.until, grant.lease))
    return step._replace(due=min(step.due, upcoming(now, *ends)))


def _all(state: State) -> list[Grant]:
    """List the grants of every kind."""
    return [grant for kind in GrantKind for grant in state.grants(kind).values()]


def _end(state: State, grant: Grant, by: Caller | None, seen: Observation) -> Step[State]:
    """Remove a grant or a request; ``by`` is None if its time or lease is over."""
    if isinstance(grant, Allocation):
        return _end_allocation(state, grant, by or Caller(via="sentinel"), seen)
    now = seen.now
    left = {id_: other for id_, other in state.reservations.items() if id_ != grant.id}
    fields = {"id": grant.id, "by": caller_fields(by)}
    if not grant.gpus:
        left_queue = {**fields, "waited_s": now - grant.since}
        event = Event(name="reservation.left", at=now, fields=left_queue)
        return Step(replace(state, reservations=left), events=(event,))
    events = [
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, reason=grant.reason, **fields)
        for uuid in grant.gpus
        if uuid in state.gpu_states
    ]
    return Step(replace(state, reservations=left), events=tuple(events))


def _end_allocation(
    state: State, allocation: Allocation, by: Caller, seen: Observation
) -> Step[State]:
    """Remove an allocation, whose processes are foreign from now on."""
    gpu_state = state.gpu_states[allocation.gpu]
    left = {id_: kept for id_, kept in gpu_state.allocations.items() if id_ != allocation.id}
    fields = {"id": allocation.id, "size": allocation.size, "by": caller_fields(by)}
    event = gpu_event("memory.deallocated", gpu_state, seen.now, **fields)
    return Step(state, events=(event,)).then(_change_allocations, gpu_state, left, seen)


def _change_allocations(
    state: State, gpu_state: GpuState, allocations: Mapping[str, Allocation], seen: Observation
) -> Step[State]:
    """Replace the allocations of a GPU, and attribute its processes again."""
    uuid = gpu_state.gpu.uuid
    gpu_state = replace(gpu_state, allocations=allocations, allocations_changed=seen.now)
    unusable = state.why_unusable(uuid, seen.now)
    step = reattribute(gpu_state, seen, state.config.of(uuid), unusable)
    return Step(state.with_gpu(step.state), events=step.events, due=step.due)
