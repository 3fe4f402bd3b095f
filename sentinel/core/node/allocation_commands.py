"""Apply the commands that allocate memory of GPUs, and end that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sentinel.core.events import gpu_event
from sentinel.core.gpu.allocations import available, budget
from sentinel.core.gpu.step import reattribute
from sentinel.core.gpu_state import GpuState, Unknown
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_owner,
    not_found,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Step, upcoming
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import LEASE_S, Allocate, CancelAllocation, Extend, Refusal
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: Limits of all allocations together and of an id: one message lists all of them.
_MAX_ALLOCATIONS = 128
_MAX_ID_LENGTH = 100
#: An answer lists at most so many ids.
_MAX_LISTED = 10


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
    known = _by_id(state).get(command.id)
    if known is not None and _is_same(known, allocation):
        return _extended(state, known, seen.now)
    _check(state, command, known)
    gpu_state, reading, own = (
        state.gpu_states[command.gpu],
        seen.readings.get(command.gpu),
        state.config.of(command.gpu),
    )
    left = available(gpu_state, reading, own)
    if command.size > left:
        limit = format_size(budget(gpu_state, reading, own))
        text = (
            f"{format_size(command.size)} of GPU {gpu_state.gpu.index} requested,"
            f" {format_size(left)} of {limit} can be allocated"
        )
        raise RefusedError(Refusal.CONFLICT, text)
    allocations = {**gpu_state.allocations, command.id: allocation}
    fields = {"id": command.id, "size": command.size, "by": caller_fields(command.by)}
    event = gpu_event("memory.allocated", gpu_state, seen.now, **fields)
    text = f"allocated {format_size(command.size)} of GPU {gpu_state.gpu.index}"
    step = Step(state, events=(event,)).then(_change, gpu_state, allocations, seen)
    return Accepted(step, text, (command.gpu,))


def extend(state: State, command: Extend, seen: Observation) -> Accepted:
    """Extend the lease of an allocation, or end it: the client has its answer."""
    return _extended(state, _own(state, command), seen.now, kept=command.kept)


def cancel(state: State, command: CancelAllocation, seen: Observation) -> Accepted:
    """End an allocation."""
    known = _own(state, command)
    step = _end(state, known, command.by, seen)
    return Accepted(step, f"allocation {known.id} is over", (known.gpu,))


def expire(state: State, seen: Observation) -> Step[State]:
    """End the allocations whose lease is over: no client knows them."""
    step = Step(state)
    for allocation in _by_id(state).values():
        if allocation.lease is not None and seen.now >= allocation.lease:
            step = step.then(_end, allocation, Caller(via="sentinel"), seen)
    leases = [allocation.lease for allocation in _by_id(step.state).values()]
    return step._replace(due=min(step.due, upcoming(seen.now, *leases)))


def _check(state: State, command: Allocate, known: Allocation | None) -> None:
    """Refuse an invalid or conflicting allocation."""
    gpu_state = state.gpu_states[command.gpu]
    if known is not None:
        text = f"the id {command.id!r} is in use"
        raise RefusedError(Refusal.CONFLICT, text)
    count = len(_by_id(state))
    if count >= _MAX_ALLOCATIONS:
        text = f"there are {count} allocations already, which is the limit"
        raise RefusedError(Refusal.CONFLICT, text)
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


def _is_same(known: Allocation, asked: Allocation) -> bool:
    """Check whether memory is that of a known allocation, asked for again for the same process."""
    by = replace(asked.by, level=known.by.level)
    return (known.gpu, known.size, known.by) == (asked.gpu, asked.size, by)


def _extended(state: State, known: Allocation, now: float, *, kept: bool = False) -> Accepted:
    """Extend the lease of an allocation, if it has one, or end the lease."""
    lease = None if kept or known.lease is None else now + LEASE_S
    gpu_state = state.gpu_states[known.gpu]
    changed = {**gpu_state.allocations, known.id: replace(known, lease=lease)}
    state = state.with_gpu(replace(gpu_state, allocations=changed))
    text = f"allocated {format_size(known.size)} of GPU {gpu_state.gpu.index}"
    return Accepted(Step(state), text, (known.gpu,))


def _own(state: State, command: Extend | CancelAllocation) -> Allocation:
    """Find the allocation of a command whose caller may change it."""
    found = _by_id(state)
    if command.id not in found:
        raise not_found("allocation", command.id, found, most=_MAX_LISTED)
    check_owner(command.by, found[command.id].by, f"allocation {command.id}")
    return found[command.id]


def _end(state: State, allocation: Allocation, by: Caller, seen: Observation) -> Step[State]:
    gpu_state = state.gpu_states[allocation.gpu]
    left = {id_: kept for id_, kept in gpu_state.allocations.items() if id_ != allocation.id}
    fields = {"id": allocation.id, "size": allocation.size, "by": caller_fields(by)}
    event = gpu_event("memory.deallocated", gpu_state, seen.now, **fields)
    return Step(state, events=(event,)).then(_change, gpu_state, left, seen)


def _change(
    state: State, gpu_state: GpuState, allocations: Mapping[str, Allocation], seen: Observation
) -> Step[State]:
    """Replace the allocations of a GPU, and attribute its processes again."""
    uuid = gpu_state.gpu.uuid
    gpu_state = replace(gpu_state, allocations=allocations, allocations_changed=seen.now)
    unusable = state.why_unusable(uuid, seen.now)
    step = reattribute(gpu_state, seen, state.config.of(uuid), unusable)
    return Step(state.with_gpu(step.state), events=step.events, due=step.due)


def _by_id(state: State) -> dict[str, Allocation]:
    """Return all allocations by their ids."""
    return {
        id_: allocation
        for gpu_state in state.gpu_states.values()
        for id_, allocation in gpu_state.allocations.items()
    }
