"""Verbs for the daemon's history: readings, events, usage and temperature trends."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from sentinel.client.requester import Requester, decode
from sentinel.protocol.history_types import (
    PastEvent,
    PastReading,
    PastReadings,
    PastUse,
    RecordedEvents,
    TemperatureTrend,
    Usage,
)


class HistoryVerbs(Requester):
    """The verbs for the history.

    ``since`` is a duration before now, such as ``"2h"``, or a date with its offset. A removed GPU
    is named by its full UUID.
    """

    def history(
        self, gpu: str | int, since: str | datetime = "1h", *, points: int | None = None
    ) -> tuple[PastReading, ...]:
        """List the readings of a GPU, at most ``points`` of them, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        response = self._query("readings", gpu=gpu, since=since, points=points)
        return decode(PastReadings, response).readings

    def recorded_events(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        name: str | None = None,
        limit: int | None = None,
    ) -> tuple[PastEvent, ...]:
        """List the last events of a GPU, or of all, at most ``limit``, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        response = self._query("events", gpu=gpu, since=since, name=name, limit=limit)
        return decode(RecordedEvents, response).events

    def usage(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        limit: int | None = None,
    ) -> tuple[PastUse, ...]:
        """List the uses of a GPU, or of all, by processes, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        response = self._query("usage", gpu=gpu, since=since, limit=limit)
        return decode(Usage, response).usage

    def trend(self, gpu: str | int, minutes: int = 5) -> TemperatureTrend:
        """Compute the trend of a GPU's temperature over the last minutes, at most 60.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
        """
        path = f"/v1/gpus/{quote(str(gpu), safe='')}/trend?minutes={minutes}"
        return self.fetch(TemperatureTrend, "GET", path)

    def _query(self, resource: str, **parameters: object) -> dict[str, Any]:
        query = {
            name: value.astimezone().isoformat() if isinstance(value, datetime) else value
            for name, value in parameters.items()
            if value is not None
        }
        return self.request("GET", f"/v1/history/{resource}?{urlencode(query)}")
