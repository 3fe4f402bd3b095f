"""What routes share: the context, the caller, their problems, and cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from sentinel.api.context import ApiContext
from sentinel.api.http.access import Peer
from sentinel.api.http.errors import MEDIA_TYPE, PROBLEM_REFERENCE, ProblemError
from sentinel.protocol.caller import Caller
from sentinel.protocol.problem import Code

T = TypeVar("T")

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
