"""The times of a run: what became of its phases, and the curves of a GPU for report.html. Pure."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from sentinel.burnin.checks.measures import format_seconds
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.burnin.verdict import Verdict

#: A curve keeps the lowest and the highest value of so many columns.
COLUMNS = 800
#: A curve has a gap where values are missing for this many of its usual intervals.
_GAP_INTERVALS = 5.0
#: The reasons for reduced clocks that are heat.
_HEAT = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
Point = tuple[float, float]


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
    #: The time of day of ``first``; None if it is not known.
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
    first = min(events, key=lambda event: float(event["at"]))
    last = max(float(event["at"]) for event in events)
    time = first.get("time")
    started = None if time is None else datetime.fromisoformat(time)
    return Span(first=float(first["at"]), last=last, started=started)


def absences(record: GpuRecord) -> list[Absence]:
    """Find the time after each interruption until the next stressor is ready."""
    ready = sorted(float(event["at"]) for event in record.named("stressor.ready"))
    last = max((float(event["at"]) for event in record.events), default=0.0)
    found = []
    for interruption in record.interruptions:
        later = bisect_right(ready, interruption.at)
        end = ready[later] if later < len(ready) else last
        found.append(Absence(first=interruption.at, last=end, cause=interruption.cause))
    return found


# --- what became of phases -------------------------------------------------------------------


class PhaseOutcome(Enum):
    """What became of a phase of a GPU, or of a run."""

    #: Everything was done.
    DONE = auto()
    #: It was not reached, or was interrupted: the GPU was needed, or a signal ended the run.
    SKIPPED = auto()
    #: The tool could not do it.
    BROKEN = auto()


def of_phase(phase: Mapping[str, Any]) -> PhaseOutcome:
    """Find what became of a phase of the report; one that is not mandatory is never BROKEN."""
    if phase["complete"]:
        return PhaseOutcome.DONE
    if phase["not_tested"] and phase["mandatory"]:
        return PhaseOutcome.BROKEN
    return PhaseOutcome.SKIPPED


def of_run(report: Mapping[str, Any]) -> PhaseOutcome:
    """Find what became of a run: DONE if it passed or failed."""
    if report["verdict"] == Verdict.NOT_APPLICABLE:
        return PhaseOutcome.SKIPPED  # a screen proves nothing
    if report["verdict"] != Verdict.INCOMPLETE:
        return PhaseOutcome.DONE
    phases = [phase for gpu in report["gpus"] for phase in gpu["coverage"]]
    if not phases or any(of_phase(phase) is PhaseOutcome.BROKEN for phase in phases):
        return PhaseOutcome.BROKEN
    return PhaseOutcome.SKIPPED


def describe_phase(phase: Mapping[str, Any]) -> str:
    """Describe how much of a phase was done, and why no more."""
    parts = []
    if phase["quota_s"]:
        parts.append(f"{phase['done_s']:.1f} of {phase['quota_s']:.1f} s")
    if phase["quota_passes"]:
        parts.append(describe_passes(phase))
    text = f"{', '.join(parts)} of work that counts"
    return f"{text}: {phase['not_tested']}" if phase["not_tested"] else text


def describe_passes(phase: Mapping[str, Any]) -> str:
    """Describe how often a phase has covered the memory; its seconds may take more passes."""
    passes, needed = phase["passes"], phase["quota_passes"]
    if passes > needed:
        return f"{passes} passes ({needed} needed)"
    return f"{passes} of {needed} passes"


def memory_heat(phase: Mapping[str, Any]) -> str:
    """Describe at which temperature a phase tested memory, or nothing if none is known."""
    heat = phase.get("memory_heat")  # a report of an earlier version has none
    if heat is None:
        return ""
    degrees = dict.fromkeys(f"{heat[name]:g}" for name in ("lowest", "highest"))
    of = "the memory" if heat["sensor"] == "memory" else "the GPU"
    return f"{of} at {' to '.join(degrees)} C"


# --- curves ----------------------------------------------------------------------------------


def plot(record: GpuRecord, span: Span) -> dict[str, Any] | None:
    """Return the curves of a GPU and the times behind them, or None if nothing was sampled.

    All times are seconds since the start of the run.
    """
    curves = list(_curves(record, span))
    if not curves or span.seconds <= 0:
        return None
    phases = [
        [
            *_place(first, span.last if last is None else last, span),
            f"{number} {phase.phase.name}",
            phase.phase.workload,
        ]
        for number, phase in enumerate(record.phases, start=1)
        for first, last in phase.spans
    ]
    away = [
        [
            *_place(absence.first, absence.last, span),
            f"interrupted by {absence.cause} for {format_seconds(absence.last - absence.first)}",
        ]
        for absence in absences(record)
    ]
    counted = [
        _place(first, last, span)
        for phase in record.phases
        for first, last in phase.stretches
        if last > first
    ]
    return {
        "seconds": round(span.seconds, 1),
        "phases": phases,
        "away": away,
        "counted": counted,
        "slow": [
            [*_place(first, last, span), f"slowed down by heat for {format_seconds(last - first)}"]
            for first, last in _slow(record)
        ],
        "curves": curves,
    }


def _slow(record: GpuRecord) -> list[tuple[float, float]]:
    """Join the times in which a reading shows a slowdown by heat, each until the next reading."""
    found: list[tuple[float, float]] = []
    for _, first, last in record.under_load():
        if not _HEAT.isdisjoint(first.values.get("reasons") or ()):
            begin = found.pop()[0] if found and found[-1][1] == first.at else first.at
            found.append((begin, last.at))
    return found


def thinned(
    segments: Iterable[Sequence[Point]], span: Span
) -> tuple[list[float], list[float | None]]:
    """Keep the lowest and the highest value of each column, and None where values are missing.

    Args:
        segments: Times and values in their order; the curve is interrupted between two segments.
        span: The time of the first and of the last column.

    Returns:
        The times since the start of the span, and the values.
    """

    def column_of(point: Point) -> int:
        return min(int((point[0] - span.first) / span.seconds * COLUMNS), COLUMNS - 1)

    digits = 1 if span.seconds < COLUMNS else 0
    times: list[float] = []
    values: list[float | None] = []
    for points in itertools.chain.from_iterable(map(_unbroken, segments)):
        if times:
            times.append(times[-1])
            values.append(None)
        for _, column in itertools.groupby(points, column_of):
            found = sorted(column, key=lambda point: point[1])
            for at, value in sorted({found[0], found[-1]}):
                times.append(_short(round(at - span.first, digits)))
                values.append(_short(float(f"{value:.4g}")))
    return times, values


def _unbroken(segment: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Split a segment where values are missing."""
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(segment)]
    gap = _GAP_INTERVALS * max(statistics.median(steps), 1.0) if steps else 0.0
    start = 0
    for index, step in enumerate(steps, start=1):
        if step > gap:
            yield segment[start:index]
            start = index
    if segment:
        yield segment[start:]


def _curves(record: GpuRecord, span: Span) -> Iterator[dict[str, Any]]:
    """Yield the curves that have values; their keys are those of ``web/curves.js``."""
    before = record.before
    rates = [_rates(phase) for phase in record.phases]
    for key, title, unit, segments, limit, limit_name in (
        (
            *("heat", "Temperature", "°C", [_readings(record, "temperature_c")]),
            *(before and before.slowdown_c, "slows down at"),
        ),
        (
            *("power", "Power", "W", [_readings(record, "power_w")]),
            *(before and before.power_limit_w, "limit"),
        ),
        (
            *("clock", "Clock", "MHz", [_readings(record, "sm_clock_mhz")]),
            *(before and before.sm_clock_maximum_mhz, "maximum"),
        ),
        ("rate", "Rate", "% of the phase's median", rates, 100.0, ""),
    ):
        values = [value for points in segments for _, value in points]
        if not values:
            continue
        facts = f"lowest {min(values):.4g}, highest {max(values):.4g}"
        if limit_name:
            facts = f"median {statistics.median(values):.4g}, {facts}"
        if limit_name and limit is not None:
            facts += f", {limit_name} {limit:.4g}"
        times, thin = thinned(segments, span)
        yield {
            "key": key,
            "title": title,
            "unit": unit,
            "facts": facts,
            "limit": limit,
            "steps": [
                _short(round(later - at, 1)) for at, later in itertools.pairwise([0.0, *times])
            ],
            "values": thin,
        }


def _readings(record: GpuRecord, name: str) -> list[Point]:
    return [
        (sample.at, float(sample.values[name]))
        for sample in record.telemetry
        if sample.values.get(name) is not None
    ]


def _rates(phase: PhaseRecord) -> list[Point]:
    """Compute the rate of each report in percent of the median of those that count.

    It is that of what most reports have: few units compute products, and all move bytes.
    """
    unit = max(("flops", "bytes"), key=lambda unit: len(phase.rates(unit)))
    counted = phase.rates(unit)
    if not counted:
        return []
    median = statistics.median(counted)
    return [
        (report.at, 100 * report.values[unit] / report.values["seconds"] / median)
        for report in phase.reports
        if report.values["seconds"] > 0
    ]


def _place(first: float, last: float, span: Span) -> list[float]:
    """Return two moments as seconds since the start of the run."""
    return [_short(round(moment - span.first, 1)) for moment in (first, last)]


def _short(value: float) -> float:
    """Return a whole number without its fraction, which JSON would write."""
    return int(value) if value == int(value) else value
