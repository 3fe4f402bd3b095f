"""What a GPU did before now, for the routes that tell of it in another shape than the history."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentinel.api.context import ApiContext
from sentinel.api.history import queries
from sentinel.api.history.recorder import CONDITIONS
from sentinel.api.history.trend import Trend, trend_of
from sentinel.protocol.views import GpuView

#: Readings are looked for this far back at least, in seconds: not every second has one.
_LOOK_BACK = 60


@dataclass(frozen=True, kw_only=True)
class PastReading:
    """What was read of a GPU at a time, in seconds since the epoch."""

    at: float
    utilization: float | None
    memory_used: int | None
    temperature_c: int | None
    health: str | None


async def readings(context: ApiContext, view: GpuView, most: int) -> list[PastReading]:
    """Return the last readings of a GPU, one for each second, at most so many, the newest last.

    Raises:
        ProblemError: The history cannot be read.
    """
    until = int(time.time())
    since = until - max(_LOOK_BACK, 2 * most)
    rows = await context.history.ask(
        lambda where, _: queries.readings(where, view.uuid, since, until, 1)
    )
    return [
        PastReading(
            at=row["at"],
            utilization=row["utilization"],
            memory_used=None if row["memory_used"] is None else round(row["memory_used"]),
            temperature_c=None if row["temperature_c"] is None else round(row["temperature_c"]),
            health=None if row["health"] is None else CONDITIONS[row["health"]].value,
        )
        for row in rows[-most:]
    ]


async def trend(context: ApiContext, view: GpuView, minutes: int) -> Trend:
    """Return where the temperature of a GPU went over so many minutes.

    Raises:
        ProblemError: The history cannot be read.
    """
    return trend_of(
        await context.history.ask(
            lambda where, now: queries.temperatures(
                where, view.uuid, now, time.time(), 60 * minutes
            )
        )
    )
