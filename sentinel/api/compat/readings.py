"""Past readings in the form that the compatible routes need."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentinel.api.context import ApiContext
from sentinel.api.history import queries
from sentinel.api.history.recorder import HEALTH_ORDER
from sentinel.protocol.views import GpuView

#: The shortest span to search: not every second has a reading.
_MIN_SPAN_S = 60


@dataclass(frozen=True, kw_only=True)
class PastReading:
    """One reading of a GPU."""

    #: In seconds since the epoch.
    at: float
    utilization: float | None
    memory_used: int | None
    temperature_c: int | None
    health: str | None


async def readings(context: ApiContext, view: GpuView, limit: int) -> list[PastReading]:
    """Read the last readings of a GPU, at most one a second, oldest first.

    Raises:
        ProblemError: The history cannot be read.
    """
    until = int(time.time())
    since = until - max(_MIN_SPAN_S, 2 * limit)
    rows = await context.history.query(
        lambda source, _: queries.readings(source, view.uuid, since, until, 1)
    )
    return [
        PastReading(
            at=row["at"],
            utilization=row["utilization"],
            memory_used=None if row["memory_used"] is None else round(row["memory_used"]),
            temperature_c=None if row["temperature_c"] is None else round(row["temperature_c"]),
            health=None if row["health"] is None else HEALTH_ORDER[row["health"]].value,
        )
        for row in rows[-limit:]
    ]
