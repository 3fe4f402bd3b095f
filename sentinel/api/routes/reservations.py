"""Reservations: GPUs that are kept free for a user."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.requests import ReservationRequest
from sentinel.api.routes.confirmation import confirm
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.state.conditions import gpus_free
from sentinel.api.state.process_watch import is_alive
from sentinel.api.state.serializers import queue, reservation
from sentinel.protocol.api_types import Outcome, Reservations, Reserved
from sentinel.protocol.caller import Caller, Level
from sentinel.protocol.commands import CancelReservation, Reserve
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Reservation

router = APIRouter(prefix="/v1/reservations", tags=["reservations"])

#: The time for a change to be written to the file.
_WRITE_TIMEOUT_S = 5.0
#: The time for a new API process to receive the state.
_READY_TIMEOUT_S = 5.0
#: The caller of commands that undo a request.
_THIS_PROCESS = Caller(via="sentinel", level=Level.OWN)


@router.get("", responses=problems())
async def read_reservations(context: ContextDep) -> Reservations:
    """List all reservations, and the queue of requests for them."""
    now = time.monotonic()
    known = context.views.host.reservations
    return Reservations(
        reservations=tuple(reservation(one, context.views, now) for one in known),
        queue=queue(context.views, now),
    )


@router.post(
    "",
    status_code=201,
    responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT),
)
async def reserve(
    request: Request, context: ContextDep, by: By, body: ReservationRequest
) -> Reserved:
    """Keep GPUs free: `gpus`, or any `count`, for `seconds` or until the reservation is ended.

    The response is sent when the memory of all of them is free. If too few are available, the
    request waits in the queue for at most `wait_s` seconds. If the client disconnects before the
    response, it leaves the queue, and nothing is reserved.
    """
    return await cancel_on_disconnect(request, _reserve(context, by, body))


@router.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def cancel_reservation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End a reservation, or a request that waits for one.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    over = f"Reservation {id_} is over, but another daemon would restore it"
    try:
        reply = await context.supervisor.execute(CancelReservation, by=by, id=id_)
    except ProblemError as error:
        if error.code is Code.NOT_FOUND:  # maybe ended before, when that could not be stored
            await _stored(context, id_, over, present=False)
        raise
    if reply.gpus:
        await _stored(context, id_, over, present=False)
    return Outcome(text=reply.text, gpus=reply.gpus)


async def _reserve(context: ApiContext, by: Caller, body: ReservationRequest) -> Reserved:
    deadline = time.monotonic() + body.wait_s
    views = context.views
    # A client returns at once when its API process has been replaced.
    await views.until(lambda: views.fresh, time.monotonic() + _READY_TIMEOUT_S)
    _check(body, by)
    gpus = views.select(body.gpus)
    made = _made_before(context, by, body, gpus)
    if made is not None:
        await _stored(context, made.id, "Nothing is reserved", present=True)
        return Reserved(reservation=reservation(made, views, time.monotonic()))
    id_ = _id(context, by, body.id)
    context.pending_reservations.add(id_)
    try:
        return await _obtain(context, by, body, gpus, id_, deadline)
    finally:
        context.pending_reservations.discard(id_)


def _made_before(
    context: ApiContext, by: Caller, body: ReservationRequest, gpus: tuple[str, ...]
) -> Reservation | None:
    """Find the reservation that this very request has made, if its response was lost.

    An API process may end between the confirmation and the response. Its client sends the request
    again, and would otherwise leave GPUs reserved that no client uses.
    """
    found = None if body.id is None else context.views.reservation(body.id)
    if found is None or not found.confirmed or body.id in context.pending_reservations:
        return None
    same = replace(found.by, level=by.level) == by
    same = same and (found.reason, found.bound) == (body.reason, body.bound)
    same = same and (found.until is None) == (body.seconds is None)
    same = same and (set(gpus) == set(found.gpus) if gpus else body.count == len(found.gpus))
    return found if same else None


async def _obtain(
    context: ApiContext,
    by: Caller,
    body: ReservationRequest,
    gpus: tuple[str, ...],
    id_: str,
    deadline: float,
) -> Reserved:
    """Request a reservation, wait for its GPUs, and keep it."""
    # Before a stressor is stopped for a reservation that could not be kept.
    why = await context.reservation_writer.test_disk(_WRITE_TIMEOUT_S)
    if why is not None:
        raise ProblemError(Code.UNAVAILABLE, f"Nothing is reserved: {why}.")
    reply = None
    try:
        reply = await context.supervisor.execute(
            Reserve,
            by=by,
            id=id_,
            reason=body.reason,
            gpus=gpus,
            count=body.count or 0,
            seconds=body.seconds,
            bound=body.bound,
            wait=body.wait_s > 0,
        )
        await gpus_free(
            context.views, reply.gpus or await _granted(context, id_, deadline), deadline
        )
        confirmed = await confirm(context, by, id_, context.views.reservation)
        await _stored(context, id_, "Nothing is reserved", present=True)
    except BaseException as error:
        # A request that was refused has made nothing; its id may be that of another one.
        refused = isinstance(error, ProblemError) and error.code is not Code.UNAVAILABLE
        if reply is not None or not refused:
            # No client knows its id, so no client would end it.
            context.supervisor.post(CancelReservation, by=_THIS_PROCESS, id=id_)
        raise
    return Reserved(reservation=reservation(confirmed, context.views, time.monotonic()))


async def _granted(context: ApiContext, id_: str, deadline: float) -> tuple[str, ...]:
    """Wait in the queue; return the GPUs.

    Raises:
        ProblemError: They were not available in time, or a user has ended the request.
    """
    views = context.views

    def is_settled() -> bool:
        return views.reservation(id_) is not None or views.queued(id_) is None

    if not await views.until(is_settled, deadline):
        left = await context.supervisor.request(CancelReservation, by=_THIS_PROCESS, id=id_)
        raise ProblemError(Code.CONFLICT, left.text)
    granted = views.reservation(id_)
    if granted is None:
        raise ProblemError(Code.CONFLICT, "The request was ended while it waited.")
    return granted.gpus


async def _stored(context: ApiContext, id_: str, otherwise: str, *, present: bool) -> None:
    """Wait until the file on disk has a reservation, or lacks it.

    Raises:
        ProblemError: It cannot be written; the message begins with ``otherwise``.
    """
    writer = context.reservation_writer
    why = await writer.wait_stored(id_, _WRITE_TIMEOUT_S, present=present)
    if why is not None:
        raise ProblemError(Code.UNAVAILABLE, f"{otherwise}: {why}.")


def _check(body: ReservationRequest, by: Caller) -> None:
    """Reject inconsistent requests.

    Raises:
        ProblemError: There are GPUs as well as a count, or neither; or the reservation is to be
            bound to a process that is not visible.
    """
    if (body.gpus is None) == (body.count is None):
        raise ProblemError(Code.INVALID, "Give either gpus, a selection, or count, a number.")
    if body.bound and not is_alive(by):
        why = (
            "a TCP client is not a process of this host"
            if by.via == "tcp"
            else "the calling process is not visible here, as from another container"
        )
        raise ProblemError(Code.INVALID, f"It cannot be bound: {why}. Give it seconds instead.")


def _id(context: ApiContext, by: Caller, given: str | None) -> str:
    """Return the id of a new reservation: the client's, or one that no reservation has.

    Raises:
        ProblemError: The client's is in use, and not by a request of this client that has lost its
            API process.
    """
    while given is None:
        id_ = secrets.token_hex(4)
        if context.views.reservation(id_) is None and context.views.queued(id_) is None:
            return id_
    queued = context.views.queued(given)
    lost = queued is not None and queued.orphaned
    mine = queued is None or (queued.by.via, queued.by.uid) == (by.via, by.uid)
    waits = given in context.pending_reservations or (queued is not None and not lost)
    if waits or not mine or context.views.reservation(given) is not None:
        raise ProblemError(Code.CONFLICT, f"There is a request or a reservation {given!r}.")
    return given
