"""Apply the commands that allocate and deallocate memory of GPUs. Pure."""

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
from sentinel.core.step import Step
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: Limits of all allocations together and of an id: one message lists all of them.
_MAX_ALLOCATIONS = 128
_MAX_ID_LENGTH = 100
#: An answer lists at most so many ids.
_MAX_LISTED = 10


def allocate(state: State, command: Allocate, seen: Observation) -> Accepted:
    """Apply a command that allocates memory of a GPU."""
    check_gpus(state, (command.gpu,))
    _check(state, command)
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
    allocation = Allocation(
        id=command.id, gpu=command.gpu, size=command.size, by=command.by, since=seen.now
    )
    allocations = {**gpu_state.allocations, command.id: allocation}
    fields = {"id": command.id, "size": command.size, "by": caller_fields(command.by)}
    event = gpu_event("memory.allocated", gpu_state, seen.now, **fields)
    text = f"allocated {format_size(command.size)} of GPU {gpu_state.gpu.index}"
    step = Step(state, events=(event,)).then(_change, gpu_state, allocations, seen)
    return Accepted(step, text, (command.gpu,))


def confirm(state: State, command: Confirm, _: Observation) -> Accepted:
    """Apply that the client of an allocation has its answer."""
    allocation = _find(state, command.id)
    gpu_state = state.gpu_states[allocation.gpu]
    kept = {**gpu_state.allocations, allocation.id: replace(allocation, confirmed=True)}
    state = state.with_gpu(replace(gpu_state, allocations=kept))
    return Accepted(Step(state), f"allocation {allocation.id} holds", (allocation.gpu,))


def deallocate(state: State, command: Deallocate, seen: Observation) -> Accepted:
    """Apply a command that ends an allocation."""
    allocation = _find(state, command.id)
    check_owner(command.by, allocation.by, f"allocation {allocation.id}")
    step = _end(state, allocation, command.by, seen)
    text = f"allocation {allocation.id} is over"
    return Accepted(step, text, (allocation.gpu,))


def forget_unconfirmed(state: State, seen: Observation) -> Step[State]:
    """End the unconfirmed allocations of an API process that is gone: no client knows them."""
    step = Step(state)
    for gpu_state in state.gpu_states.values():
        for allocation in gpu_state.allocations.values():
            if not allocation.confirmed:
                step = step.then(_end, allocation, Caller(via="sentinel"), seen)
    return step


def _check(state: State, command: Allocate) -> None:
    """Refuse an invalid or conflicting allocation."""
    gpu_state = state.gpu_states[command.gpu]
    allocations = _by_id(state)
    if command.id in allocations:
        text = f"there is an allocation {command.id!r}"
        raise RefusedError(Refusal.CONFLICT, text)
    if len(allocations) >= _MAX_ALLOCATIONS:
        text = f"there are {len(allocations)} allocations already, which is the limit"
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


def _find(state: State, id_: str) -> Allocation:
    found = _by_id(state)
    if id_ not in found:
        raise not_found("allocation", id_, found, most=_MAX_LISTED)
    return found[id_]


def _by_id(state: State) -> dict[str, Allocation]:
    """Return all allocations by their ids."""
    return {
        id_: allocation
        for gpu_state in state.gpu_states.values()
        for id_, allocation in gpu_state.allocations.items()
    }
