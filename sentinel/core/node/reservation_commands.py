"""Apply the commands that reserve GPUs and end reservations. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.node import reservation_queue
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    check_gpus,
    check_owner,
    check_seconds,
    names_of,
    not_found,
)
from sentinel.core.node.reservation_grants import choose, end, grant
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Step, upcoming
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Confirm, Refusal, Reserve, Unreserve
from sentinel.protocol.views import Reservation

#: Limits of all reservations together, and of the characters of a reason.
_MAX_RESERVATIONS = 256
_MAX_REASON_LENGTH = 200


def reserve(state: State, command: Reserve, seen: Observation) -> Accepted:
    """Apply a command that reserves GPUs, or waits for them."""
    now = seen.now
    waiting = reservation_queue.find(state, command.id)
    if waiting is not None:
        return reservation_queue.enter_again(state, waiting, command)
    check_gpus(state, command.gpus)
    check_seconds(command.seconds)
    _check_reservation(state, command)
    gpus, why = choose(state, command, reservation_queue.claims(state))
    if not gpus and command.wait:
        return reservation_queue.enter(state, command, why, now)
    if not gpus:
        raise RefusedError(Refusal.CONFLICT, why)
    step = grant(state, command, gpus, now)
    text = f"reserved {names_of(state, gpus)}"
    return Accepted(step, text, gpus)


def confirm(state: State, command: Confirm, _: Observation) -> Accepted:
    """Apply that the client of a reservation has its answer."""
    reservation = _find(state, command.id)
    kept = {**state.reservations, command.id: replace(reservation, confirmed=True)}
    state = reservation_queue.forget(replace(state, reservations=kept), command.id)
    text = f"reservation {command.id} holds"
    return Accepted(Step(state), text, reservation.gpus)


def unreserve(state: State, command: Unreserve, seen: Observation) -> Accepted:
    """Apply a command that ends a reservation, or a request in the queue."""
    waiting = reservation_queue.find(state, command.id)
    if waiting is not None and command.id not in state.reservations:
        check_owner(command.by, waiting.command.by, f"request {command.id}")
        return reservation_queue.leave(state, waiting, command.by, seen.now)
    reservation = _find(state, command.id)
    check_owner(command.by, reservation.by, f"reservation {command.id}")
    state = reservation_queue.forget(state, command.id)
    step = end(state, reservation, command.by, seen.now)
    return Accepted(step, f"reservation {command.id} is over", reservation.gpus)


def _find(state: State, id_: str) -> Reservation:
    reservation = state.reservations.get(id_)
    if reservation is None:
        raise not_found("reservation", id_, state.reservations)
    return reservation


def expire(state: State, seen: Observation) -> Step[State]:
    """End expired reservations."""
    step, now = Step(state), seen.now
    for reservation in state.reservations.values():
        if reservation.until is not None and now >= reservation.until:
            step = step.then(end, reservation, None, now)
            step = step._replace(state=reservation_queue.forget(step.state, reservation.id))
    untils = [reservation.until for reservation in step.state.reservations.values()]
    return step._replace(due=upcoming(now, *untils))


def _check_reservation(state: State, command: Reserve) -> None:
    """Refuse an invalid or conflicting reservation."""
    by = command.by
    wrong = None
    if not command.id or command.id in state.reservations:
        raise RefusedError(Refusal.CONFLICT, f"there is a reservation {command.id!r}")
    if len(state.reservations) >= _MAX_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        raise RefusedError(Refusal.CONFLICT, text)
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
    if wrong is not None:
        raise RefusedError(Refusal.INVALID, wrong)


def forget_unconfirmed(state: State, seen: Observation) -> Step[State]:
    """End the unconfirmed reservations of an API process that is gone: no client knows them.

    Those that came from the queue have their places in it again.
    """
    step, now = Step(state), seen.now
    for reservation in state.reservations.values():
        if not reservation.confirmed:
            step = step.then(end, reservation, Caller(via="sentinel"), now)
    return step._replace(state=reservation_queue.orphan(step.state, now))
