"""What all routes need: the desk, who asks, which errors there may be, a client who may go."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from sentinel.api.context import ApiContext
from sentinel.api.http.auth import Peer
from sentinel.api.http.errors import ProblemError
from sentinel.protocol.api_types import Code, Problem
from sentinel.protocol.caller import Caller

T = TypeVar("T")

#: Every route may answer so: it is not for this client, too much at once, or nobody is there.
_ANYWHERE = (
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    Code.TOO_LARGE,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)
_MEANINGS = {
    401: "Over TCP: the token is missing or wrong.",
    403: "This user, or this name of the host, is not let in.",
    404: "There is no such GPU, or no such thing.",
    409: "Somebody else has it.",
    413: "The request is too large.",
    422: "Something in the request is not allowed.",
    500: "The service failed.",
    503: "The daemon does not answer, is ending, or there are too many connections.",
    504: "It was not done in the time that was given.",
}


async def _desk(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


async def _asker(request: Request) -> Caller:
    peer: Peer = request.state.peer
    return peer.caller()


ContextDep = Annotated[ApiContext, Depends(_desk)]
By = Annotated[Caller, Depends(_asker)]


def may(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Return what a route says of its errors, besides those that each has."""
    statuses = sorted({code.status.value for code in (*_ANYWHERE, *codes)})
    return {status: {"model": Problem, "description": _MEANINGS[status]} for status in statuses}


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does, but do it only as long as the client is there.

    What was begun for a client that went away would be nobody's.

    Raises:
        ProblemError: The client has gone; nobody reads that any more.
    """
    doing = asyncio.create_task(work)
    going = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({doing, going}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ProblemError(Code.UNAVAILABLE, "The client has gone.")
    finally:
        for task in (doing, going):
            task.cancel()
        await asyncio.gather(doing, going, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
