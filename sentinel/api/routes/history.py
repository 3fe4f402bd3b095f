"""The history: readings, events, usage and temperature trends."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from sentinel.api import history_queries
from sentinel.api.bodies import ProblemError
from sentinel.api.context import ApiContext, ClientHistory, ContextDep, HistoryDep, problems
from sentinel.api.history_hours import gpu_hours
from sentinel.api.history_queries import (
    encode,
    encode_events,
    encode_readings,
    encode_usage,
    fit_trend,
)
from sentinel.errors import NoSuchGpuError
from sentinel.protocol.events import EVENTS, Kind
from sentinel.protocol.history_types import (
    GpuHours,
    PastReadings,
    RecordedEvents,
    TemperatureTrend,
    Usage,
)
from sentinel.protocol.problem import Code
from sentinel.units import parse_duration

router = APIRouter(tags=["history"])

#: Bounds of one response.
_MAX_READINGS = 3600
_MAX_ROWS = 1000
#: The oldest time that can be requested: ten years.
SINCE_MAX_AGE_S = 3660 * 86_400.0
#: So far ahead a client's clock may be: its present time is no time in the future.
_CLOCKS_DIFFER_S = 60.0

_SELECT = problems(Code.NO_SUCH_GPU)
_SINCE = "A duration before now, such as 90s, 2h or 7d, or an ISO 8601 date with its offset."
_GPU = "By index, UUID or its unique prefix, or PCI address."

Gpu = Annotated[str, Query(max_length=256, description=_GPU)]
Since = Annotated[str, Query(max_length=64, description=_SINCE)]
Limit = Annotated[int, Query(ge=1, le=_MAX_ROWS, description="The maximum number.")]


@router.get("/v1/history/readings", responses=_SELECT, response_model=PastReadings)
async def read_readings(
    context: ContextDep,
    history: HistoryDep,
    gpu: Gpu,
    since: Since = "1h",
    points: Annotated[
        int, Query(ge=1, le=_MAX_READINGS, description="The maximum number of readings.")
    ] = _MAX_READINGS,
) -> Response:
    """List the readings of a GPU: one a second for an hour, then one a minute for a month.

    `step_s` is the time that each summarizes: it grows with the span, and is at least 60 for a span
    above an hour.
    """
    uuid = await _resolve(context, history, gpu)
    now = time.time()
    start = int(parse_since(since, now))
    step = history_queries.step_for(now - start, points)
    # The last step ends with the current second.
    until = max(int(now), start + 1)
    start = until - step * (-(-(until - start) // step)) + 1
    body = await history.query(
        lambda database: encode_readings(
            uuid, step, history_queries.readings(database, uuid, start, until, step)
        )
    )
    return _json(body)


@router.get("/v1/history/events", responses=_SELECT, response_model=RecordedEvents)
async def read_events(
    context: ContextDep,
    history: HistoryDep,
    gpu: Gpu | None = None,
    since: Since = "1d",
    name: Annotated[
        str | None, Query(max_length=64, description="Only events with this name.")
    ] = None,
    kind: Annotated[
        list[Kind] | None,
        Query(max_length=len(Kind), description="Only events of these kinds; repeat it for more."),
    ] = None,
    limit: Limit = 100,
) -> Response:
    """List the last events, oldest first; all but `gpu.status` are kept."""
    uuid = None if gpu is None else await _resolve(context, history, gpu)
    start = parse_since(since, time.time())
    names = _names(name, kind)
    body = await history.query(
        lambda database: encode_events(history_queries.events(database, uuid, start, names, limit))
    )
    return _json(body)


@router.get("/v1/history/usage", responses=_SELECT, response_model=Usage)
async def read_usage(
    context: ContextDep,
    history: HistoryDep,
    gpu: Gpu | None = None,
    since: Since = "1d",
    limit: Limit = _MAX_ROWS,
) -> Response:
    """List the uses of GPUs by processes: stressors as well as foreign processes."""
    uuid = None if gpu is None else await _resolve(context, history, gpu)
    start = parse_since(since, time.time())
    body = await history.query(
        lambda database: encode_usage(history_queries.uses(database, uuid, start, limit))
    )
    return _json(body)


@router.get("/v1/history/hours", responses=_SELECT, response_model=GpuHours)
async def read_hours(
    context: ContextDep, history: HistoryDep, gpu: Gpu | None = None, since: Since = "1d"
) -> Response:
    """Sum up the GPU time: allocated and unused by user, idle, and of stressors."""
    uuid = None if gpu is None else await _resolve(context, history, gpu)
    start = parse_since(since, time.time())
    body = await history.query(lambda database: encode(**gpu_hours(database, uuid, start)))
    return _json(body)


@router.get("/v1/gpus/{selector}/trend", responses=_SELECT)
async def read_trend(
    selector: str,
    context: ContextDep,
    history: HistoryDep,
    minutes: Annotated[int, Query(ge=1, le=60, description="How far to look back.")] = 5,
) -> TemperatureTrend:
    """Compute the trend of a GPU's temperature from the readings of the last minutes."""
    uuid = await _resolve(context, history, selector)
    trend = fit_trend(await temperatures(history, uuid, minutes), uuid, minutes)
    return replace(
        trend,
        average_c=_rounded(trend.average_c),
        slope_c_per_min=_rounded(trend.slope_c_per_min),
    )


async def temperatures(history: ClientHistory, uuid: str, minutes: int) -> list[tuple[int, int]]:
    """Read the temperatures of a GPU in the last minutes.

    Returns:
        Pairs of seconds since the epoch and degrees Celsius, oldest first.

    Raises:
        ProblemError: The history cannot be read.
    """
    since = time.time() - 60 * minutes
    return await history.query(lambda database: history_queries.temperatures(database, uuid, since))


async def _resolve(context: ApiContext, history: ClientHistory, selector: str) -> str:
    """Resolve a selector to the UUID of one GPU; removed GPUs are selected by UUID.

    Raises:
        NoSuchGpuError: There is no such GPU, also not in the history.
        ProblemError: The selector means several GPUs.
    """
    try:
        return context.views.one(selector).uuid
    except NoSuchGpuError:
        if selector in await history.query(history_queries.known_gpus):
            return selector
        raise


def parse_since(text: str, now: float) -> float:
    """Parse a time in the past into seconds since the epoch.

    Args:
        text: A duration before now, such as ``90s`` or ``7d``, or a date and time with its offset.
        now: Seconds since the epoch.

    Raises:
        ProblemError: It is neither, too long ago, or in the future.
    """
    try:
        start = now - parse_duration(text)
    except ValueError as error:
        date = _parse_date(text)
        if date is None:
            why = f"since: {error}, or a date such as 2026-11-20T19:40:00+00:00."
            raise ProblemError(Code.INVALID, why) from None
        start = date
    if now - start > SINCE_MAX_AGE_S:
        raise ProblemError(Code.INVALID, f"since: {text!r} is more than ten years ago.")
    if start - now > _CLOCKS_DIFFER_S:
        raise ProblemError(Code.INVALID, f"since: {text!r} is in the future.")
    return min(start, now)


def _parse_date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text.strip())
        return date.timestamp() if date.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _names(name: str | None, kinds: list[Kind] | None) -> set[str] | None:
    """Collect the names of events that have a name and one of these kinds; None is all."""
    if kinds is None:
        return None if name is None else {name}
    of_kind = {event.name for event in EVENTS.values() if event.kind in kinds}
    return of_kind if name is None else of_kind & {name}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
