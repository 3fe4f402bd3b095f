"""Past readings in the form that the compatible routes need."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.api import history_queries
from sentinel.api.context import ApiContext
from sentinel.api.history_queries import Trend, fit_trend
from sentinel.api.history_recorder import HEALTH_ORDER
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
        lambda source, _: history_queries.readings(source, view.uuid, since, until, step)
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


#: Its defaults: the number of readings, and the seconds between two.
_HISTORY_SIZE, _INTERVAL_S = 200, 3
#: Kept pauses; readings of earlier ones have left the history of these clients.
_MAX_PAUSES = 1000


class Monitoring:
    """Which readings these clients get: how many, how often, and none of the time of a pause.

    It lasts as long as the API process. The daemon reads and yields its GPUs regardless.

    Args:
        now: Returns the time of the monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: The maximum number of readings.
        self.history_size = _HISTORY_SIZE
        #: Seconds between two readings.
        self.interval_s = _INTERVAL_S
        #: Ended pauses, by the monotonic clock.
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_MAX_PAUSES)
        self._stopped_at: float | None = None

    def stop(self) -> None:
        """Include no reading from now on."""
        if self._stopped_at is None:
            self._stopped_at = self._now()

    def start(self) -> None:
        """Include all readings from now on."""
        if self._stopped_at is not None:
            self._pauses.append((self._stopped_at, self._now()))
            self._stopped_at = None

    def includes(self, at: float) -> bool:
        """Check whether a reading at this time, of the monotonic clock, is included."""
        if self._stopped_at is not None and at >= self._stopped_at:
            return False
        return not any(begin <= at < end for begin, end in self._pauses)
