"""The stream of everything that the journal records."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from sentinel.service.problems import Code, ProblemError
from sentinel.service.ring import MOST_SUBSCRIBERS
from sentinel.service.routes.shared import AtDesk, may

__all__ = ["router"]

router = APIRouter(tags=["events"])


class EventStream(StreamingResponse):
    """Server-sent events, as the HTML standard has them."""

    media_type = "text/event-stream"


@router.get("/v1/events", response_class=EventStream, responses=may(Code.INVALID))
async def follow(
    desk: AtDesk,
    since: Annotated[int | None, Query(ge=0, description="After the event of this id.")] = None,
    last_event_id: Annotated[int | None, Header(ge=0, description="The same.")] = None,
) -> EventStream:
    """Follow the events, from now on or from those after an id, as far as they are kept.

    `id` is an event's number, `event` its name, `data` its line of JSON. An event `lost` says how
    many are not there any more.
    """
    if desk.ring.subscribers >= MOST_SUBSCRIBERS:
        raise ProblemError(Code.UNAVAILABLE, f"There are {MOST_SUBSCRIBERS} followers already.")
    stream = desk.ring.follow(since if last_event_id is None else last_event_id)
    return EventStream(stream, headers={"cache-control": "no-store"})
