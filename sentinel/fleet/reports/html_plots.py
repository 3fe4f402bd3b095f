"""The distributions of rate, temperature and power in the page of a fleet: each GPU a point. Pure.

A plot is an SVG of points only; everything to read is HTML around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.burnin.checks.peers import Peers
from sentinel.burnin.checks.thresholds import Limits
from sentinel.burnin.reports.html_parts import kind
from sentinel.burnin.reports.markup import Markup, element, join
from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.checks.fleet_checks import CHECKS
from sentinel.fleet.checks.groups import Group
from sentinel.fleet.checks.verdict import FleetGpu, FleetVerdict
from sentinel.fleet.reports.report import rate_unit
from sentinel.units import format_count

#: The size of a plot in pixels of its own.
WIDTH, HEIGHT = 480, 150
#: Points this far apart or less are stacked on each other.
_BIN = 2.0
#: The largest distance between stacked points.
_MAX_STEP = 7.0
#: Fewer points than this are drawn larger.
_FEW = 400
#: More points of one verdict than this have no shape of their own: it would cover the others, and
#: take a browser seconds to draw.
_MAX_SHAPES = 500
#: What the stacks may fill.
_STACKED = HEIGHT - 16
#: About so many numbers are on an axis.
_TICKS = 5
#: The scale goes beyond the extremes by this share of their distance.
_MARGIN = 0.04
#: What is drawn at the place of a GPU: colour is never the only difference.
SHAPES = {
    Verdict.PASS: "h0",
    Verdict.NOT_APPLICABLE: "h0",
    Verdict.WARN: "m0-5l5 8.5h-10z",
    Verdict.INCOMPLETE: "m1-4.5a4.5 4.5 0 0 0 0 9z",
    Verdict.FAIL: "m-4-4l8 8m0-8l-8 8",
}
#: Larger groups only are drawn: fewer points are a table.
_MIN_POINTS = 4


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One figure of all GPUs of a group."""

    key: str
    title: str
    unit: str
    #: The GPUs that have it, with its values, in the order of the report.
    points: Sequence[tuple[FleetGpu, float]]
    #: What is usual, and the factor that turns it into the unit.
    peers: Peers | None
    factor: float = 1.0
    #: Lines across: the place in the unit, and the name.
    lines: Sequence[tuple[float, str]] = ()


def plots_section(fleet: FleetVerdict) -> Markup:
    """Build the distributions of each group."""
    by_group: dict[int, list[FleetGpu]] = {}
    for gpu in fleet.gpus:
        by_group.setdefault(gpu.group, []).append(gpu)
    parts = [_group(group, by_group[group.number], fleet) for group in fleet.groups]
    drawn = [part for part in parts if part]
    few = len(parts) - len(drawn)
    of = "1 group has" if few == 1 else f"{few} groups have"
    note = f"{of} too few GPUs, or none with a steady phase." if few else None
    return element(
        "section",
        element(
            "header",
            element("h2", "Distributions"),
            element("span", "each GPU is a point; groups are equal hardware", class_="quiet"),
        ),
        *drawn,
        element("p", note, class_="quiet") if note else None,
        _key() if drawn else None,
        class_="distributions",
    )


def _group(group: Group, gpus: Sequence[FleetGpu], fleet: FleetVerdict) -> Markup:
    """Build the plots of one group; empty if it is too small."""
    found = [
        distribution
        for distribution in _distributions(group, gpus, fleet)
        if len(distribution.points) >= _MIN_POINTS
    ]
    if not found:
        return Markup()
    size = (
        f"{format_count(len(group.members), 'GPU')} of {format_count(len(group.by_node()), 'node')}"
    )
    return join(
        element("h3", f"{group.hardware} ", element("span", size, class_="quiet")),
        element("div", *(_plot(one, group.number) for one in found), class_="plots"),
    )


def _distributions(
    group: Group, gpus: Sequence[FleetGpu], fleet: FleetVerdict
) -> Iterator[Distribution]:
    """Yield the figures of a group."""
    limits = _limits("fleet.rate", fleet)
    scale, unit = rate_unit(fleet)
    rate = [(gpu, gpu.gpu.steady.rate / scale) for gpu in gpus if gpu.gpu.steady.rate is not None]
    heat = [
        (gpu, gpu.gpu.steady.temperature_c)
        for gpu in gpus
        if gpu.gpu.steady.temperature_c is not None
    ]
    power = [(gpu, gpu.gpu.steady.power_w) for gpu in gpus if gpu.gpu.steady.power_w is not None]
    lines = []
    if group.rate is not None:
        median = group.rate.median / scale
        names = ("warn", "fail")
        lines = [
            (median * limits[name].value, f"{limits[name].value:.0%} {name}") for name in names
        ]
    yield Distribution(
        key="rate",
        title="Rate",
        unit=unit,
        points=rate,
        peers=group.rate,
        factor=1 / scale,
        lines=lines,
    )
    lines = []
    if group.temperature is not None:
        more = _limits("fleet.temperature", fleet)["warn"].value
        lines = [(group.temperature.median + more, f"+{more:g} warn")]
    yield Distribution(
        key="heat",
        title="Temperature",
        unit="°C",
        points=heat,
        peers=group.temperature,
        lines=lines,
    )
    yield Distribution(key="power", title="Power", unit="W", points=power, peers=group.power)


def _limits(check: str, fleet: FleetVerdict) -> Limits:
    """Return the limits in force of a check."""
    defaults = next(one.limits for one in CHECKS if one.id == check)
    return fleet.thresholds.of(check, defaults)


# --- one plot --------------------------------------------------------------------------------


def _plot(one: Distribution, group: int) -> Markup:
    """Draw one figure."""
    values = [value for _, value in one.points]
    low, high = _scale(values)
    placed = list(zip(one.points, places(values, low, high), strict=True))
    paths = []
    for verdict in reversed(Verdict):  # the worst are drawn last
        found = [place for (gpu, _), place in placed if gpu.verdict is verdict]
        if found:
            many = len(found) > _MAX_SHAPES
            shape = "h0" if many else SHAPES[verdict]
            d = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in found)
            css = kind(verdict.value)
            paths.append(
                element(
                    "path",
                    class_=f"points {css} many" if many else f"points {css}",
                    data_word=verdict.value,
                    d=d,
                )
            )
    peers = one.peers
    facts = f"lowest {min(values):.4g}, highest {max(values):.4g}"
    if peers is not None:
        middle, deviation = peers.median * one.factor, peers.deviation * one.factor
        facts = f"median {middle:.4g}, deviation {deviation:.2g}, {facts}"
        x = WIDTH * (middle - low) / (high - low)
        paths.insert(0, element("path", class_="median", d=f"M{x:.1f} 0V{HEIGHT}"))
    lines = [(at, name) for at, name in one.lines if low < at < high]
    for at, _ in lines:
        x = WIDTH * (at - low) / (high - low)
        paths.insert(0, element("path", class_="limit", d=f"M{x:.1f} 0V{HEIGHT}"))
    svg = element(
        "svg",
        *paths,
        class_="few" if len(values) < _FEW else None,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{one.title} of {len(values):,} GPUs in {one.unit}: {facts}",
    )
    marks = (
        element("span", name, style=f"left:{100 * (at - low) / (high - low):.2f}%")
        for at, name in lines
    )
    ticks = (
        element("span", f"{tick:g}", style=f"left:{100 * (tick - low) / (high - low):.2f}%")
        for tick in _ticks(low, high)
    )
    return element(
        "figure",
        element(
            "figcaption",
            element("strong", one.title),
            " ",
            element("span", one.unit, class_="unit"),
            element("span", facts, class_="quiet"),
        ),
        element("div", *marks, class_="marks", aria_hidden="true"),
        element("div", svg, element("span", class_="ring-mark", hidden=True), class_="cloud"),
        element("div", *ticks, class_="axis", aria_hidden="true"),
        class_=f"distribution {one.key}",
        data_group=group,
        data_key=one.key,
    )


def places(values: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Place each value: its own place on the scale, stacked around the middle where many are.

    Args:
        values: The figures, in any order.
        low: The value at the left.
        high: The value at the right.

    Returns:
        The places in the order of the values, in pixels of the plot.
    """
    across = [WIDTH * (value - low) / (high - low) for value in values]
    stacks: dict[int, list[int]] = {}
    for index, x in enumerate(across):
        stacks.setdefault(int(x / _BIN), []).append(index)
    most = max((len(stack) for stack in stacks.values()), default=1)
    step = min(_MAX_STEP, _STACKED / most)
    down = [0.0] * len(values)
    for stack in stacks.values():
        for rank, index in enumerate(stack):
            # 0, 1, -1, 2, -2 ... steps from the middle
            away = (rank + 1) // 2 * (1 if rank % 2 else -1)
            down[index] = HEIGHT / 2 + away * step
    return list(zip(across, down, strict=True))


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """Choose the ends of the scale."""
    low, high = min(values), max(values)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return low - margin, high + margin


def _ticks(low: float, high: float) -> Iterable[float]:
    """Yield round numbers on a scale, not at its very ends."""
    rough = (high - low) / _TICKS
    power = math.pow(10, math.floor(math.log10(rough)))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough)
    first = math.ceil((low + (high - low) * 0.02) / step)
    last = math.floor((high - (high - low) * 0.02) / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _key() -> Markup:
    """Explain the points."""
    items = [
        element(
            "li",
            element(
                "svg",
                element("path", class_=f"points {kind(verdict.value)}", d=f"M7 7{SHAPES[verdict]}"),
                viewBox="0 0 14 14",
                class_="dot",
                aria_hidden="true",
            ),
            verdict.value,
        )
        for verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.INCOMPLETE)
    ]
    items.append(element("li", "The line is the median; dashed lines are limits of the checks."))
    return element("ul", *items, class_="key")
