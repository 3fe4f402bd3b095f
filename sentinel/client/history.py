"""What the daemon keeps of what was: readings, events, who used which GPU when, and trends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from sentinel.client.types import read, read_list


@dataclass(frozen=True, kw_only=True)
class PastReading:
    """What was read of a GPU within one step from ``at`` on, ``seconds`` of it.

    Each figure is a mean, but for the least and the most, the worst health, and the joules that
    were used. ``busy`` and ``ours`` are shares of the time in which others used it, and we did.
    """

    at: datetime
    seconds: int
    temperature_c: float | None = None
    temperature_min_c: float | None = None
    temperature_max_c: float | None = None
    power_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    energy_j: float | None = None
    memory_temperature_c: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used: float | None = None
    held: float | None = None
    memory_foreign: float | None = None
    sm_clock_mhz: float | None = None
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    busy: float | None = None
    ours: float | None = None
    health: str | None = None


@dataclass(frozen=True, kw_only=True)
class PastEvent:
    """One event as it was kept."""

    at: datetime
    name: str
    gpu: str | None = None
    index: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PastUse:
    """One use of a GPU by one process, from ``began`` until it was seen last.

    ``who`` is the name of the process, or ``sentinel`` where it was ``ours``; ``None`` where nobody
    tells, and then ``pid`` may be so, too.
    """

    gpu: str
    index: int
    began: datetime
    until: datetime
    seconds: float
    going_on: bool = False
    who: str | None = None
    ours: bool = False
    pid: int | None = None
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class TemperatureTrend:
    """Where a temperature went: ``trend`` is rising, falling, stable or unknown."""

    gpu: str
    minutes: int
    samples: int
    trend: str
    current_c: float | None = None
    minimum_c: float | None = None
    maximum_c: float | None = None
    average_c: float | None = None
    slope_c_per_min: float | None = None


class Recorded(ABC):
    """The verbs that look back.

    ``since`` is a time before now, such as ``"2h"``, or a moment with its offset; a GPU is named as
    everywhere, and one that is gone by its UUID.
    """

    @abstractmethod
    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Return the JSON object that the daemon answers to any request."""

    def history(
        self, gpu: str | int, since: str | datetime = "1h", *, points: int | None = None
    ) -> tuple[PastReading, ...]:
        """Return the readings of a GPU, at most ``points`` of them, the oldest first.

        Raises:
            NoSuchGpuError: There is none of this name, or there are several.
            ConfigError: ``since`` is no time.
        """
        answer = self._look_back("readings", gpu=gpu, since=since, points=points)
        return read_list(PastReading, answer.get("readings"), "readings")

    def recorded_events(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        name: str | None = None,
        limit: int | None = None,
    ) -> tuple[PastEvent, ...]:
        """Return the last events of a GPU, or of all, at most ``limit``, the oldest first.

        Raises:
            NoSuchGpuError: There is none of this name, or there are several.
            ConfigError: ``since`` is no time.
        """
        answer = self._look_back("events", gpu=gpu, since=since, name=name, limit=limit)
        return tuple(_event(one, number) for number, one in enumerate(answer.get("events", [])))

    def usage(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        limit: int | None = None,
    ) -> tuple[PastUse, ...]:
        """Return who used a GPU, or any, and when, the oldest first.

        Raises:
            NoSuchGpuError: There is none of this name, or there are several.
            ConfigError: ``since`` is no time.
        """
        answer = self._look_back("usage", gpu=gpu, since=since, limit=limit)
        found = answer.get("usage")
        if isinstance(found, list):  # "from" cannot be the name of a field
            found = [{"began": one.get("from"), **one} for one in found if isinstance(one, dict)]
        return read_list(PastUse, found, "usage")

    def trend(self, gpu: str | int, minutes: int = 5) -> TemperatureTrend:
        """Return where the temperature of a GPU went in the last minutes, at most 60.

        Raises:
            NoSuchGpuError: There is none of this name, or there are several.
        """
        path = f"/v1/gpus/{quote(str(gpu), safe='')}/trend?minutes={minutes}"
        return read(TemperatureTrend, self.request("GET", path), "trend")

    def _look_back(self, what: str, **asked: object) -> dict[str, Any]:
        given = {
            name: value.astimezone().isoformat() if isinstance(value, datetime) else value
            for name, value in asked.items()
            if value is not None
        }
        return self.request("GET", f"/v1/history/{what}?{urlencode(given)}")


def _event(answer: Any, number: int) -> PastEvent:
    """Return an event, whose fields may be anything."""
    where = f"events[{number}]"
    fields = answer.pop("fields", None) if isinstance(answer, dict) else None
    event = read(PastEvent, answer, where)
    return replace(event, fields=fields if isinstance(fields, dict) else {})
