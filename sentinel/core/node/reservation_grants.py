"""Choose the GPUs of a reservation, make it and end it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.core.events import gpu_event
from sentinel.core.gpu import health
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import caller_fields
from sentinel.core.state import State
from sentinel.core.step import Step, upcoming
from sentinel.core.stressor_state import Stopped
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Reserve
from sentinel.protocol.views import Reservation
from sentinel.units import format_indices

#: An answer lists at most so many allocations.
_MAX_LISTED = 10
#: And so many reasons; GPUs with the same one are named together.
_MAX_REASONS = 4


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
        uuid: reason
        for uuid in command.gpus or state.gpu_states
        if (reason := _why_not(state, state.gpu_states[uuid], claims)) is not None
    }
    why = _summary(list(blocked.values()))
    if command.gpus:
        return ((), why) if blocked else (command.gpus, "")
    free = [one for uuid, one in state.gpu_states.items() if uuid not in blocked]
    if len(free) < command.count:
        return (), f"{len(free)} of {command.count} GPUs can be reserved: {why}"
    free.sort(key=_preference)
    return tuple(gpu_state.gpu.uuid for gpu_state in free[: command.count]), ""


def grant(
    state: State, command: Reserve, gpus: tuple[str, ...], now: float, waited: float = 0.0
) -> Step[State]:
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
    state = replace(state, reservations={**state.reservations, command.id: reservation})
    return Step(state, events=tuple(events), due=upcoming(now, reservation.until))


def end(state: State, reservation: Reservation, by: Caller | None, now: float) -> Step[State]:
    """End a reservation; ``by`` is None if it expired."""
    left = {id_: one for id_, one in state.reservations.items() if id_ != reservation.id}
    fields = {"id": reservation.id, "by": None if by is None else caller_fields(by)}
    events = [
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, **fields)
        for uuid in reservation.gpus
        if uuid in state.gpu_states
    ]
    return Step(replace(state, reservations=left), events=tuple(events))


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
        one = len(group) == 1
        name = f"GPU {group[0].index} is" if one else f"GPUs {_indices(group)} are"
        parts.append(f"{name} {text}{group[0].more if one else ''}")
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
            names = ", ".join(dict.fromkeys(one.name or "a process" for one in processes))
            pids = ", ".join(str(one.pid) for one in processes[:_MAX_LISTED])
            text = f"{reason}: {names}" if names else reason
            return _Reason(index, text, f" (pid {pids})" if pids else "")
        case Unknown(reason=reason):
            return _Reason(index, f"unknown: {reason}")
