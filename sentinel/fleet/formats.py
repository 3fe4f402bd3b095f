"""The formats of a fleet's report: text, JUnit, the page and JSON.

The layout of the page is ``web/templates/fleet.html``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from sentinel.burnin.checks import measures
from sentinel.burnin.checks.check import CheckResult
from sentinel.burnin.checks.peers import Peers
from sentinel.burnin.junit import add_case, add_result, clean, count_cases, document
from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.errors import ExitCode
from sentinel.fleet import report
from sentinel.fleet.fleet_checks import NodeGroup
from sentinel.fleet.node_names import fold_names
from sentinel.fleet.node_result import FIGURES, HEAT, RATE
from sentinel.fleet.verdict import MISSING, FleetNode, FleetVerdict
from sentinel.units import format_count
from sentinel.web.document import html_document

# --- text ------------------------------------------------------------------------------------

#: Of each verdict, so many entries are listed with their reasons; the others only by their nodes.
MAX_LISTED = 40
#: So many reasons of one entry are listed.
_MAX_LISTED_REASONS = 3
_INDENT = " " * 12

#: The letter of each verdict; colour is never the only difference.
LETTERS = {
    Verdict.FAIL.value: "F",
    MISSING: "M",
    Verdict.INCOMPLETE.value: "I",
    Verdict.WARN.value: "W",
    Verdict.PASS.value: "P",
    Verdict.NOT_APPLICABLE.value: "N",
}
#: A common beginning of all names is left out of the map if it has at least so many characters.
_MIN_PREFIX = 3
#: So many reasons of one node or GPU are shown in the map.
_MAX_MAP_REASONS = 6

#: Larger groups only are drawn: fewer points are a table.
_MIN_POINTS = 4
#: What each figure is divided by, and its unit.
_Units = Mapping[str, tuple[float, str]]


def text_lines(fleet: FleetVerdict) -> Iterator[str]:
    """Yield the lines: the verdict, what is wrong, and what is usual."""
    run = fleet.run
    name = "fleet" if run is None else f"{run.id}  {run.plan}"
    yield f"{fleet.verdict}  {name}: {report.meaning(fleet)}"
    yield f"{format_count(len(fleet.nodes), 'node')}: {_counts(fleet.node_counts)}"
    yield f"{format_count(len(fleet.gpus), 'GPU')}: {_counts(fleet.gpu_counts)}"
    yield from fleet.notices
    found = report.outliers(fleet)
    for word in report.LISTED:
        yield from _listed(word, [outlier for outlier in found if outlier.word == word])
    yield ""
    for group in fleet.groups:
        yield from _group_lines(group)
    for text, number in fleet.not_compared:
        yield f"not compared on {format_count(number, 'GPU')}: {text}"
    yield report.describe_confirmed(fleet)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "none"


def _listed(word: str, found: Sequence[report.Outlier]) -> Iterator[str]:
    """Yield the entries of one word, and the nodes of those that are too many to list."""
    if found:
        yield ""
    for outlier in found[:MAX_LISTED]:
        yield f"{word:<10}  {_subject(outlier)}"
        for reason in outlier.reasons[:_MAX_LISTED_REASONS]:
            yield f"{_INDENT}{reason}"
        if len(outlier.reasons) > _MAX_LISTED_REASONS:
            yield f"{_INDENT}and {len(outlier.reasons) - _MAX_LISTED_REASONS} more reasons"
    if left := found[MAX_LISTED:]:
        names = fold_names(node.name for outlier in left for node in outlier.nodes)
        yield f"{word:<10}  and {len(left):,} more: {names}"


def _subject(outlier: report.Outlier) -> str:
    """Name the nodes or GPUs of an entry."""
    names = fold_names(node.name for node in outlier.nodes)
    if len(outlier.nodes) > 1:
        gpus = f"{format_count(len(outlier.gpus), 'GPU')} of " if outlier.gpus else ""
        return f"{gpus}{format_count(len(outlier.nodes), 'node')}: {names}"
    if not outlier.gpus:
        return names
    if len(outlier.gpus) > 1:
        numbers = fold_names(str(gpu.gpu.index) for gpu in outlier.gpus).strip("[]")
        return f"{names} GPUs {numbers}"
    gpu = outlier.gpus[0].gpu
    return f"{names} GPU {gpu.index}  {gpu.uuid}" + (f"  serial {gpu.serial}" if gpu.serial else "")


def _group_lines(group: NodeGroup) -> Iterator[str]:
    """Yield what is usual in a group."""
    size = f"{format_count(len(group.members), 'GPU')} of {format_count(len(group.nodes), 'node')}"
    yield f"group {group.number}: {size}: {group.hardware}"
    parts = []
    for name in FIGURES:
        if (peers := group.usual[name]) is not None:
            median = measures.format_measure(name, peers.median)
            parts.append(f"{measures.title(name).lower()} {median} ± {_deviation(name, peers)}")
    yield f"  {', '.join(parts) or 'too few GPUs, or no steady phase, to compare'}"


def _deviation(name: str, peers: Peers) -> str:
    """Format the deviation; of a rate as a share, since its unit has a prefix."""
    if name == RATE and peers.median:
        return f"{peers.deviation / peers.median:.1%}"
    return measures.format_measure(name, round(peers.deviation, 1))


# --- JUnit: a suite for each node, a case for each GPU ---------------------------------------


def junit_xml(fleet: FleetVerdict) -> str:
    """Build the document."""
    name = "sentinel fleet" if fleet.run is None else f"sentinel fleet {fleet.run.id}"
    name += f", judged again by {fleet.judged_again_by}" if fleet.judged_again_by else ""
    root = Element("testsuites", name=clean(name))
    began = [result.run.started for result in fleet.results]
    # The format wants a time of each suite: that of a missing node is the run's.
    started = fleet.run.started if fleet.run is not None else min(began, default=None)
    for number, node in enumerate(fleet.nodes):
        root.append(_suite(node, number, started, strict=fleet.strict))
    if fleet.wrong_number:
        suite = _new_suite("nodes", len(fleet.nodes), "fleet", started)
        add_result(add_case(suite, "fleet", "nodes", 0.0), "error", fleet.wrong_number, "Missing")
        count_cases(suite, 0.0)
        root.append(suite)
    return document(root, _span_s(fleet))


def _span_s(fleet: FleetVerdict) -> float:
    """Compute the time from the first start of a node to the last end."""
    spans = [(result.run.started.timestamp(), result.run.duration_s) for result in fleet.results]
    last = max((started + seconds for started, seconds in spans), default=0.0)
    return last - min((started for started, _ in spans), default=0.0)


def _new_suite(name: str, number: int, hostname: str, time: datetime | None) -> Element:
    suite = Element(
        "testsuite",
        name=clean(name),
        id=str(number),
        package="sentinel.fleet",
        hostname=clean(hostname),
    )
    if time is not None:
        suite.set("timestamp", time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    return suite


def _suite(node: FleetNode, number: int, started: datetime | None, *, strict: bool) -> Element:
    """Build the suite of a node; its first case is the node itself.

    It has a failure or an error if the fleet does not pass because of the node.
    """
    hostname = node.name if node.result is None else node.result.node.hostname
    time = started if node.result is None else node.result.run.started
    suite = _new_suite(node.name, number, hostname, time)
    group = f"fleet.{node.name}"
    seconds = node.result.run.duration_s if node.result is not None else 0.0
    case = add_case(suite, group, "node", seconds)
    # A node off the list that has not failed says nothing of the fleet.
    counts = not node.unlisted or bool(node.refused)
    own = [result for result in node.bad if result.status.value == "fail"]
    if node.missing:
        add_result(case, "error", f"missing: {node.missing}", "Missing")
    elif own:
        add_result(case, "failure", "; ".join(node.reasons), own[0].severity.value)
    elif node.incomplete and counts:
        add_result(case, "error", "; ".join(node.reasons), "NotTested")
    else:
        text = "; ".join((node.word, *node.reasons))
        by_gpus = not counts or node.verdict in {gpu.verdict for gpu in node.gpus}
        _add_verdict(case, Verdict.PASS if by_gpus else node.verdict, text, node.bad, strict=strict)
    for gpu in node.gpus:
        case = add_case(suite, group, f"GPU {gpu.gpu.index} {gpu.gpu.uuid}", gpu.gpu.duration_s)
        text = "; ".join((gpu.verdict.value, *gpu.reasons))
        if counts:
            _add_verdict(case, gpu.verdict, text, gpu.bad, strict=strict)
        else:
            SubElement(case, "system-out").text = clean(text)
    count_cases(suite, seconds)  # its GPUs work at the same time
    return suite


def _add_verdict(
    case: Element, verdict: Verdict, text: str, bad: Sequence[CheckResult], *, strict: bool
) -> None:
    """Add the result of a case: what makes the exit code 1 is a failure, 3 an error."""
    match exit_code(verdict, strict=strict):
        case ExitCode.FAIL:
            add_result(case, "failure", text, bad[0].severity.value if bad else "unknown")
        case ExitCode.INCOMPLETE:
            add_result(case, "error", text, "NotTested")
        case _ if verdict is Verdict.NOT_APPLICABLE:
            add_result(case, "skipped", text)
        case _:
            SubElement(case, "system-out").text = clean(text)


# --- the page --------------------------------------------------------------------------------


def html_page(fleet: FleetVerdict) -> str:
    """Build the page."""
    units = report.units_of(fleet)
    runs = [result.run for result in fleet.results]
    names = [node.name for node in fleet.nodes]
    prefix = common_prefix(names)
    began = min((run.started for run in runs), default=None)
    return html_document(
        "fleet.html",
        scripts=("dom.js", "fleet.js"),
        filters={
            "count_of": format_count,
            "fold_names": fold_names,
            "page_of": report.page_of,
            "seconds": measures.format_seconds,
            "time": measures.format_time,
            "value": measures.format_value,
        },
        fleet=fleet,
        meaning=report.meaning(fleet),
        began=None if began is None else began.isoformat(),
        longest_s=max((run.duration_s for run in runs), default=0.0),
        tools=", ".join(sorted({f"sentinel {run.version}" for run in runs})),
        outliers=report.outliers(fleet),
        confirmed=report.describe_confirmed(fleet),
        numbers={name: number for number, name in enumerate(names)},
        letters=LETTERS,
        prefix=prefix,
        longest=max((len(name) - len(prefix) for name in names), default=2),
        most=max((len(node.gpus) for node in fleet.nodes), default=1) or 1,
        groups=list(_groups(fleet, units)),
        checks=report.comparisons(fleet),
        missing=measures.MISSING,
        schema=report.SCHEMA_VERSION,
        rate_unit=units[RATE][1],
        values=list(_values(fleet, units)),
    )


def common_prefix(names: Sequence[str]) -> str:
    """Find what all names begin with, up to the digits; empty if it is short."""
    if len(names) < 2:  # noqa: PLR2004 - one name has nothing in common
        return ""
    pairs = zip(min(names), max(names), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    found = "".join(first for first, _ in same).rstrip("0123456789")
    return found if len(found) >= _MIN_PREFIX else ""


def _groups(fleet: FleetVerdict, units: _Units) -> Iterator[dict[str, Any]]:
    """Yield the groups of equal hardware with what is usual and the figures to draw."""
    for group in fleet.groups:
        yield {
            "number": group.number,
            "hardware": str(group.hardware),
            "plan_hash": group.hardware.plan_hash,
            "gpus": len(group.members),
            "nodes": len(group.nodes),
            "usual": [_usual(name, group.usual[name]) for name in FIGURES],
            "figures": list(_figures(group, fleet, units)),
        }


def _usual(name: str, peers: Peers | None) -> str:
    """Format the median and the deviation."""
    if peers is None:
        return measures.MISSING
    share = peers.deviation / peers.median if peers.median else 0.0
    return f"{measures.format_measure(name, peers.median)} ± {share:.1%}"


def _figures(group: NodeGroup, fleet: FleetVerdict, units: _Units) -> Iterator[dict[str, Any]]:
    """Yield the figures of a group that are known of enough GPUs, with the limits to draw."""
    for name, key in zip(FIGURES, ("rate", "heat", "power"), strict=True):
        factor, unit = units[name]
        known = (member.gpu.steady(name) for member in group.members)
        values = [figure / factor for figure in known if figure is not None]
        if len(values) < _MIN_POINTS:
            continue
        peers = group.usual[name]
        facts = f"lowest {min(values):.4g}, highest {max(values):.4g}"
        if peers is not None:
            middle, deviation = peers.median / factor, peers.deviation / factor
            facts = f"median {middle:.4g}, deviation {deviation:.2g}, {facts}"
        limits = () if peers is None else _limits(name, peers.median, fleet)
        yield {
            "group": group.number,
            "key": key,
            "title": measures.title(name),
            "unit": unit,
            "facts": facts,
            "median": None if peers is None else peers.median / factor,
            "lines": [(limit / factor, text) for limit, text in limits],
        }


def _limits(name: str, median: float, fleet: FleetVerdict) -> Iterator[tuple[float, str]]:
    """Yield the limits of a figure, and how a line at each is labelled."""
    if name == RATE:
        limits = fleet.limits_of("fleet.rate")
        for word in ("warn", "fail"):
            yield median * limits[word].value, f"{limits[word].value:.0%} {word}"
    if name == HEAT:
        more = fleet.limits_of("fleet.temperature")["warn"].value
        yield median + more, f"+{more:g} warn"


def _values(fleet: FleetVerdict, units: _Units) -> Iterator[list[Any]]:
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
                *(_rounded(gpu.gpu.steady(name), units[name][0]) for name in FIGURES),
                *([list(_first(gpu.reasons))] if gpu.reasons else ()),
            ]
            for gpu in node.gpus
        ]
        yield [node.name, node.word, report.page_of(node) or "", list(_first(node.reasons)), gpus]


def _rounded(value: float | None, factor: float) -> float | None:
    """Round a figure to five digits of its unit."""
    return None if value is None else float(f"{value / factor:.5g}")


def _first(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first reasons, and how many are left out."""
    found = list(reasons)
    yield from found[:_MAX_MAP_REASONS]
    if len(found) > _MAX_MAP_REASONS:
        yield f"and {len(found) - _MAX_MAP_REASONS} more"


# --- all formats -----------------------------------------------------------------------------


def _line(text: str) -> str:
    """Keep a line one line: the report of a node must add none, and not control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


#: What builds each format; without a newline at the end.
FORMATS: Mapping[str, Callable[[FleetVerdict], str]] = {
    "text": lambda fleet: "\n".join(map(_line, text_lines(fleet))),
    "html": html_page,
    "junit": junit_xml,
    "json": lambda fleet: json.dumps(report.fleet_object(fleet), indent=1),
    "jsonl": lambda fleet: "\n".join(json.dumps(gpu_line) for gpu_line in report.gpu_lines(fleet)),
}
