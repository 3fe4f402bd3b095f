"""Choose the GPUs of a reservation, make it and end it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu import health
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import caller_fields
from sentinel.core.state import State
from sentinel.core.stressor_state import Stopped
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Reserve
from sentinel.protocol.views import Reservation

#: An answer lists at most so many allocations.
_MAX_LISTED = 10


def choose(
    state: State, command: Reserve, claims: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Choose the GPUs of a valid request.

    Args:
        state: The state.
        command: The request.
        claims: The GPUs of earlier requests in the queue, with the ids of these.

    Returns:
        The UUIDs, or none and why too few GPUs are available.
    """
    blocked = {
        uuid: why
        for uuid in command.gpus or state.gpu_states
        if (why := _why_not(state, state.gpu_states[uuid], claims)) is not None
    }
    why = "; ".join(blocked.values())
    if command.gpus:
        return ((), why) if blocked else (command.gpus, "")
    free = [one for uuid, one in state.gpu_states.items() if uuid not in blocked]
    if len(free) < command.count:
        return (), f"{len(free)} of {command.count} GPUs can be reserved: {why}"
    free.sort(key=_preference)
    return tuple(gpu_state.gpu.uuid for gpu_state in free[: command.count]), ""


def grant(
    state: State, command: Reserve, gpus: tuple[str, ...], now: float, waited: float = 0.0
) -> tuple[State, list[Event]]:
    """Reserve GPUs after ``waited`` seconds in the queue."""
    reservation = Reservation(
        id=command.id,
        gpus=gpus,
        reason=command.reason,
        by=command.by,
        since=now,
        until=None if command.seconds is None else now + command.seconds,
        bound=command.bound,
    )
    fields = {
        "id": command.id,
        "reason": command.reason,
        "for_s": command.seconds,
        "bound": command.bound,
        "waited_s": waited,
        "by": caller_fields(command.by),
    }
    events = [gpu_event("gpu.reserved", state.gpu_states[uuid], now, **fields) for uuid in gpus]
    return replace(state, reservations={**state.reservations, command.id: reservation}), events


def end(
    state: State, reservation: Reservation, by: Caller | None, now: float
) -> tuple[State, list[Event]]:
    """End a reservation; ``by`` is None if it expired."""
    left = {id_: one for id_, one in state.reservations.items() if id_ != reservation.id}
    fields = {"id": reservation.id, "by": None if by is None else caller_fields(by)}
    events = [
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, **fields)
        for uuid in reservation.gpus
        if uuid in state.gpu_states
    ]
    return replace(state, reservations=left), events


def _preference(gpu_state: GpuState) -> tuple[float, bool, int]:
    """Sort key: coolest, then free, then lowest index."""
    held = not isinstance(gpu_state.stressor, Stopped)
    return -health.multiplier(gpu_state), held, gpu_state.gpu.index


def _why_not(state: State, gpu_state: GpuState, claims: Mapping[str, str]) -> str | None:
    """Explain why a GPU cannot be reserved now, or return None if it can."""
    name = f"GPU {gpu_state.gpu.index}"
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        return f"{name} is reserved: {reserved.reason} ({reserved.id})"
    if gpu_state.allocations:
        ids = ", ".join(sorted(gpu_state.allocations)[:_MAX_LISTED])
        return f"memory of {name} is allocated: {ids}"
    match gpu_state.occupancy:
        case Idle():
            earlier = claims.get(gpu_state.gpu.uuid)
            return None if earlier is None else f"{name} is for an earlier request ({earlier})"
        case Busy(reason=reason, processes=processes):
            names = ", ".join(f"{one.name or 'a process'} (pid {one.pid})" for one in processes)
            return f"{name} is {reason}{': ' if names else ''}{names}"
        case Unknown(reason=reason):
            return f"{name} is unknown: {reason}"
