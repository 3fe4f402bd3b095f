"""The monitoring that clients of the GPU Management System start, stop and configure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

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
