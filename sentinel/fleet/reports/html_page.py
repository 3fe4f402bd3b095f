"""Build the page of a fleet; its layout is ``web/templates/fleet.html``. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sentinel.burnin.checks.measures import (
    MISSING,
    format_measure,
    format_seconds,
    format_time,
    format_value,
)
from sentinel.burnin.checks.peer_checks import Peers
from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.checks.fleet_checks import CHECKS
from sentinel.fleet.checks.groups import Group
from sentinel.fleet.checks.outliers import outliers
from sentinel.fleet.checks.verdict import MISSING as ABSENT
from sentinel.fleet.checks.verdict import FleetGpu, FleetVerdict
from sentinel.fleet.reports.node_names import fold_names
from sentinel.fleet.reports.report import SCHEMA_VERSION, comparisons, meaning, page_of, rate_unit
from sentinel.units import format_count
from sentinel.web.document import html_document

#: The letter of each verdict; colour is never the only difference.
LETTERS = {
    Verdict.FAIL.value: "F",
    ABSENT: "M",
    Verdict.INCOMPLETE.value: "I",
    Verdict.WARN.value: "W",
    Verdict.PASS.value: "P",
    Verdict.NOT_APPLICABLE.value: "N",
}
#: A common beginning of all names is left out of the map if it has at least so many characters.
_MIN_PREFIX = 3
#: So many reasons of one node or GPU are shown in the map.
_MAX_REASONS = 6
#: Larger groups only are drawn: fewer points are a table.
_MIN_POINTS = 4


def html_page(fleet: FleetVerdict) -> str:
    """Build the page."""
    scale, unit = rate_unit(fleet)
    results = [node.result for node in fleet.nodes if node.result is not None]
    names = [node.name for node in fleet.nodes]
    prefix = common_prefix(names)
    began = min((result.started for result in results), default=None)
    return html_document(
        "fleet.html",
        scripts=("dom.js", "fleet.js"),
        filters={
            "count_of": format_count,
            "fold_names": fold_names,
            "page_of": page_of,
            "seconds": format_seconds,
            "time": format_time,
            "value": format_value,
        },
        fleet=fleet,
        meaning=meaning(fleet),
        began=None if began is None else began.isoformat(),
        longest_s=max((result.duration_s for result in results), default=0.0),
        tools=", ".join(sorted({f"sentinel {result.version}" for result in results})),
        outliers=outliers(fleet),
        numbers={name: number for number, name in enumerate(names)},
        letters=LETTERS,
        prefix=prefix,
        longest=max((len(name) - len(prefix) for name in names), default=2),
        most=max((len(node.gpus) for node in fleet.nodes), default=1) or 1,
        groups=list(_groups(fleet, scale, unit)),
        checks=comparisons(fleet),
        missing=MISSING,
        schema=SCHEMA_VERSION,
        rate_unit=unit,
        values=list(_values(fleet, scale)),
    )


def common_prefix(names: Sequence[str]) -> str:
    """Find what all names begin with, up to the digits; empty if it is short."""
    if len(names) < 2:  # noqa: PLR2004 - one name has nothing in common
        return ""
    pairs = zip(min(names), max(names), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    found = "".join(first for first, _ in same).rstrip("0123456789")
    return found if len(found) >= _MIN_PREFIX else ""


def _groups(fleet: FleetVerdict, scale: float, unit: str) -> Iterator[dict[str, Any]]:
    """Yield the groups of equal hardware with what is usual and the figures to draw."""
    gpus: dict[int, list[FleetGpu]] = {}
    for gpu in fleet.gpus:
        gpus.setdefault(gpu.group, []).append(gpu)
    for group in fleet.groups:
        yield {
            "number": group.number,
            "hardware": str(group.hardware),
            "plan_hash": group.hardware.plan_hash,
            "gpus": len(group.members),
            "nodes": len(group.by_node()),
            "usual": [
                _usual("flops_per_s", group.rate),
                _usual("temperature_c", group.temperature),
                _usual("power_w", group.power),
            ],
            "figures": list(_figures(group, gpus[group.number], fleet, scale, unit)),
        }


def _usual(name: str, peers: Peers | None) -> str:
    """Format the median and the deviation."""
    if peers is None:
        return MISSING
    share = peers.deviation / peers.median if peers.median else 0.0
    return f"{format_measure(name, peers.median)} ± {share:.1%}"


def _figures(
    group: Group, gpus: Sequence[FleetGpu], fleet: FleetVerdict, scale: float, unit: str
) -> Iterator[dict[str, Any]]:
    """Yield the figures of a group that are known of enough GPUs, with the limits to draw."""
    limits = {check.id: fleet.thresholds.of(check.id, check.limits) for check in CHECKS}
    rate, heat = group.rate, group.temperature
    lines: dict[str, list[tuple[float, str]]] = {"rate": [], "heat": [], "power": []}
    if rate is not None:
        for name in ("warn", "fail"):
            share = limits["fleet.rate"][name].value
            lines["rate"].append((rate.median * share / scale, f"{share:.0%} {name}"))
    if heat is not None:
        more = limits["fleet.temperature"]["warn"].value
        lines["heat"].append((heat.median + more, f"+{more:g} warn"))
    steady = [gpu.gpu.steady for gpu in gpus]
    for key, title, of, factor, peers, figures in (
        ("rate", "Rate", unit, scale, rate, [one.rate for one in steady]),
        ("heat", "Temperature", "°C", 1.0, heat, [one.temperature_c for one in steady]),
        ("power", "Power", "W", 1.0, group.power, [one.power_w for one in steady]),
    ):
        values = [figure / factor for figure in figures if figure is not None]
        if len(values) < _MIN_POINTS:
            continue
        facts = f"lowest {min(values):.4g}, highest {max(values):.4g}"
        if peers is not None:
            middle, deviation = peers.median / factor, peers.deviation / factor
            facts = f"median {middle:.4g}, deviation {deviation:.2g}, {facts}"
        yield {
            "group": group.number,
            "key": key,
            "title": title,
            "unit": of,
            "facts": facts,
            "median": None if peers is None else peers.median / factor,
            "lines": lines[key],
        }


def _values(fleet: FleetVerdict, scale: float) -> Iterator[list[Any]]:
    """Yield the values of each node for the script.

    A node is ``[name, word, path of its page, reasons, GPUs]``; a GPU is ``[index, letter, group,
    uuid, serial, rate, C, W, reasons]``, without what is missing at its end.
    """
    for node in fleet.nodes:
        gpus = [
            [
                gpu.gpu.index,
                LETTERS[gpu.verdict.value],
                gpu.group,
                gpu.gpu.uuid,
                gpu.gpu.serial or "",
                _rounded(gpu.gpu.steady.rate, scale),
                _rounded(gpu.gpu.steady.temperature_c),
                _rounded(gpu.gpu.steady.power_w),
                *([list(_first(gpu.reasons))] if gpu.reasons else ()),
            ]
            for gpu in node.gpus
        ]
        yield [node.name, node.word, page_of(node) or "", list(_first(node.reasons)), gpus]


def _rounded(value: float | None, scale: float = 1.0) -> float | None:
    """Round a figure to five digits of its unit."""
    return None if value is None else float(f"{value / scale:.5g}")


def _first(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first reasons, and how many are left out."""
    found = list(reasons)
    yield from found[:_MAX_REASONS]
    if len(found) > _MAX_REASONS:
        yield f"and {len(found) - _MAX_REASONS} more"
