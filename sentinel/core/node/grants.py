"""The life of a grant, which is a reservation or an allocation: its lease and its end. Pure.

A request is granted for a lease of some seconds, and so is its place in the queue. The API process
extends the lease while the client waits, and ends it with the answer. So what no client has been
told ends by itself, whichever process has died.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from sentinel.core.gpu_state import GpuState
from sentinel.core.gpu_step import reattribute
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_owner,
    not_found,
)
from sentinel.core.node.reservation_queue import why_waiting
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Event, Step, gpu_event, upcoming
from sentinel.protocol.commands import LEASE_S, Caller, CancelGrant, Extend, GrantKind, Refusal
from sentinel.protocol.views import Allocation, Grant, Reservation

T = TypeVar("T", bound=Grant)

#: An answer lists at most so many ids of a kind; None: all of them.
_MAX_LISTED = {GrantKind.RESERVATION: None, GrantKind.ALLOCATION: 10}


def granted(state: State, kind: GrantKind) -> Mapping[str, Grant]:
    """Return the grants of one kind by their ids, also requests that wait."""
    if kind is GrantKind.RESERVATION:
        return state.reservations
    return {
        id_: allocation
        for gpu_state in state.gpu_states.values()
        for id_, allocation in gpu_state.allocations.items()
    }


def put(state: State, grant: Grant) -> State:
    """Add a grant, or replace the one with its id."""
    if isinstance(grant, Reservation):
        return replace(state, reservations={**state.reservations, grant.id: grant})
    gpu_state = state.gpu_states[grant.gpu]
    allocations = {**gpu_state.allocations, grant.id: grant}
    return state.with_gpu(replace(gpu_state, allocations=allocations))


def due(grant: Grant, now: float) -> float:
    """Compute when a grant or its lease ends."""
    return upcoming(now, grant.until, grant.lease)


def known(state: State, request: T, now: float) -> T | None:
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
    found = granted(state, request.kind).get(request.id)
    if found is None:
        return None
    if not isinstance(found, type(request)) or _wish(found) != _wish(request):
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


def _extended(grant: T, now: float) -> T:
    """Extend the lease, if there is one."""
    return grant if grant.lease is None else replace(grant, lease=now + LEASE_S)


# --- commands --------------------------------------------------------------------------------


def extend(state: State, command: Extend, seen: Observation) -> Accepted:
    """Extend the lease of a grant or a request, or end it: only what is granted is kept."""
    found = _find(state, command)
    if command.kept and not found.gpus:
        raise _missing(command, granted(state, command.kind))
    found = replace(found, lease=None) if command.kept else _extended(found, seen.now)
    return Accepted(Step(put(state, found)), f"{command.kind} {command.id} lasts", found.gpus)


def cancel(state: State, command: CancelGrant, seen: Observation) -> Accepted:
    """End a grant, or take a request out of the queue."""
    found = _find(state, command)
    text = f"{_noun(found)} is over"
    if isinstance(found, Reservation) and not found.gpus:
        text = why_waiting(state, found)
    return Accepted(_end(state, found, command.by, seen), text, found.gpus)


def _find(state: State, command: Extend | CancelGrant) -> Grant:
    """Find the grant of a command whose caller may change it."""
    there = granted(state, command.kind)
    if command.id not in there:
        raise _missing(command, there)
    found = there[command.id]
    check_owner(command.by, found.by, _noun(found))
    return found


def _missing(command: Extend | CancelGrant, there: Mapping[str, Grant]) -> RefusedError:
    """Build the refusal of a command about a grant that does not exist."""
    return not_found(command.kind, command.id, there, most=_MAX_LISTED[command.kind])


def _noun(grant: Grant) -> str:
    """Name a grant for people; one without GPUs is a request."""
    return f"{grant.kind if grant.gpus else 'request'} {grant.id}"


# --- ends ------------------------------------------------------------------------------------


def expire(state: State, seen: Observation) -> Step[State]:
    """End the grants and requests whose time or lease is over."""
    step, now = Step(state), seen.now
    for grant in _all(state):
        if any(end is not None and now >= end for end in (grant.until, grant.lease)):
            step = step.then(_end, grant, None, seen)
    ends = (due(grant, now) for grant in _all(step.state))
    return step._replace(due=min(step.due, min(ends, default=math.inf)))


def _all(state: State) -> list[Grant]:
    """List the grants of every kind."""
    return [grant for kind in GrantKind for grant in granted(state, kind).values()]


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
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, **fields)
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
    gpu_state = replace(gpu_state, allocations=left)
    return Step(state, events=(event,)).then(attribute_allocated, gpu_state, seen)


def attribute_allocated(state: State, gpu_state: GpuState, seen: Observation) -> Step[State]:
    """Replace a GPU whose allocations have changed, and attribute its processes again."""
    uuid = gpu_state.gpu.uuid
    gpu_state = replace(gpu_state, allocations_changed=seen.now)
    unusable = state.why_unusable(uuid, seen.now)
    step = reattribute(gpu_state, seen, state.config.of(uuid), unusable)
    return Step(state.with_gpu(step.state), events=step.events, due=step.due)
