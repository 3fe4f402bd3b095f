"""What routes share: the context, the caller, their problems, and cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from sentinel.api.access import Peer
from sentinel.api.bodies import MEDIA_TYPE, PROBLEM_REFERENCE, ProblemError
from sentinel.api.context import ApiContext
from sentinel.api.supervisor_link import check_accepted
from sentinel.protocol.commands import (
    LEASE_S,
    Caller,
    CancelAllocation,
    CancelReservation,
    CommandReply,
    Extend,
    Refusal,
)
from sentinel.protocol.problem import Code

T = TypeVar("T")

#: How often the lease of what a client waits for is renewed.
_RENEW_EVERY_S = LEASE_S / 3
#: Problems of every route.
_COMMON = (
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    Code.TOO_LARGE,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)
_DESCRIPTIONS = {
    401: "Over TCP: the token is missing or wrong.",
    403: "This user or token may not do this, or this name of the host has no access.",
    404: "The GPU or the id does not exist.",
    409: "The request conflicts with another user's.",
    413: "The request is too large.",
    422: "A part of the request is invalid.",
    500: "The API process failed.",
    503: "The daemon does not answer or is ending, or there are too many connections.",
    504: "The command did not complete in the given time.",
}


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


async def _caller(request: Request) -> Caller:
    peer: Peer = request.state.peer
    return peer.caller(request.state.level)


ContextDep = Annotated[ApiContext, Depends(_context)]
By = Annotated[Caller, Depends(_caller)]


def problems(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Describe a route's problems for the OpenAPI document: these and the common ones.

    By reference instead of ``model``, for which FastAPI would build a validator per route and
    status, which takes longer than everything else at the start.
    """
    statuses = sorted({code.status.value for code in (*_COMMON, *codes)})
    content = {MEDIA_TYPE: {"schema": {"$ref": PROBLEM_REFERENCE}}}
    return {
        status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses
    }


@asynccontextmanager
async def provisional(
    context: ApiContext, by: Caller, id_: str, undo: type[CancelReservation | CancelAllocation]
) -> AsyncIterator[None]:
    """Renew the lease of what a client has asked for during the block, and end the lease after it.

    If the block fails, it is undone. If this process ends meanwhile, so does the lease.

    Args:
        context: The shared state.
        by: The caller.
        id_: The id of a reservation or an allocation.
        undo: The command that ends it.

    Raises:
        ProblemError: It was ended meanwhile, or there is no reply.
    """
    is_allocation = undo is CancelAllocation
    find = context.views.allocation if is_allocation else context.views.reservation
    extend = partial(Extend, by=by, id=id_, allocation=is_allocation)
    renewing = asyncio.create_task(_renew(context, extend))
    try:
        yield
        _check_kept(await context.supervisor.request(extend, kept=True), undo)
    except BaseException:
        if find(id_) is not None:
            context.supervisor.post(undo, by=by, id=id_)
        raise
    finally:
        renewing.cancel()


def _check_kept(reply: CommandReply, undo: type[CancelReservation | CancelAllocation]) -> None:
    """Check that there was still something to keep.

    Raises:
        ProblemError: It was ended meanwhile, or the daemon is ending.
    """
    if reply.refused is Refusal.NOT_FOUND:
        what = "allocation" if undo is CancelAllocation else "reservation"
        raise ProblemError(Code.CONFLICT, f"The {what} was ended before it was complete.")
    check_accepted(reply)


async def _renew(context: ApiContext, extend: Callable[..., Extend]) -> None:
    """Renew a lease until this is cancelled."""
    while True:
        await asyncio.sleep(_RENEW_EVERY_S)
        context.supervisor.post(extend)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, and cancel it if the client disconnects.

    Otherwise its result would have no owner.

    Raises:
        ProblemError: The client has disconnected; no response can be sent.
    """
    working = asyncio.create_task(work)
    disconnect = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ProblemError(Code.UNAVAILABLE, "The client has disconnected.")
    finally:
        for task in (working, disconnect):
            task.cancel()
        await asyncio.gather(working, disconnect, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
