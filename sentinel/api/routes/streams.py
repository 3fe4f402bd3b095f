"""The streams: of everything that the journal records, and of what is shown as it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sentinel.api.http.errors import ProblemError
from sentinel.api.routes.dependencies import ContextDep, may
from sentinel.api.state.event_buffer import MOST_SUBSCRIBERS, EventBuffer
from sentinel.protocol.api_types import Code

router = APIRouter(tags=["events"])

Since = Annotated[int | None, Query(ge=0, description="After the event of this id.")]
Counting = Annotated[
    str | None,
    Query(max_length=64, description="Whose id that is, as the stream's comment has it."),
]
LastEventId = Annotated[int | None, Header(ge=0, description="The same.")]


class EventStream(StreamingResponse):
    """Server-sent events, as the HTML standard has them."""

    media_type = "text/event-stream"

    # The parameters of StreamingResponse stay: FastAPI takes its status from them.
    _event_buffer: EventBuffer

    @classmethod
    def of(cls, event_buffer: EventBuffer, pieces: AsyncIterator[bytes]) -> EventStream:
        """Return these pieces as a stream, for one follower more.

        Raises:
            ProblemError: There are MOST_SUBSCRIBERS already.
        """
        if event_buffer.subscribers >= MOST_SUBSCRIBERS:
            raise ProblemError(Code.UNAVAILABLE, f"There are {MOST_SUBSCRIBERS} followers already.")
        stream = cls(pieces, headers={"cache-control": "no-store"})
        stream._event_buffer = event_buffer
        # Its generator begins later, when others who ask at the same time were let in as well.
        event_buffer.subscribers += 1
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client goes; then there is room for another one."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._event_buffer.subscribers -= 1


@router.get("/v1/events", response_class=EventStream, responses=may(Code.INVALID))
async def follow(
    context: ContextDep,
    since: Since = None,
    daemon: Counting = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Follow the events, from now on or from those after an id, as far as they are kept.

    `id` is an event's number, `event` its name, `data` its line of JSON. An event `lost` says how
    many are not there any more. The comment at the beginning has a `daemon`, which counts the
    events: an id of another one means all that are kept.
    """
    number = since if last_event_id is None else last_event_id
    return EventStream.of(context.event_buffer, context.event_buffer.follow(number, daemon))


@router.get("/v1/watch", response_class=EventStream, responses=may(Code.INVALID))
async def watch(
    context: ContextDep, since: Since = None, last_event_id: LastEventId = None
) -> EventStream:
    """Watch the daemon and its GPUs: all of it at once, what changes once a second, and the events.

    `status` has what `/v1/status` answers, and comes first and again where a client read too
    slowly. `changes` comes every second, and has what is not as it was. The others are those of
    `/v1/events`.
    """
    _ = context.views.host  # where nothing was shown yet, that is the answer
    number = since if last_event_id is None else last_event_id
    return EventStream.of(context.event_buffer, context.watch.follow(number))
