"""Reservations: the command, and the service of the queue. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.node import grants
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_places,
    check_seconds,
    names_of,
)
from sentinel.core.node.reservation_queue import choose, claims, place, waiting
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Event, Step, gpu_event
from sentinel.protocol.commands import LEASE_S, Refusal, Reserve
from sentinel.protocol.places import Places
from sentinel.protocol.views import Reservation

#: The limit of all reservations together.
_MAX_RESERVATIONS = 256
#: The limit of the requests that wait: each tick compares every one with all before it.
QUEUE = Places(48, "requests in the queue", "their users and administrators")
#: The limit of the characters of a reason.
_MAX_REASON_LENGTH = 200


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
    known = grants.known(state, request, now)
    if known is not None:
        return Accepted(Step(grants.put(state, known)), _answer(state, known), known.gpus)
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


def serve(state: State, seen: Observation) -> Step[State]:
    """Serve the requests whose GPUs are available, unless the daemon is shutting down."""
    step = Step(state)
    for request in waiting(state) if state.shutdown is None else ():
        gpus, _ = choose(step.state, request, claims(step.state, before=request.id))
        if gpus:
            step = step.then(_grant, request, gpus, seen.now)
    return step


def _enqueue(state: State, request: Reservation, why: str) -> Accepted:
    """Append a valid request for GPUs that are not available, because of ``why``."""
    by = request.by
    users = [request.by.account for request in waiting(state)]
    check_places(QUEUE, users, by, why)
    state = grants.put(state, request)
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


def _answer(state: State, request: Reservation) -> str:
    """Describe what a request has: its GPUs, or its place."""
    if request.gpus:
        return f"reserved {names_of(state, request.gpus)}"
    return f"waits at place {place(state, request.id)}"


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
    due = grants.due(granted, now)
    return Step(grants.put(state, granted), events=tuple(events), due=due)
