"""Apply the commands that allocate and deallocate memory of GPUs. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.allocations import available, budget
from sentinel.core.gpu_state import GpuState, Unknown
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import (
    CommandResult,
    caller_fields,
    not_found,
    not_owner,
    wrong_gpus,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import LEASE_S, Allocate, Deallocate, Extend, Refusal
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: Limits of all allocations together and of an id: one message lists all of them.
_MAX_ALLOCATIONS = 128
_MAX_ID_LENGTH = 100
#: An answer lists at most so many ids.
_MAX_LISTED = 10


def apply_command(
    state: State, command: Allocate | Deallocate | Extend, seen: Observation, config: Config
) -> CommandResult:
    """Apply one command about allocated memory."""
    match command:
        case Allocate():
            return _allocate(state, command, seen, config)
        case Deallocate() | Extend():
            return _extend_or_end(state, command, seen.now)


def expire(state: State, now: float) -> tuple[State, list[Event]]:
    """End the allocations whose lease is over: no client knows them."""
    events: list[Event] = []
    for allocation in _all(state):
        if allocation.lease is not None and now >= allocation.lease:
            state, ended = _end(state, allocation, Caller(via="sentinel"), now)
            events += ended
    return state, events


def deadlines(state: State) -> list[float]:
    """Compute when leases end."""
    return [allocation.lease for allocation in _all(state) if allocation.lease is not None]


def _allocate(state: State, command: Allocate, seen: Observation, config: Config) -> CommandResult:
    wrong = wrong_gpus(state, (command.gpu,))
    if wrong is not None:
        return wrong
    allocation = Allocation(
        id=command.id,
        gpu=command.gpu,
        size=command.size,
        by=command.by,
        since=seen.now,
        lease=seen.now + LEASE_S,
    )
    known = _find(state, command.id)
    if known is not None and _is_same(known, allocation):
        return _extended(state, known, seen.now)
    wrong = _wrong(state, command, known)
    if wrong is not None:
        return wrong
    gpu_state, reading, own = (
        state.gpu_states[command.gpu],
        seen.readings.get(command.gpu),
        config.of(command.gpu),
    )
    left = available(gpu_state, reading, own)
    if command.size > left:
        limit = format_size(budget(gpu_state, reading, own))
        text = (
            f"{format_size(command.size)} of GPU {gpu_state.gpu.index} requested,"
            f" {format_size(left)} of {limit} can be allocated"
        )
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    gpu_state = replace(
        gpu_state,
        allocations={**gpu_state.allocations, command.id: allocation},
        allocations_changed=seen.now,
    )
    fields = {"id": command.id, "size": command.size, "by": caller_fields(command.by)}
    return CommandResult(
        _with(state, gpu_state),
        f"allocated {format_size(command.size)} of GPU {gpu_state.gpu.index}",
        (command.gpu,),
        events=[gpu_event("memory.allocated", gpu_state, seen.now, **fields)],
    )


def _wrong(state: State, command: Allocate, known: Allocation | None) -> CommandResult | None:
    """Refuse an invalid or conflicting allocation; return None if it is valid."""
    gpu_state = state.gpu_states[command.gpu]
    if known is not None:
        text = f"the id {command.id!r} is in use"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    count = len(_all(state))
    if count >= _MAX_ALLOCATIONS:
        text = f"there are {count} allocations already, which is the limit"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    reserved = reservation_of(state, command.gpu)
    if reserved is not None and reserved.by.uid != command.by.uid:
        text = f"GPU {gpu_state.gpu.index} is reserved for another user: {reserved.reason}"
        return CommandResult(state, f"{text} ({reserved.id})", refused=Refusal.CONFLICT)
    if isinstance(gpu_state.occupancy, Unknown):
        text = f"GPU {gpu_state.gpu.index} is unknown: {gpu_state.occupancy.reason}"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    if not command.id or len(command.id) > _MAX_ID_LENGTH or not command.id.isprintable():
        text = f"an id is one line of 1 to {_MAX_ID_LENGTH} characters"
        return CommandResult(state, text, refused=Refusal.INVALID)
    if command.size <= 0:
        return CommandResult(
            state, f"{command.size} is not a number of bytes above 0", refused=Refusal.INVALID
        )
    return None


def _is_same(known: Allocation, asked: Allocation) -> bool:
    """Check whether memory is that of a known allocation, asked for again for the same process."""
    by = replace(asked.by, level=known.by.level)
    return (known.gpu, known.size, known.by) == (asked.gpu, asked.size, by)


def _extend_or_end(state: State, command: Deallocate | Extend, now: float) -> CommandResult:
    """Extend the lease of an allocation, or end the lease or the allocation."""
    known = _find(state, command.id)
    if known is None:
        ids = (allocation.id for allocation in _all(state))
        return not_found(state, "allocation", command.id, ids, most=_MAX_LISTED)
    refused = not_owner(state, command.by, known.by, f"allocation {known.id}")
    if refused is not None:
        return refused
    if isinstance(command, Extend):
        return _extended(state, known, now, kept=command.kept)
    state, events = _end(state, known, command.by, now)
    return CommandResult(state, f"allocation {known.id} is over", (known.gpu,), events=events)


def _extended(state: State, known: Allocation, now: float, *, kept: bool = False) -> CommandResult:
    """Extend the lease of an allocation, if it has one, or end the lease."""
    lease = None if kept or known.lease is None else now + LEASE_S
    gpu_state = state.gpu_states[known.gpu]
    changed = {**gpu_state.allocations, known.id: replace(known, lease=lease)}
    state = _with(state, replace(gpu_state, allocations=changed))
    text = f"allocated {format_size(known.size)} of GPU {gpu_state.gpu.index}"
    return CommandResult(state, text, (known.gpu,))


def _end(state: State, allocation: Allocation, by: Caller, now: float) -> tuple[State, list[Event]]:
    gpu_state = state.gpu_states[allocation.gpu]
    left = {name: one for name, one in gpu_state.allocations.items() if name != allocation.id}
    gpu_state = replace(gpu_state, allocations=left, allocations_changed=now)
    fields = {"id": allocation.id, "size": allocation.size, "by": caller_fields(by)}
    return _with(state, gpu_state), [gpu_event("memory.deallocated", gpu_state, now, **fields)]


def _all(state: State) -> list[Allocation]:
    return [
        allocation
        for gpu_state in state.gpu_states.values()
        for allocation in gpu_state.allocations.values()
    ]


def _find(state: State, id_: str) -> Allocation | None:
    return next((allocation for allocation in _all(state) if allocation.id == id_), None)


def _with(state: State, gpu_state: GpuState) -> State:
    return replace(state, gpu_states={**state.gpu_states, gpu_state.gpu.uuid: gpu_state})
