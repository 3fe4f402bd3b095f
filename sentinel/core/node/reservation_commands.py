"""Apply the commands that reserve GPUs and end reservations. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.node import reservation_queue
from sentinel.core.node.command_result import (
    CommandResult,
    names_of,
    not_found,
    not_owner,
    wrong_gpus,
    wrong_seconds,
)
from sentinel.core.node.reservation_grants import choose, end, grant
from sentinel.core.state import State
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Confirm, Refusal, Reserve, Unreserve

#: Limits of all reservations together, and of the characters of a reason.
_MAX_RESERVATIONS = 256
_MAX_REASON_LENGTH = 200


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
            state, ended = end(state, reservation, None, now)
            state = reservation_queue.forget(state, reservation.id)
            events += ended
    return state, events


def _reserve(state: State, command: Reserve, now: float) -> CommandResult:
    waiting = reservation_queue.find(state, command.id)
    if waiting is not None:
        return reservation_queue.enter_again(state, waiting, command)
    wrong = wrong_gpus(state, command.gpus) or wrong_seconds(state, command.seconds)
    wrong = wrong or _wrong_reservation(state, command)
    if wrong is not None:
        return wrong
    gpus, why = choose(state, command, reservation_queue.claims(state))
    if not gpus and command.wait:
        return reservation_queue.enter(state, command, why, now)
    if not gpus:
        return CommandResult(state, why, refused=Refusal.CONFLICT)
    state, events = grant(state, command, gpus, now)
    return CommandResult(state, f"reserved {names_of(state, gpus)}", gpus, None, events)


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


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the unconfirmed reservations of an API process that is gone: no client knows them.

    Those that came from the queue have their places in it again.
    """
    events: list[Event] = []
    for reservation in tuple(state.reservations.values()):
        if not reservation.confirmed:
            state, ended = end(state, reservation, Caller(via="sentinel"), now)
            events += ended
    return reservation_queue.orphan(state, now), events


def _confirm_or_end(state: State, command: Confirm | Unreserve, now: float) -> CommandResult:
    """Confirm or end a reservation, or end a request in the queue."""
    reservation = state.reservations.get(command.id)
    waiting = reservation_queue.find(state, command.id)
    if reservation is None and waiting is not None and isinstance(command, Unreserve):
        what = f"request {command.id}"
        refused = not_owner(state, command.by, waiting.command.by, what)
        return refused or reservation_queue.leave(state, waiting, command.by, now)
    if reservation is None:
        return not_found(state, "reservation", command.id, state.reservations)
    if isinstance(command, Confirm):
        kept = {**state.reservations, command.id: replace(reservation, confirmed=True)}
        state = reservation_queue.forget(replace(state, reservations=kept), command.id)
        return CommandResult(state, f"reservation {command.id} holds", reservation.gpus)
    refused = not_owner(state, command.by, reservation.by, f"reservation {command.id}")
    if refused is not None:
        return refused
    state, events = end(state, reservation, command.by, now)
    state = reservation_queue.forget(state, command.id)
    return CommandResult(
        state, f"reservation {command.id} is over", reservation.gpus, events=events
    )
