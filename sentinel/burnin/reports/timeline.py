"""The times of a run, and what became of its phases. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from sentinel.burnin.records.record import GpuRecord
from sentinel.burnin.reports.verdict import Verdict


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
    last = max((float(event["at"]) for event in record.events), default=0.0)
    found = []
    for interruption in record.interruptions:
        later = bisect_right(ready, interruption.at)
        end = ready[later] if later < len(ready) else last
        found.append(Absence(first=interruption.at, last=end, cause=interruption.cause))
    return found


class Outcome(Enum):
    """What became of a phase of a GPU, or of a run."""

    #: Everything was done.
    DONE = auto()
    #: It was not reached, or was interrupted: the GPU was needed, or a signal ended the run.
    SKIPPED = auto()
    #: The tool could not do it.
    BROKEN = auto()


def of_phase(phase: Mapping[str, Any]) -> Outcome:
    """Find what became of a phase of the report; one that is not mandatory is never BROKEN."""
    if phase["complete"]:
        return Outcome.DONE
    if phase["not_tested"] and phase["mandatory"]:
        return Outcome.BROKEN
    return Outcome.SKIPPED


def of_run(report: Mapping[str, Any]) -> Outcome:
    """Find what became of a run: DONE if it passed or failed."""
    if report["verdict"] == Verdict.NOT_APPLICABLE:
        return Outcome.SKIPPED  # a screen proves nothing
    if report["verdict"] != Verdict.INCOMPLETE:
        return Outcome.DONE
    phases = [phase for gpu in report["gpus"] for phase in gpu["coverage"]]
    if not phases or any(of_phase(one) is Outcome.BROKEN for one in phases):
        return Outcome.BROKEN
    return Outcome.SKIPPED


def describe_phase(phase: Mapping[str, Any]) -> str:
    """Describe how much of a phase was done, and why no more."""
    parts = []
    if phase["quota_s"]:
        parts.append(f"{phase['done_s']:.1f} of {phase['quota_s']:.1f} s")
    if phase["quota_passes"]:
        parts.append(f"{phase['passes']} of {phase['quota_passes']} passes")
    text = f"{', '.join(parts)} of work that counts"
    return f"{text}: {phase['not_tested']}" if phase["not_tested"] else text
