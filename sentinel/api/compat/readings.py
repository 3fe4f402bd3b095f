"""Past readings in the form that the compatible routes need."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentinel.api.compat.monitoring import Monitoring
from sentinel.api.context import ApiContext
from sentinel.api.history import queries
from sentinel.api.history.recorder import HEALTH_ORDER
from sentinel.api.history.trend import Trend, fit_trend
from sentinel.api.routes.history import temperatures
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


async def readings(
    context: ApiContext, view: GpuView, limit: int, monitoring: Monitoring
) -> list[PastReading]:
    """Read the last readings of a GPU while it was monitored, oldest first.

    Raises:
        ProblemError: The history cannot be read.
    """
    step = monitoring.interval_s
    until = int(time.time())
    since = until - max(_MIN_SPAN_S, 2 * limit * step)
    rows = await context.history.query(
        lambda source, _: queries.readings(source, view.uuid, since, until, step)
    )
    offset = time.time() - time.monotonic()
    rows = [
        row
        for row in rows
        if all(monitoring.includes(row["at"] + part - offset) for part in (0, step - 1))
    ]
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


async def temperature_trend(
    context: ApiContext, uuid: str, minutes: int, monitoring: Monitoring
) -> Trend:
    """Fit the trend of a GPU's temperature while it was monitored.

    Raises:
        ProblemError: The history cannot be read.
    """
    found = await temperatures(context, uuid, minutes)
    return fit_trend([(at, degrees) for at, degrees in found if monitoring.includes(at)])
