"""The times of a run: its span, the absences of the stressors, and the time of day. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.burnin.records.record import GpuRecord


@dataclass(frozen=True, kw_only=True)
class Absence:
    """The time between an interruption and the next stressor of a GPU."""

    first: float
    last: float
    cause: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """The time from the first to the last event of a run, by the monotonic clock."""

    first: float
    last: float
    #: The time of day of ``first``; None without any event.
    started: datetime | None

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.last - self.first

    def at(self, moment: float) -> datetime | None:
        """Convert a moment of the monotonic clock to the time of day."""
        if self.started is None:
            return None
        return self.started + timedelta(seconds=moment - self.first)

    def iso(self, moment: float) -> str | None:
        """Convert a moment to the time of day in ISO 8601."""
        time = self.at(moment)
        return None if time is None else time.isoformat(timespec="milliseconds")


def span(records: Iterable[GpuRecord]) -> Span:
    """Find the span of a run."""
    events = [event for record in records for event in record.events]
    if not events:
        return Span(first=0.0, last=0.0, started=None)
    first = min(events, key=lambda one: float(one["at"]))
    last = max(float(one["at"]) for one in events)
    return Span(first=float(first["at"]), last=last, started=datetime.fromisoformat(first["time"]))


def absences(record: GpuRecord) -> list[Absence]:
    """Find the time after each interruption until the next stressor is ready."""
    ready = sorted(float(one["at"]) for one in record.named("stressor.ready"))
    last = max((float(one["at"]) for one in record.events), default=0.0)
    found = []
    for one in record.interruptions:
        later = bisect_right(ready, one.at)
        end = ready[later] if later < len(ready) else last
        found.append(Absence(first=one.at, last=end, cause=one.cause))
    return found
