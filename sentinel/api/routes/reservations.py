"""Reservations: GPUs that are kept free for a user."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request

from sentinel.api.bodies import ProblemError, ReservationId, ReservationRequest
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import (
    By,
    ContextDep,
    cancel_on_disconnect,
    problems,
    provisional,
)
from sentinel.api.serializers import queue, reservation, reservations
from sentinel.api.snapshots import gpus_free
from sentinel.api.supervisor_link import is_alive
from sentinel.protocol.api_types import Outcome, ReservationInfo, Reservations
from sentinel.protocol.commands import Caller, CancelReservation, Reserve
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Reservation

router = APIRouter(prefix="/v1/reservations", tags=["reservations"])

#: The time for a change to be written to the file.
_WRITE_TIMEOUT_S = 5.0
#: The time for a new API process to receive the state.
_READY_TIMEOUT_S = 5.0


@router.get("", responses=problems())
async def read_reservations(context: ContextDep) -> Reservations:
    """List all reservations, and the queue of requests for them."""
    now = time.monotonic()
    return Reservations(
        reservations=reservations(context.views, now), queue=queue(context.views, now)
    )


@router.put(
    "/{id}", responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)
)
async def reserve(
    id_: Annotated[ReservationId, Path(alias="id")],
    request: Request,
    context: ContextDep,
    by: By,
    body: ReservationRequest,
) -> ReservationInfo:
    """Keep GPUs free: `gpus`, or any `count`, for `seconds` or until the reservation is ended.

    The response is sent when the memory of all of them is free. If too few are available, the
    request waits in the queue for at most `wait_s` seconds. If the client disconnects before the
    response, it leaves the queue, and nothing is reserved. The same request again has the same
    response; after the end of a connection, it continues at its place for half a minute.
    """
    held = await cancel_on_disconnect(request, _reserve(context, by, id_, body))
    return reservation(held, context.views, time.monotonic())


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
            await _stored(context, over)
        raise
    if reply.gpus:
        await _stored(context, over)
    return Outcome(text=reply.text, gpus=reply.gpus)


async def _reserve(
    context: ApiContext, by: Caller, id_: str, body: ReservationRequest
) -> Reservation:
    """Request a reservation, wait for its GPUs, store the answer, and end the lease."""
    deadline = time.monotonic() + body.wait_s
    views, writer = context.views, context.reservation_writer
    # A client returns at once when its API process has been replaced.
    await views.until(lambda: views.fresh, time.monotonic() + _READY_TIMEOUT_S)
    _check(body, by)
    gpus = views.select(body.gpus)
    # Before a stressor is stopped for a reservation that could not be kept.
    why = await writer.test_disk(_WRITE_TIMEOUT_S)
    if why is not None:
        raise ProblemError(Code.UNAVAILABLE, f"Nothing is reserved: {why}.")
    await context.supervisor.execute(
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
    known = views.reservation(id_)
    if known is not None and known.lease is None:  # its answer was lost
        await _stored(context, "The reservation is not stored")
        return known
    with ExitStack() as stored:
        async with provisional(context, by, id_, CancelReservation):
            held = await _granted(context, by, id_, deadline)
            await gpus_free(views, held.gpus, deadline)
            held = replace(held, lease=None)
            stored.enter_context(writer.adding(held))
            await _stored(context, "Nothing is reserved")
    return held


async def _granted(context: ApiContext, by: Caller, id_: str, deadline: float) -> Reservation:
    """Wait in the queue.

    Raises:
        ProblemError: The GPUs were not available in time, or a user has ended the request.
    """
    views = context.views

    def is_settled() -> bool:
        request = views.reservation(id_)
        return request is None or bool(request.gpus)

    if not await views.until(is_settled, deadline):
        left = await context.supervisor.request(CancelReservation, by=by, id=id_)
        raise ProblemError(Code.CONFLICT, left.text)
    granted = views.reservation(id_)
    if granted is None:
        raise ProblemError(Code.CONFLICT, "The request was ended while it waited.")
    return granted


async def _stored(context: ApiContext, otherwise: str) -> None:
    """Wait until the file on disk has the reservations as they are.

    Raises:
        ProblemError: It cannot be written; the message begins with ``otherwise``.
    """
    why = await context.reservation_writer.wait_written(_WRITE_TIMEOUT_S)
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
