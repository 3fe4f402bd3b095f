"""The page of a fleet: one file that needs no network, and is complete without its script. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sentinel.burnin.checks.measures import MISSING, format_measure, format_seconds, format_time
from sentinel.burnin.checks.peers import Peers
from sentinel.burnin.reports.html_document import asset, html_document
from sentinel.burnin.reports.html_parts import (
    badge,
    facts,
    folded,
    kind,
    notices,
    sentence,
    symbol,
    table,
)
from sentinel.burnin.reports.markup import Child, Markup, element, join
from sentinel.fleet.checks.fleet_checks import CHECKS
from sentinel.fleet.checks.outliers import Outlier, outliers
from sentinel.fleet.checks.verdict import FleetVerdict
from sentinel.fleet.reports.html_map import data, map_section
from sentinel.fleet.reports.html_plots import plots_section
from sentinel.fleet.reports.node_names import fold_names
from sentinel.fleet.reports.report import SCHEMA_VERSION, meaning, page_of
from sentinel.units import format_count

#: So many outliers are listed at once, and so many more behind a fold.
_SHOWN, _FOLDED = 12, 1000
#: So many reasons of one outlier are listed.
_MAX_REASONS = 3


def html_page(fleet: FleetVerdict) -> str:
    """Build the page."""
    name = "fleet" if fleet.run is None else fleet.run.id
    body = join(
        _verdict(fleet),
        element(
            "main",
            notices(fleet.notices),
            _outliers(fleet),
            map_section(fleet),
            plots_section(fleet),
            _groups(fleet),
            _basis(fleet),
        ),
        element("div", id="tip", class_="tip", role="tooltip", hidden=True),
        data(fleet),
    )
    return html_document(
        title=f"{fleet.verdict} {name}, {len(fleet.nodes)} nodes",
        style=asset("sentinel.burnin.reports", "report.css") + asset(__package__, "fleet.css"),
        body=body,
        script=asset(__package__, "fleet.js"),
    )


def _verdict(fleet: FleetVerdict) -> Markup:
    """Build the top of the page: the verdict, the counts, and what was run."""
    run, word = fleet.run, fleet.verdict.value
    counts = (
        element(
            "div",
            element("dt", title),
            *(
                element("dd", symbol(one), f"{number:,} {one}", class_=kind(one))
                for one, number in found.items()
                if number
            ),
        )
        for title, found in (("Nodes", fleet.node_counts), ("GPUs", fleet.gpu_counts))
    )
    results = [node.result for node in fleet.nodes if node.result is not None]
    began = min((result.started for result in results), default=None)
    rows: list[tuple[str, Child]] = []
    if run is not None:
        rows = [
            ("Run", run.id),
            ("Engine", run.engine),
            ("Plan", join(run.plan, " ", element("code", run.plan_hash))),
            ("Submitted", format_time(run.started.isoformat())),
        ]
    rows += [
        ("First node began", None if began is None else format_time(began.isoformat())),
        (
            "Longest run",
            format_seconds(max((result.duration_s for result in results), default=0.0)),
        ),
        ("Tool", ", ".join(sorted({f"sentinel {result.version}" for result in results}))),
    ]
    return element(
        "header",
        element(
            "div",
            element("p", symbol(word), word, class_="word"),
            element(
                "div",
                element("h1", f"Burn-in of {format_count(len(fleet.nodes), 'node')}"),
                element("p", sentence(meaning(fleet)), class_="meaning"),
            ),
            element("dl", *counts, class_="tally"),
            class_="verdict",
        ),
        facts(rows),
        class_=f"top {kind(word)}",
    )


# --- outliers --------------------------------------------------------------------------------


def _outliers(fleet: FleetVerdict) -> Markup:
    """Build what is wrong, the worst first."""
    numbers = {node.name: number for number, node in enumerate(fleet.nodes)}
    found = outliers(fleet)
    first, more = found[:_SHOWN], found[_SHOWN : _SHOWN + _FOLDED]
    left = len(found) - len(first) - len(more)
    content: list[Child] = []
    if not found:
        content.append(element("p", "Nothing stands out."))
    else:
        content.append(_table(first, numbers))
    if more:
        content.append(folded(f"{len(more):,} more", _table(more, numbers)))
    if left:
        text = f"{left:,} more are in the map, and in `sentinel fleet report --json`."
        content.append(element("p", text, class_="quiet"))
    note = "what GPUs or nodes have in common is one row" if found else ""
    return element(
        "section",
        element(
            "header",
            element("h2", "Outliers"),
            element("span", note, class_="quiet"),
        ),
        *content,
        class_="outliers",
    )


def _table(found: Sequence[Outlier], numbers: dict[str, int]) -> Markup:
    rows = (
        (badge(one.word), _where(one, numbers), _why(one), one.action or MISSING) for one in found
    )
    return table(("Verdict", "Where", "What", "What to do"), rows, label="Outliers")


def _where(one: Outlier, numbers: dict[str, int]) -> Markup:
    """Name the nodes and GPUs of an outlier, with links to the map and to the node's own page."""
    if len(one.nodes) > 1:
        names = fold_names(node.name for node in one.nodes)
        gpus = f"{format_count(len(one.gpus), 'GPU')} of " if one.gpus else ""
        subject = f"{gpus}{format_count(len(one.nodes), 'node')}"
        return join(element("strong", subject), element("div", names))
    (node,) = one.nodes
    subject, below = "", list[Child]()
    if len(one.gpus) == 1:
        gpu = one.gpus[0].gpu
        subject = f" GPU {gpu.index}"
        below.append(element("span", gpu.serial or gpu.uuid, class_="quiet"))
    elif one.gpus:
        indices = fold_names(str(gpu.gpu.index) for gpu in one.gpus).strip("[]")
        subject = f" GPUs {indices}"
    if page := page_of(node):
        gpus = f"#gpu-{one.gpus[0].gpu.index}" if one.gpus else ""
        below.append(element("a", "its report", href=page + gpus))
    link = element("a", element("strong", node.name), href=f"#n{numbers[node.name]}")
    return join(element("div", link, subject), element("div", *below, class_="below"))


def _why(one: Outlier) -> Markup:
    """List the reasons; the id of a check is its first word."""
    items = []
    for reason in one.reasons[:_MAX_REASONS]:
        check, colon, rest = reason.partition(": ")
        is_check = bool(colon) and " " not in check
        parts = (element("code", check), " ", rest) if is_check else (reason,)
        items.append(element("div", *parts))
    if len(one.reasons) > _MAX_REASONS:
        items.append(element("div", f"and {len(one.reasons) - _MAX_REASONS} more", class_="quiet"))
    return join(*items)


# --- groups and basis ------------------------------------------------------------------------


def _groups(fleet: FleetVerdict) -> Markup:
    """Build the table of the groups."""
    head = ("Group", "Hardware", "Plan", "GPUs", "Nodes", "Rate", "Temperature", "Power")
    rows: list[Sequence[Child]] = [
        (
            group.number,
            str(group.hardware),
            element("code", group.hardware.plan_hash),
            f"{len(group.members):,}",
            f"{len(group.by_node()):,}",
            *(
                _usual(name, peers)
                for name, peers in (
                    ("flops_per_s", group.rate),
                    ("temperature_c", group.temperature),
                    ("power_w", group.power),
                )
            ),
        )
        for group in fleet.groups
    ]
    return element(
        "section",
        element("h2", "Groups of equal hardware"),
        table(head, rows, label="Groups") if fleet.groups else element("p", "There are none."),
        class_="all",
    )


def _usual(name: str, peers: Peers | None) -> str:
    """Format the median and the deviation."""
    if peers is None:
        return MISSING
    share = peers.deviation / peers.median if peers.median else 0.0
    return f"{format_measure(name, peers.median)} ± {share:.1%}"


def _basis(fleet: FleetVerdict) -> Markup:
    """Build what the verdicts are based on."""
    rows = (
        (
            element("code", check.id),
            check.title,
            check.threshold(fleet.thresholds.of(check.id, check.limits)),
            fleet.thresholds.source_of(check.id, check.source),
        )
        for check in CHECKS
    )
    skipped = list(_not_compared(fleet))
    return element(
        "section",
        element("h2", "Basis of the verdicts"),
        element(
            "p",
            "A verdict is that of the node's own report, or a worse one by a comparison. A node"
            " without a complete report of this run is missing, which is never PASS.",
        ),
        element("h3", "Comparisons"),
        table(("Check", "Passes if", "Threshold", "Source"), rows, class_="limits"),
        element("h3", "Not compared") if skipped else None,
        element("ul", *(element("li", one) for one in skipped)) if skipped else None,
        element(
            "p",
            f"schema {SCHEMA_VERSION}; the same report for programs is"
            " `sentinel fleet report --json`.",
            class_="quiet",
        ),
        class_="basis",
    )


def _not_compared(fleet: FleetVerdict) -> Iterator[str]:
    """Yield why GPUs were not compared, with their numbers."""
    for text, number in fleet.not_compared:
        yield f"{format_count(number, 'GPU')}: {text}"
