"""What clients read: the state of the daemon and its GPUs, metrics, and streams of events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sentinel.api import serializers
from sentinel.api.bodies import ProblemError
from sentinel.api.context import ContextDep, problems
from sentinel.api.event_streams import EventBuffer
from sentinel.api.metrics_page import PATH
from sentinel.api.snapshots import STATE_MAX_AGE_S
from sentinel.protocol.api_types import DaemonHealth, SingleGpu, Status
from sentinel.protocol.problem import Code

state = APIRouter(tags=["status"])
events = APIRouter(tags=["events"])
Since = Annotated[int | None, Query(ge=0, description="Start after the event with this id.")]
DaemonId = Annotated[
    str | None,
    Query(max_length=64, description="The daemon of that id, from the stream's comment."),
]
LastEventId = Annotated[int | None, Header(ge=0, description="Same as `since`.")]


@state.get("/v1/status", responses=problems())
async def read_status(context: ContextDep) -> Status:
    """Read the state of the daemon, its GPUs, reservations and allocations."""
    return serializers.status(context.spec, context.views)


@state.get("/v1/gpus/{selector}", responses=problems(Code.NO_SUCH_GPU))
async def read_gpu(selector: str, context: ContextDep) -> SingleGpu:
    """Read the state of one GPU, by index, UUID or its unique prefix, or PCI address."""
    view = context.views.one(selector)
    return SingleGpu(**vars(serializers.gpu_status(view, context.views, time.monotonic())))


@state.get("/v1/health", responses=problems())
async def read_health(context: ContextDep) -> DaemonHealth:
    """Check the daemon: 200 while its state is recent, else 503."""
    host = context.views.host
    age = time.monotonic() - host.at
    if not context.views.fresh:
        detail = f"The daemon's state is {age:.0f} s old; the limit is {STATE_MAX_AGE_S:g} s."
        raise ProblemError(Code.UNAVAILABLE, detail)
    return DaemonHealth(phase=host.phase, age_s=round(max(0.0, age), 3))


# Not in the OpenAPI document: path, versions and formats are Prometheus's.
@state.get(PATH, include_in_schema=False)
async def read_metrics(context: ContextDep, request: Request) -> Response:
    """Read all metrics in one of Prometheus's formats."""
    return context.metrics.respond(request.headers)


# --- streams of server-sent events ------------------------------------------------------------


class EventStreamResponse(StreamingResponse):
    """Server-sent events, as in the HTML standard."""

    media_type = "text/event-stream"

    # The parameters are those of StreamingResponse: FastAPI derives the status from them.
    _event_buffer: EventBuffer
    _user: str

    @classmethod
    def of(
        cls, request: Request, event_buffer: EventBuffer, chunks: AsyncIterator[bytes]
    ) -> EventStreamResponse:
        """Create the stream of one more subscriber.

        Raises:
            ProblemError: There are too many already.
        """
        user = request.state.user
        full = event_buffer.why_full(user, request.state.level)
        if full is not None:
            raise ProblemError(Code.UNAVAILABLE, f"{full}.")
        stream = cls(chunks, headers={"cache-control": "no-store"})
        stream._event_buffer, stream._user = event_buffer, user
        # Counted here: the generator starts later, after other requests were admitted.
        event_buffer.subscribers[user] += 1
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._event_buffer.subscribers -= Counter([self._user])


@events.get("/v1/events", response_class=EventStreamResponse, responses=problems())
async def follow(
    request: Request,
    context: ContextDep,
    since: Since = None,
    daemon: DaemonId = None,
    last_event_id: LastEventId = None,
) -> EventStreamResponse:
    """Follow the events, from now on or after an id, as far as they are kept.

    `id` is an event's number, `event` its name, `data` its line of JSON. An event `lost` counts
    events that are not kept any more. The first comment has a `daemon`, which numbers the events:
    an id of another daemon means all kept events.
    """
    number = since if last_event_id is None else last_event_id
    buffer = context.event_buffer
    return EventStreamResponse.of(request, buffer, buffer.follow(number, daemon))


@events.get("/v1/watch", response_class=EventStreamResponse, responses=problems())
async def watch(
    request: Request,
    context: ContextDep,
    since: Since = None,
    last_event_id: LastEventId = None,
) -> EventStreamResponse:
    """Watch the daemon and its GPUs: the state at once, changes every second, and all events.

    `status` has the content of `/v1/status`; it comes first, and again if a client reads too
    slowly. `changes` comes every second, with the differences. The others are those of
    `/v1/events`.
    """
    _ = context.views.host  # without a state yet, the response is a problem
    number = since if last_event_id is None else last_event_id
    return EventStreamResponse.of(request, context.event_buffer, context.change_feed.follow(number))
