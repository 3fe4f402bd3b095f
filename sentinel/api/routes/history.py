"""What was before: readings, events, who used which GPU when, and where a temperature goes."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from sentinel.api.context import ApiContext
from sentinel.api.history import queries
from sentinel.api.history.serializers import as_events, as_readings, as_usage
from sentinel.api.history.timestamps import since_when
from sentinel.api.history.trend import trend_of
from sentinel.api.http.errors import ProblemError
from sentinel.api.routes.dependencies import ContextDep, may
from sentinel.errors import NoSuchGpuError
from sentinel.protocol.api_types import Code
from sentinel.protocol.history_types import PastReadings, RecordedEvents, TemperatureTrend, Usage

router = APIRouter(tags=["history"])

#: How many readings, events and uses one answer has at most.
_MOST_READINGS = 3600
_MOST_ROWS = 1000

_CHOOSES = may(Code.NO_SUCH_GPU, Code.INVALID)
_SINCE = "A time before now, such as 90s, 2h or 7d, or a moment with its offset, ISO 8601."
_GPU = "By index, UUID or its unique beginning, or PCI address."

Gpu = Annotated[str, Query(max_length=256, description=_GPU)]
Since = Annotated[str, Query(max_length=64, description=_SINCE)]
Limit = Annotated[int, Query(ge=1, le=_MOST_ROWS, description="The last so many.")]


@router.get("/v1/history/readings", responses=_CHOOSES, response_model=PastReadings)
async def read_readings(
    context: ContextDep,
    gpu: Gpu,
    since: Since = "1h",
    points: Annotated[
        int, Query(ge=1, le=_MOST_READINGS, description="At most so many readings.")
    ] = _MOST_READINGS,
) -> Response:
    """Show the readings of a GPU: of each second for an hour, then of each minute for a month.

    `step_s` is how many seconds each stands for: it grows with the span, and is 60 at least where
    that is longer than an hour.
    """
    uuid = await _one(context, gpu)
    now = time.time()
    began = int(since_when(since, now))
    step = queries.step_for(now - began, points)
    # The last one is of this very second.
    until = max(int(now), began + 1)
    began = until - step * (-(-(until - began) // step)) + 1
    body = await context.history.ask(
        lambda where, _: as_readings(uuid, step, queries.readings(where, uuid, began, until, step))
    )
    return _json(body)


@router.get("/v1/history/events", responses=_CHOOSES, response_model=RecordedEvents)
async def read_events(
    context: ContextDep,
    gpu: Gpu | None = None,
    since: Since = "1d",
    name: Annotated[
        str | None, Query(max_length=64, description="Only those of this name.")
    ] = None,
    limit: Limit = 100,
) -> Response:
    """Show the last events, the oldest first; all but `gpu.status` are kept."""
    uuid = None if gpu is None else await _one(context, gpu)
    began = since_when(since, time.time())
    body = await context.history.ask(
        lambda where, _: as_events(queries.events(where, uuid, began, name, limit))
    )
    return _json(body)


@router.get("/v1/history/usage", responses=_CHOOSES, response_model=Usage)
async def read_usage(
    context: ContextDep, gpu: Gpu | None = None, since: Since = "1d", limit: Limit = _MOST_ROWS
) -> Response:
    """Show who used which GPU when: every process that was on it, ours and others'."""
    uuid = None if gpu is None else await _one(context, gpu)
    began = since_when(since, time.time())
    body = await context.history.ask(
        lambda where, _: as_usage(queries.uses(where, uuid, began, limit))
    )
    return _json(body)


@router.get("/v1/gpus/{selector}/trend", responses=_CHOOSES)
async def read_trend(
    selector: str,
    context: ContextDep,
    minutes: Annotated[int, Query(ge=1, le=60, description="Of the last so many.")] = 5,
) -> TemperatureTrend:
    """Show where a GPU's temperature goes, by the readings of the last minutes."""
    uuid = await _one(context, selector)
    found = trend_of(
        await context.history.ask(
            lambda where, now: queries.temperatures(where, uuid, now, time.time(), 60 * minutes)
        )
    )
    return TemperatureTrend(
        gpu=uuid,
        minutes=minutes,
        samples=found.samples,
        current_c=found.current,
        minimum_c=found.minimum,
        maximum_c=found.maximum,
        average_c=_rounded(found.average),
        slope_c_per_min=_rounded(found.slope),
        trend=found.direction,
    )


async def _one(context: ApiContext, selector: str) -> str:
    """Return the UUID of one GPU that is here, or of one that was.

    Raises:
        NoSuchGpuError: There is none, and was none.
        ProblemError: The selector means more than one.
    """
    try:
        chosen = context.views.select([selector])
    except NoSuchGpuError:
        if selector in await context.history.ask(lambda where, _: queries.known(where)):
            return selector
        raise
    if len(chosen) != 1:
        detail = f"{selector!r} means {len(chosen)} GPUs; name one."
        raise ProblemError(Code.INVALID, detail)
    return chosen[0]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
