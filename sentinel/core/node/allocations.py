"""Allocations of a GPU's memory: the command. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.attribution import available, budget
from sentinel.core.gpu_state import Unknown
from sentinel.core.node import grants
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_places,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State, reservation_of
from sentinel.core.step import Step, gpu_event
from sentinel.protocol.commands import LEASE_S, Allocate, GrantKind, Refusal
from sentinel.protocol.places import Places
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: Limits of all allocations together and of an id: one message lists all of them.
_ALLOCATIONS = Places(128, "allocations", "their users and administrators")
_MAX_ID_LENGTH = 100


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
    known = grants.known(state, allocation, seen.now)
    if known is not None:
        return Accepted(Step(grants.put(state, known)), text, known.gpus)
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
    gpu_state = replace(gpu_state, allocations=allocations)
    step = Step(state, events=(event,)).then(grants.attribute_allocated, gpu_state, seen)
    return Accepted(step, text, allocation.gpus)


def _check_allocation(state: State, command: Allocate) -> None:
    """Refuse an invalid allocation, or one too many."""
    gpu_state = state.gpu_states[command.gpu]
    allocations = grants.granted(state, GrantKind.ALLOCATION).values()
    users = [allocation.by.account for allocation in allocations]
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
