"""The queue of reservations that clients wait for. Pure.

Each GPU goes to the first request in the queue that can use it: one for named GPUs can use these,
one for a number of GPUs can use every GPU. So a later request is served earlier only on GPUs that
no request before it can use, and delays none. A large request is not passed by smaller ones: how
long foreign processes run is not known, so every GPU that a smaller one took could be the one that
the large one needs next. GPUs that a request still has to wait for are not kept free meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.node.command_result import Accepted, RefusedError, caller_fields
from sentinel.core.node.reservation_grants import choose, grant
from sentinel.core.observation import Observation
from sentinel.core.state import QueuedRequest, State
from sentinel.core.step import Step
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Refusal, Reserve
from sentinel.protocol.views import QueuedReservation, QueueView

#: Limits of all requests and of those of one user. Each has a connection, and each tick compares
#: every request with all before it.
MAX_QUEUED, MAX_QUEUED_OF_USER = 48, 32
#: How long a request keeps its place after the API process of its client has ended, in seconds.
ORPHANED_S = 30.0


def claims(state: State, before: str | None = None) -> dict[str, str]:
    """Map each GPU to the first waiting request that can use it, of those before ``before``."""
    claimed: dict[str, str] = {}
    for one in state.queue:
        if one.command.id == before:
            break
        if not one.granted:
            for uuid in one.command.gpus or state.gpu_states:
                claimed.setdefault(uuid, one.command.id)
    return claimed


def find(state: State, id_: str) -> QueuedRequest | None:
    """Find a request by its id."""
    return next((one for one in state.queue if one.command.id == id_), None)


def enter(state: State, command: Reserve, why: str, now: float) -> Accepted:
    """Append a valid request for GPUs that are not available, because of ``why``."""
    user = (command.by.via, command.by.uid)
    own = sum((one.command.by.via, one.command.by.uid) == user for one in state.queue)
    if len(state.queue) >= MAX_QUEUED or own >= MAX_QUEUED_OF_USER:
        text = f"{len(state.queue)} requests wait already, {own} of them this user's: {why}"
        raise RefusedError(Refusal.CONFLICT, text)
    state = replace(state, queue=(*state.queue, QueuedRequest(command=command, since=now)))
    place = _place(state, command.id)
    fields = {
        "id": command.id,
        "reason": command.reason,
        "count": command.count or len(command.gpus),
        "place": place,
        "why": why,
        "by": caller_fields(command.by),
    }
    event = Event(name="reservation.queued", at=now, fields=fields)
    return Accepted(Step(state, events=(event,)), f"waits at place {place}: {why}")


def enter_again(state: State, waiting: QueuedRequest, command: Reserve) -> Accepted:
    """Take up a request whose API process had ended, at its place."""
    first = waiting.command
    by = replace(command.by, level=first.by.level, user=first.by.user)
    if waiting.orphaned is None or replace(command, number=first.number, by=by) != first:
        text = f"there is a request {command.id!r}"
        raise RefusedError(Refusal.CONFLICT, text)
    state = _with(state, replace(waiting, orphaned=None))
    return Accepted(Step(state), f"waits at place {_place(state, command.id)}")


def leave(state: State, waiting: QueuedRequest, by: Caller | None, now: float) -> Accepted:
    """Take a request out of the queue; ``by`` is None if its client did not come back."""
    command = waiting.command
    _, why = choose(state, command, claims(state, before=command.id))
    text = f"{why or 'the GPUs were not available'}; place {_place(state, command.id)} in the queue"
    fields = {
        "id": command.id,
        "waited_s": now - waiting.since,
        "by": None if by is None else caller_fields(by),
    }
    event = Event(name="reservation.left", at=now, fields=fields)
    return Accepted(Step(forget(state, command.id), events=(event,)), text)


def forget(state: State, id_: str) -> State:
    """Remove a request, if there is one."""
    left = tuple(one for one in state.queue if one.command.id != id_)
    return state if len(left) == len(state.queue) else replace(state, queue=left)


def orphan(state: State, now: float) -> State:
    """Keep the places of all requests, whose clients have lost their connections."""
    queue = tuple(replace(one, granted=False, orphaned=one.orphaned or now) for one in state.queue)
    return replace(state, queue=queue) if queue else state


def serve(state: State, seen: Observation) -> Step[State]:
    """Serve the requests whose GPUs are available, and end those without a client."""
    step, now = Step(state), seen.now
    if state.shutdown is not None:
        return step
    for request in state.queue:
        if request.orphaned is not None and now >= request.orphaned + ORPHANED_S:
            step = step.then(_lose, request, now)
        elif request.orphaned is not None:
            step = step._replace(due=min(step.due, request.orphaned + ORPHANED_S))
        elif not request.granted:
            step = step.then(_serve_one, request, now)
    return step


def _lose(state: State, request: QueuedRequest, now: float) -> Step[State]:
    """End a request whose client did not come back."""
    return leave(state, request, None, now).step


def _serve_one(state: State, request: QueuedRequest, now: float) -> Step[State]:
    command = request.command
    gpus, _ = choose(state, command, claims(state, before=command.id))
    if not gpus:
        return Step(state)
    step = grant(state, command, gpus, now, now - request.since)
    return step._replace(state=_with(step.state, replace(request, granted=True)))


def view(state: State) -> QueueView:
    """Build the view of the queue."""
    return QueueView(
        requests=tuple(
            QueuedReservation(
                id=one.command.id,
                indices=tuple(state.gpu_states[uuid].gpu.index for uuid in one.command.gpus),
                count=one.command.count or len(one.command.gpus),
                reason=one.command.reason,
                by=one.command.by,
                since=one.since,
                granted=one.granted,
                orphaned=one.orphaned is not None,
            )
            for one in state.queue
        )
    )


def _place(state: State, id_: str) -> int:
    """Count the requests that wait up to this one."""
    waiting = [one.command.id for one in state.queue if not one.granted]
    return waiting.index(id_) + 1 if id_ in waiting else 0


def _with(state: State, changed: QueuedRequest) -> State:
    """Replace a request."""
    id_ = changed.command.id
    queue = tuple(changed if one.command.id == id_ else one for one in state.queue)
    return replace(state, queue=queue)
