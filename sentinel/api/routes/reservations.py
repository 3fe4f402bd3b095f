"""Reservations: GPUs that are kept free for somebody."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Path, Request

from sentinel.api.context import Desk
from sentinel.api.http.errors import Code, ProblemError
from sentinel.api.routes.dependencies import AtDesk, By, attended, may
from sentinel.api.schemas.status import Done, Reservations, Reserved, ReserveWish
from sentinel.api.state.conditions import free_for, something_else
from sentinel.api.state.process_watch import lives
from sentinel.api.state.serializers import reservation
from sentinel.api.state.supervisor_link import accepted
from sentinel.protocol.caller import Asker
from sentinel.protocol.commands import Answer, Confirm, Refusal, Reserve, Unreserve
from sentinel.protocol.views import Reservation

router = APIRouter(prefix="/v1/reservations", tags=["reserving"])

#: How long an answer may wait for the file of the reservations, in seconds.
_STORED_WITHIN = 2.0
_ENDED = "The reservation was ended before it was complete."


@router.get("", responses=may())
async def read_reservations(desk: AtDesk) -> Reservations:
    """Show all reservations."""
    now = time.monotonic()
    held = [reservation(one, desk.views, now) for one in desk.views.host.reservations]
    return Reservations(reservations=held)


@router.post(
    "",
    status_code=201,
    responses=may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT),
)
async def reserve(request: Request, desk: AtDesk, by: By, wish: ReserveWish) -> Reserved:
    """Keep GPUs free: `gpus`, or any `count`, for `seconds` or until it is ended.

    The answer comes when the memory of all of them is free. Where not enough can be had, that is
    tried again for `wait_s` seconds. A client that goes away before the answer reserves nothing.
    """
    return await attended(request, _reserve(desk, by, wish))


@router.delete("/{id}", responses=may(Code.NOT_FOUND, Code.INVALID))
async def unreserve(id_: Annotated[str, Path(alias="id")], desk: AtDesk, by: By) -> Done:
    """End a reservation."""
    answer = await desk.channel.order(Unreserve, by=by, id=id_)
    return Done(text=answer.text, gpus=list(answer.gpus))


async def _reserve(desk: Desk, by: Asker, wish: ReserveWish) -> Reserved:
    deadline = time.monotonic() + wish.wait_s
    _check(wish, by)
    gpus = desk.views.select(wish.gpus)
    name = _new_name(desk)
    try:
        answer = await _have(desk, by, wish, gpus, name, deadline)
        await free_for(desk.views, answer.gpus, deadline)
        held = await _kept(desk, by, name)
    except BaseException:
        # Nobody was told of it, so nobody would ever end it. It may be that there is none, which is
        # nothing that the client asked about.
        desk.channel.tell(Unreserve, by=Asker(via="service"), id=name)
        raise
    return Reserved(reservation=reservation(held, desk.views, time.monotonic()))


def _check(wish: ReserveWish, by: Asker) -> None:
    """Refuse what makes no sense.

    Raises:
        ProblemError: It names GPUs as well as a number of them, or neither; or it is to be bound to
            a process that cannot be seen.
    """
    if (wish.gpus is None) == (wish.count is None):
        raise ProblemError(Code.INVALID, "Say either gpus, which ones, or count, how many.")
    if wish.bound and not lives(by):
        why = (
            "a client over TCP is no process of this host"
            if by.via == "tcp"
            else "the process that asks cannot be seen from here, as in another container"
        )
        raise ProblemError(Code.INVALID, f"It cannot be bound: {why}. Give it seconds instead.")


async def _have(
    desk: Desk, by: Asker, wish: ReserveWish, gpus: tuple[str, ...], name: str, deadline: float
) -> Answer:
    """Return the answer to a reservation, which is tried again as long as somebody is in the way.

    Raises:
        ProblemError: It was refused, or there is no answer.
    """
    while True:
        answer = await desk.channel.ask(
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
        await something_else(desk.views, deadline)


async def _kept(desk: Desk, by: Asker, name: str) -> Reservation:
    """Return the reservation of this id once it outlives this service, and is in the file.

    Where it cannot be written that is said in the journal, and the reservation holds.

    Raises:
        ProblemError: Somebody has ended it, or there is no answer.
    """
    answer = await desk.channel.ask(Confirm, by=by, id=name)
    if answer.refused is Refusal.NOT_FOUND:
        raise ProblemError(Code.CONFLICT, _ENDED)
    accepted(answer)

    def shown() -> bool:
        held = desk.views.reservation(name)
        return held is None or held.confirmed

    deadline = time.monotonic() + _STORED_WITHIN
    if not await desk.views.until(shown, deadline):
        raise ProblemError(Code.UNAVAILABLE, "The daemon does not show the reservation.")
    await desk.records.written(deadline - time.monotonic())
    held = desk.views.reservation(name)
    if held is None:
        raise ProblemError(Code.CONFLICT, _ENDED)
    return held


def _new_name(desk: Desk) -> str:
    """Return an id that no reservation has."""
    while True:
        name = secrets.token_hex(4)
        if desk.views.reservation(name) is None:
            return name
