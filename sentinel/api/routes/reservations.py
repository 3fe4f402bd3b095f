"""Reservations: GPUs that are kept free for somebody."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Path, Request

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.requests import ReservationRequest
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, may
from sentinel.api.state.conditions import availability_changed, gpus_free
from sentinel.api.state.process_watch import is_alive
from sentinel.api.state.serializers import reservation
from sentinel.api.state.supervisor_link import accepted
from sentinel.protocol.api_types import Code, Outcome, Reservations, Reserved
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import CommandReply, Confirm, Refusal, Reserve, Unreserve
from sentinel.protocol.views import Reservation

router = APIRouter(prefix="/v1/reservations", tags=["reserving"])

#: How long an answer may wait for the file of the reservations, in seconds.
_STORED_WITHIN = 2.0
_ENDED = "The reservation was ended before it was complete."


@router.get("", responses=may())
async def read_reservations(context: ContextDep) -> Reservations:
    """Show all reservations."""
    now = time.monotonic()
    held = context.views.host.reservations
    return Reservations(reservations=tuple(reservation(one, context.views, now) for one in held))


@router.post(
    "",
    status_code=201,
    responses=may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT),
)
async def reserve(
    request: Request, context: ContextDep, by: By, wish: ReservationRequest
) -> Reserved:
    """Keep GPUs free: `gpus`, or any `count`, for `seconds` or until it is ended.

    The answer comes when the memory of all of them is free. Where not enough can be had, that is
    tried again for `wait_s` seconds. A client that goes away before the answer reserves nothing.
    """
    return await cancel_on_disconnect(request, _reserve(context, by, wish))


@router.delete("/{id}", responses=may(Code.NOT_FOUND, Code.INVALID))
async def unreserve(id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By) -> Outcome:
    """End a reservation."""
    answer = await context.channel.order(Unreserve, by=by, id=id_)
    return Outcome(text=answer.text, gpus=answer.gpus)


async def _reserve(context: ApiContext, by: Caller, wish: ReservationRequest) -> Reserved:
    deadline = time.monotonic() + wish.wait_s
    _check(wish, by)
    gpus = context.views.select(wish.gpus)
    name = _new_name(context)
    try:
        answer = await _have(context, by, wish, gpus, name, deadline)
        await gpus_free(context.views, answer.gpus, deadline)
        held = await _kept(context, by, name)
    except BaseException:
        # Nobody was told of it, so nobody would ever end it. It may be that there is none, which is
        # nothing that the client asked about.
        context.channel.tell(Unreserve, by=Caller(via="service"), id=name)
        raise
    return Reserved(reservation=reservation(held, context.views, time.monotonic()))


def _check(wish: ReservationRequest, by: Caller) -> None:
    """Refuse what makes no sense.

    Raises:
        ProblemError: It names GPUs as well as a number of them, or neither; or it is to be bound to
            a process that cannot be seen.
    """
    if (wish.gpus is None) == (wish.count is None):
        raise ProblemError(Code.INVALID, "Say either gpus, which ones, or count, how many.")
    if wish.bound and not is_alive(by):
        why = (
            "a client over TCP is no process of this host"
            if by.via == "tcp"
            else "the process that asks cannot be seen from here, as in another container"
        )
        raise ProblemError(Code.INVALID, f"It cannot be bound: {why}. Give it seconds instead.")


async def _have(
    context: ApiContext,
    by: Caller,
    wish: ReservationRequest,
    gpus: tuple[str, ...],
    name: str,
    deadline: float,
) -> CommandReply:
    """Return the answer to a reservation, which is tried again as long as somebody is in the way.

    Raises:
        ProblemError: It was refused, or there is no answer.
    """
    while True:
        answer = await context.channel.ask(
            Reserve,
            by=by,
            id=name,
            reason=wish.reason,
            gpus=gpus,
            count=wish.count or 0,
            seconds=wish.seconds,
            bound=wish.bound,
        )
        if answer.refused is not Refusal.CONFLICT or time.monotonic() >= deadline:
            return accepted(answer)
        await availability_changed(context.views, deadline)


async def _kept(context: ApiContext, by: Caller, name: str) -> Reservation:
    """Return the reservation of this id once it outlives this service, and is in the file.

    Where it cannot be written that is said in the journal, and the reservation holds.

    Raises:
        ProblemError: Somebody has ended it, or there is no answer.
    """
    answer = await context.channel.ask(Confirm, by=by, id=name)
    if answer.refused is Refusal.NOT_FOUND:
        raise ProblemError(Code.CONFLICT, _ENDED)
    accepted(answer)

    def shown() -> bool:
        held = context.views.reservation(name)
        return held is None or held.confirmed

    deadline = time.monotonic() + _STORED_WITHIN
    if not await context.views.until(shown, deadline):
        raise ProblemError(Code.UNAVAILABLE, "The daemon does not show the reservation.")
    await context.records.written(deadline - time.monotonic())
    held = context.views.reservation(name)
    if held is None:
        raise ProblemError(Code.CONFLICT, _ENDED)
    return held


def _new_name(context: ApiContext) -> str:
    """Return an id that no reservation has."""
    while True:
        name = secrets.token_hex(4)
        if context.views.reservation(name) is None:
            return name
