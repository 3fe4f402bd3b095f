"""Reservations: GPUs that are kept free for a user."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Path, Request

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.requests import ReservationRequest
from sentinel.api.routes.confirmation import confirm
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.state.conditions import availability_changed, gpus_free
from sentinel.api.state.process_watch import is_alive
from sentinel.api.state.serializers import reservation
from sentinel.api.state.supervisor_link import check_accepted
from sentinel.protocol.api_types import Code, Outcome, Reservations, Reserved
from sentinel.protocol.caller import Caller, Level
from sentinel.protocol.commands import CommandReply, Refusal, Reserve, Unreserve

router = APIRouter(prefix="/v1/reservations", tags=["reservations"])

#: The time for a change to be written to the file.
_WRITE_TIMEOUT_S = 5.0


@router.get("", responses=problems())
async def read_reservations(context: ContextDep) -> Reservations:
    """List all reservations."""
    now = time.monotonic()
    known = context.views.host.reservations
    return Reservations(reservations=tuple(reservation(one, context.views, now) for one in known))


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
    request is repeated for `wait_s` seconds. If the client disconnects before the response, nothing
    is reserved.
    """
    return await cancel_on_disconnect(request, _reserve(context, by, body))


@router.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def unreserve(id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By) -> Outcome:
    """End a reservation.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    over = f"Reservation {id_} is over, but another daemon would restore it"
    try:
        reply = await context.supervisor.execute(Unreserve, by=by, id=id_)
    except ProblemError as error:
        if error.code is Code.NOT_FOUND:  # maybe ended before, when that could not be stored
            await _stored(context, id_, over, present=False)
        raise
    await _stored(context, id_, over, present=False)
    return Outcome(text=reply.text, gpus=reply.gpus)


async def _reserve(context: ApiContext, by: Caller, body: ReservationRequest) -> Reserved:
    deadline = time.monotonic() + body.wait_s
    _check(body, by)
    gpus = context.views.select(body.gpus)
    id_ = _new_id(context)
    try:
        reply = await _request(context, by, body, gpus, id_, deadline)
        await gpus_free(context.views, reply.gpus, deadline)
        confirmed = await confirm(context, by, id_, context.views.reservation)
        await _stored(context, id_, "Nothing is reserved", present=True)
    except BaseException:
        # No client knows its id, so no client would end it. If there is no such reservation, the
        # refusal concerns no client either.
        context.supervisor.post(Unreserve, by=Caller(via="sentinel", level=Level.OWN), id=id_)
        raise
    return Reserved(reservation=reservation(confirmed, context.views, time.monotonic()))


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


async def _request(
    context: ApiContext,
    by: Caller,
    body: ReservationRequest,
    gpus: tuple[str, ...],
    id_: str,
    deadline: float,
) -> CommandReply:
    """Request a reservation, repeatedly while GPUs are not available.

    Raises:
        ProblemError: It was refused, or there is no reply.
    """
    while True:
        reply = await context.supervisor.request(
            Reserve,
            by=by,
            id=id_,
            reason=body.reason,
            gpus=gpus,
            count=body.count or 0,
            seconds=body.seconds,
            bound=body.bound,
        )
        if reply.refused is not Refusal.CONFLICT or time.monotonic() >= deadline:
            return check_accepted(reply)
        await availability_changed(context.views, deadline)


def _new_id(context: ApiContext) -> str:
    """Create an id that no reservation has."""
    while True:
        id_ = secrets.token_hex(4)
        if context.views.reservation(id_) is None:
            return id_
