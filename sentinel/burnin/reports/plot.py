"""Draw what a GPU did over time: curves as SVG paths over the phases. Pure.

The SVG has no text and stretches to the width of the page; everything to read is HTML beside it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.burnin.checks.measures import format_seconds
from sentinel.burnin.records.record import GpuRecord, PhaseRecord
from sentinel.burnin.reports.markup import Markup, element, join
from sentinel.burnin.reports.timeline import Span, absences

#: The columns of a curve, and its height: a column has a line from its lowest to its highest value.
COLUMNS, HEIGHT = 800, 100
#: A curve has a gap where values are missing for this many of its usual intervals.
_GAP_INTERVALS = 5.0
#: A narrower phase, in percent of the width, has no name on the plot.
_MIN_NAME_WIDTH = 7.0
#: About so many times are on the axis.
_TICKS = 8
#: A time further to the right has no room for its text.
_LAST_TICK = 0.93
_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)

#: The top of the curve of the rate, in percent of the median.
_MOST_RATE = 150.0

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One reading over time."""

    key: str
    title: str
    unit: str
    #: Times and values; the curve is interrupted between two of them.
    segments: Sequence[Sequence[Point]]
    low: float
    high: float
    #: A line across, and the name of the declared limit that it shows.
    limit: float | None = None
    limit_name: str = ""

    @property
    def values(self) -> list[float]:
        """All values."""
        return [value for segment in self.segments for _, value in segment]


def plot(record: GpuRecord, span: Span) -> Markup:
    """Draw the temperature, power, clock and rate of a GPU."""
    curves = [curve for curve in _curves(record) if curve.values]
    if not curves or span.seconds <= 0:
        return element("p", "No samples were recorded.", class_="quiet")
    bands = join(*_backgrounds(record, span))
    away = join(
        *(
            element(
                "span",
                class_="away",
                style=_place(one.first, one.last, span),
                title=f"interrupted by {one.cause} for {format_seconds(one.last - one.first)}",
            )
            for one in absences(record)
        )
    )
    counted = join(
        *(
            element("span", style=_place(first, last, span))
            for phase in record.phases
            for first, last in phase.stretches
            if last > first
        )
    )
    return element(
        "figure",
        element("div", join(*_names(record, span)), class_="names lane"),
        element(
            "div",
            element("div", element("div", bands, away, class_="lane"), class_="behind"),
            *(_panel(curve, span) for curve in curves),
            class_="panels",
        ),
        element("div", counted, class_="counted lane", title="work that counts"),
        element("div", join(*_ticks(span)), class_="times lane"),
        element("span", class_="cross", hidden=True),
        class_="plot",
        data_seconds=f"{span.seconds:.1f}",
    )


def path(segments: Iterable[Sequence[Point]], span: Span, low: float, high: float) -> str:
    """Build the data of a path: at most the lowest and highest value of each column.

    Args:
        segments: Times and values in their order.
        span: The time of the first and last column.
        low: The value at the bottom; lower ones are drawn there.
        high: The value at the top; higher ones are drawn there.
    """
    parts: list[str] = []
    for run in (run for segment in segments for run in _runs(segment)):
        drawn = [
            f"{column} {HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low)):.1f}"
            for column, points in _columns(run, span)
            for _, value in points
        ]
        parts.append("M" + "L".join(drawn))
        if len(drawn) == 1:
            parts.append("h1")  # a single point would be invisible
    return "".join(parts)


def _runs(segment: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Split a segment where values are missing."""
    gap = _GAP_INTERVALS * _interval(segment)
    start = 0
    for index in range(1, len(segment)):
        if segment[index][0] - segment[index - 1][0] > gap:
            yield segment[start:index]
            start = index
    if segment:
        yield segment[start:]


def _columns(segment: Sequence[Point], span: Span) -> Iterator[tuple[int, list[Point]]]:
    """Yield each column that has values with its lowest and highest one."""
    column, points = -1, list[Point]()
    for at, value in segment:
        its = min(int((at - span.first) / span.seconds * COLUMNS), COLUMNS - 1)
        if its != column and points:
            yield column, _extremes(points)
            points = []
        column = its
        points.append((at, value))
    if points:
        yield column, _extremes(points)


def _extremes(points: list[Point]) -> list[Point]:
    """Select the lowest and the highest point, in the order of time."""
    lowest, highest = min(points, key=lambda one: one[1]), max(points, key=lambda one: one[1])
    return sorted({lowest, highest})


def _interval(segment: Sequence[Point]) -> float:
    """Compute the usual time between two values."""
    times = [at for at, _ in segment]
    steps = [later - at for at, later in itertools.pairwise(times)]
    return max(statistics.median(steps), 1.0) if steps else 1.0


# --- the curves ------------------------------------------------------------------------------


def _curves(record: GpuRecord) -> Iterator[Curve]:
    """Build the curves of a GPU."""
    before = record.before
    heat, power, clock = (
        [_readings(record, name)] for name in ("temperature_c", "power_w", "sm_clock_mhz")
    )
    slowdown = before.slowdown_c if before else None
    limit = before.power_limit_w if before else None
    fastest = before.sm_clock_maximum_mhz if before else None
    yield Curve(
        key="heat",
        title="Temperature",
        unit="°C",
        segments=heat,
        low=min(20.0, _lowest(heat)),
        high=math.ceil(max(90.0, _highest(heat), slowdown or 0.0) / 10 + 0.1) * 10,
        limit=slowdown,
        limit_name="slows down at",
    )
    yield Curve(
        key="power",
        title="Power",
        unit="W",
        segments=power,
        low=0.0,
        high=_ceiling(max(_highest(power), limit or 0.0, 1.0)),
        limit=limit,
        limit_name="limit",
    )
    yield Curve(
        key="clock",
        title="Clock",
        unit="MHz",
        segments=clock,
        low=0.0,
        high=_ceiling(max(_highest(clock), fastest or 0.0, 1.0)),
        limit=fastest,
        limit_name="maximum",
    )
    rates = [_rates(phase) for phase in record.phases]
    yield Curve(
        key="rate",
        title="Rate",
        unit="% of the phase's median",
        segments=[points for points in rates if points],
        low=0.0,
        high=_MOST_RATE,
        limit=100.0,
    )


def _readings(record: GpuRecord, name: str) -> list[Point]:
    return [
        (one.at, float(one.values[name]))
        for one in record.telemetry
        if one.values.get(name) is not None
    ]


def _rates(phase: PhaseRecord) -> list[Point]:
    """Compute the rate of each report in percent of the median of those that count."""
    for unit in ("flops", "bytes"):
        counted = phase.rates(unit)
        if counted:
            median = statistics.median(counted)
            return [
                (one.at, 100 * one.values[unit] / one.values["seconds"] / median)
                for one in phase.reports
                if one.values["seconds"] > 0
            ]
    return []


def _ceiling(value: float) -> float:
    """Round up to the top of a scale, with room for a line at the value itself."""
    step = math.pow(10, math.floor(math.log10(value))) / 5
    return math.ceil(value * 1.03 / step) * step


def _lowest(segments: Sequence[Sequence[Point]]) -> float:
    return min((value for points in segments for _, value in points), default=0.0)


def _highest(segments: Sequence[Sequence[Point]]) -> float:
    return max((value for points in segments for _, value in points), default=0.0)


# --- the parts of the plot -------------------------------------------------------------------


def _panel(curve: Curve, span: Span) -> Markup:
    """Draw one curve with its name, its range and its limit."""
    values = curve.values
    middle = "" if curve.limit_name == "" else f"median {statistics.median(values):.4g}, "
    facts = f"{middle}lowest {min(values):.4g}, highest {max(values):.4g}"
    if curve.limit is not None and curve.limit_name:
        facts += f", {curve.limit_name} {curve.limit:.4g}"
    lines = [element("path", class_="line", d=path(curve.segments, span, curve.low, curve.high))]
    if curve.limit is not None:
        y = HEIGHT * (1 - (curve.limit - curve.low) / (curve.high - curve.low))
        lines.insert(0, element("path", class_="limit", d=f"M0 {y:.1f}H{COLUMNS}"))
    svg = element(
        "svg",
        *lines,
        viewBox=f"0 0 {COLUMNS} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{curve.title} over time in {curve.unit}: {facts}",
    )
    head = element(
        "div",
        element("strong", curve.title),
        " ",
        element("span", curve.unit, class_="unit"),
        element("span", facts, class_="quiet"),
        element("output", class_="value"),
        class_="head",
    )
    scale = element(
        "div",
        element("span", f"{curve.high:.4g}"),
        element("span", f"{curve.low:.4g}"),
        class_="scale",
        aria_hidden="true",
    )
    return element(
        "div",
        head,
        element("div", scale, svg, class_="drawing"),
        class_=f"panel {curve.key}",
        data_low=f"{curve.low:g}",
        data_high=f"{curve.high:g}",
        data_unit="%" if curve.unit.startswith("%") else curve.unit,
    )


def _bands(record: GpuRecord, span: Span) -> Iterator[tuple[PhaseRecord, int, float, float]]:
    """Yield each phase with its number and the times in which it was due."""
    for number, phase in enumerate(record.phases, start=1):
        for first, last in phase.spans:
            yield phase, number, first, span.last if last is None else last


def _backgrounds(record: GpuRecord, span: Span) -> Iterator[Markup]:
    """Yield the background of each phase."""
    for _, number, first, last in _bands(record, span):
        name = "band odd" if number % 2 else "band"
        yield element("span", class_=name, style=_place(first, last, span))


def _names(record: GpuRecord, span: Span) -> Iterator[Markup]:
    """Yield the name of each phase above its band; only its number if it is narrow."""
    for phase, number, first, last in _bands(record, span):
        width = 100 * (last - first) / span.seconds
        name = f"{number} {phase.phase.name}" if width >= _MIN_NAME_WIDTH else str(number)
        whole = f"{number} {phase.phase.name}: {phase.phase.workload}"
        yield element("span", name, style=_place(first, last, span), title=whole)


def _ticks(span: Span) -> Iterator[Markup]:
    """Yield the times of the axis, from the start of the run."""
    step = next((one for one in _STEPS_S if span.seconds / one <= _TICKS), _STEPS_S[-1])
    for at in range(0, int(span.seconds * _LAST_TICK) + 1, step):
        yield element("span", _elapsed(at), style=f"left:{100 * at / span.seconds:.2f}%")


def _elapsed(seconds: int) -> str:
    """Format a time since the start: minutes and seconds, or hours and minutes."""
    if not seconds:
        return "0"
    minutes, rest = divmod(seconds, 60)
    if seconds < 3600:  # noqa: PLR2004 - an hour
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02} h"


def _place(first: float, last: float, span: Span) -> str:
    """Return the place of a time on the plot, as a style."""
    left = 100 * (first - span.first) / span.seconds
    return f"left:{left:.2f}%;width:{max(100 * (last - first) / span.seconds, 0.05):.2f}%"
