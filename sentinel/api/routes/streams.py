"""Streams of server-sent events: the log's events, and the state with its changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sentinel.api.bodies import ProblemError
from sentinel.api.event_buffer import MAX_SUBSCRIBERS, EventBuffer
from sentinel.api.routes.dependencies import ContextDep, problems
from sentinel.protocol.problem import Code

router = APIRouter(tags=["events"])

Since = Annotated[int | None, Query(ge=0, description="Start after the event with this id.")]
DaemonId = Annotated[
    str | None,
    Query(max_length=64, description="The daemon of that id, from the stream's comment."),
]
LastEventId = Annotated[int | None, Header(ge=0, description="Same as `since`.")]


class EventStream(StreamingResponse):
    """Server-sent events, as in the HTML standard."""

    media_type = "text/event-stream"

    # The parameters are those of StreamingResponse: FastAPI derives the status from them.
    _event_buffer: EventBuffer

    @classmethod
    def of(cls, event_buffer: EventBuffer, chunks: AsyncIterator[bytes]) -> EventStream:
        """Create the stream of one more subscriber.

        Raises:
            ProblemError: There are MAX_SUBSCRIBERS already.
        """
        if event_buffer.subscribers >= MAX_SUBSCRIBERS:
            detail = f"There are {MAX_SUBSCRIBERS} subscribers already."
            raise ProblemError(Code.UNAVAILABLE, detail)
        stream = cls(chunks, headers={"cache-control": "no-store"})
        stream._event_buffer = event_buffer
        # Counted here: the generator starts later, after other requests were admitted.
        event_buffer.subscribers += 1
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._event_buffer.subscribers -= 1


@router.get("/v1/events", response_class=EventStream, responses=problems(Code.INVALID))
async def follow(
    context: ContextDep,
    since: Since = None,
    daemon: DaemonId = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Follow the events, from now on or after an id, as far as they are kept.

    `id` is an event's number, `event` its name, `data` its line of JSON. An event `lost` counts
    events that are not kept any more. The first comment has a `daemon`, which numbers the events:
    an id of another daemon means all kept events.
    """
    number = since if last_event_id is None else last_event_id
    return EventStream.of(context.event_buffer, context.event_buffer.follow(number, daemon))


@router.get("/v1/watch", response_class=EventStream, responses=problems(Code.INVALID))
async def watch(
    context: ContextDep, since: Since = None, last_event_id: LastEventId = None
) -> EventStream:
    """Watch the daemon and its GPUs: the state at once, changes every second, and all events.

    `status` has the content of `/v1/status`; it comes first, and again if a client reads too
    slowly. `changes` comes every second, with the differences. The others are those of
    `/v1/events`.
    """
    _ = context.views.host  # without a state yet, the response is a problem
    number = since if last_event_id is None else last_event_id
    return EventStream.of(context.event_buffer, context.change_feed.follow(number))
