"""Apply the commands that reserve GPUs and end reservations. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu import health
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import (
    CommandResult,
    caller_fields,
    names_of,
    not_owner,
    wrong_gpus,
    wrong_seconds,
)
from sentinel.core.state import State
from sentinel.core.stressor_state import Stopped
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Confirm, Refusal, Reserve, Unreserve
from sentinel.protocol.views import Reservation

#: Limits of all reservations together and of a reason.
_MAX_RESERVATIONS = 256
_MAX_REASON_LENGTH = 200
#: An answer lists at most so many allocations.
_MAX_LISTED = 10


def apply_command(
    state: State, command: Reserve | Confirm | Unreserve, now: float
) -> CommandResult:
    """Apply one command about a reservation."""
    if isinstance(command, Reserve):
        return _reserve(state, command, now)
    return _confirm_or_end(state, command, now)


def expire(state: State, now: float) -> tuple[State, list[Event]]:
    """End expired reservations."""
    events: list[Event] = []
    for reservation in tuple(state.reservations.values()):
        if reservation.until is not None and now >= reservation.until:
            state, ended = _end_reservation(state, reservation, None, now)
            events += ended
    return state, events


def _reserve(state: State, command: Reserve, now: float) -> CommandResult:
    wrong = wrong_gpus(state, command.gpus) or wrong_seconds(state, command.seconds)
    wrong = wrong or _wrong_reservation(state, command)
    if wrong is not None:
        return wrong
    blocked = [_why_not(state, state.gpu_states[uuid]) for uuid in command.gpus or state.gpu_states]
    if command.gpus:
        why = "; ".join(reason for reason in blocked if reason is not None)
        if why:
            return CommandResult(state, why, refused=Refusal.CONFLICT)
        gpus = command.gpus
    else:
        free = [
            gpu_state
            for gpu_state in state.gpu_states.values()
            if _why_not(state, gpu_state) is None
        ]
        if len(free) < command.count:
            why = "; ".join(reason for reason in blocked if reason is not None)
            text = f"{len(free)} of {command.count} GPUs can be reserved: {why}"
            return CommandResult(state, text, refused=Refusal.CONFLICT)
        free.sort(key=_preference)
        gpus = tuple(gpu_state.gpu.uuid for gpu_state in free[: command.count])
    reservation = Reservation(
        id=command.id,
        gpus=gpus,
        reason=command.reason,
        by=command.by,
        since=now,
        until=None if command.seconds is None else now + command.seconds,
        bound=command.bound,
    )
    state = replace(state, reservations={**state.reservations, command.id: reservation})
    fields = {
        "id": command.id,
        "reason": command.reason,
        "for_s": command.seconds,
        "bound": command.bound,
        "by": caller_fields(command.by),
    }
    events = [gpu_event("gpu.reserved", state.gpu_states[uuid], now, **fields) for uuid in gpus]
    return CommandResult(state, f"reserved {names_of(state, gpus)}", gpus, None, events)


def _preference(gpu_state: GpuState) -> tuple[float, bool, int]:
    """Sort key: coolest, then free, then lowest index."""
    held = not isinstance(gpu_state.stressor, Stopped)
    return -health.multiplier(gpu_state), held, gpu_state.gpu.index


def _wrong_reservation(state: State, command: Reserve) -> CommandResult | None:
    """Refuse an invalid or conflicting reservation; return None if it is valid."""
    by = command.by
    wrong = None
    if not command.id or command.id in state.reservations:
        return CommandResult(
            state, f"there is a reservation {command.id!r}", refused=Refusal.CONFLICT
        )
    if len(state.reservations) >= _MAX_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
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
    return None if wrong is None else CommandResult(state, wrong, refused=Refusal.INVALID)


def _why_not(state: State, gpu_state: GpuState) -> str | None:
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
            return None
        case Busy(reason=reason, processes=processes):
            names = ", ".join(f"{one.name or 'a process'} (pid {one.pid})" for one in processes)
            return f"{name} is {reason}{': ' if names else ''}{names}"
        case Unknown(reason=reason):
            return f"{name} is unknown: {reason}"


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the unconfirmed reservations of an API process that is gone: no client knows them."""
    events: list[Event] = []
    for reservation in tuple(state.reservations.values()):
        if not reservation.confirmed:
            state, ended = _end_reservation(state, reservation, Caller(via="sentinel"), now)
            events += ended
    return state, events


def _confirm_or_end(state: State, command: Confirm | Unreserve, now: float) -> CommandResult:
    """Confirm or end a reservation."""
    reservation = state.reservations.get(command.id)
    if reservation is None:
        known = ", ".join(sorted(state.reservations)) or "none"
        text = f"there is no reservation {command.id!r}; there are: {known}"
        return CommandResult(state, text, refused=Refusal.NOT_FOUND)
    if isinstance(command, Confirm):
        kept = {**state.reservations, command.id: replace(reservation, confirmed=True)}
        state = replace(state, reservations=kept)
        return CommandResult(state, f"reservation {command.id} holds", reservation.gpus)
    refused = not_owner(state, command.by, reservation.by, f"reservation {command.id}")
    if refused is not None:
        return refused
    state, events = _end_reservation(state, reservation, command.by, now)
    return CommandResult(
        state, f"reservation {command.id} is over", reservation.gpus, events=events
    )


def _end_reservation(
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
