"""The section of one GPU in report.html. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sentinel.burnin.checks.measures import (
    format_measure,
    format_seconds,
    format_time,
    format_value,
    title,
)
from sentinel.burnin.reports.html_checks import BAD, bad_check, check_section, worst_first
from sentinel.burnin.reports.html_parts import badge, facts, folded, kind, section, table
from sentinel.burnin.reports.markup import Child, Markup, element, join
from sentinel.burnin.reports.moved import moved
from sentinel.burnin.reports.text import detection_power

#: Findings and interruptions beyond this number are counted, not listed.
_MAX_ROWS = 200


def gpu_section(gpu: Mapping[str, Any], drawing: Markup) -> Markup:
    """Build the section of a GPU: its verdict and reasons first, then everything it is based on.

    Args:
        gpu: The GPU of the report.
        drawing: Its plot.
    """
    name = gpu["model"] or "unknown model"
    return element(
        "section",
        element(
            "header",
            element("h2", f"GPU {gpu['index']}"),
            element("span", name, class_="quiet model"),
            badge(gpu["verdict"]),
        ),
        _identity(gpu),
        _reasons(gpu),
        section("Over time", drawing, _key(gpu)),
        section("Coverage", _coverage(gpu["coverage"])),
        check_section(gpu["checks"]),
        _findings(gpu["findings"]),
        _interruptions(gpu["interruptions"]),
        _measurements(gpu["measurements"]),
        _counters(gpu["counters"]),
        id=f"gpu-{gpu['index']}",
        class_=f"gpu {kind(gpu['verdict'])}",
    )


def _identity(gpu: Mapping[str, Any]) -> Markup:
    """Build what identifies the GPU, and how long and how well it was tested."""
    duty = gpu["duty"]
    return facts(
        (
            ("Serial", gpu["serial"]),
            ("UUID", element("code", gpu["uuid"])),
            ("PCI", gpu["pci_bus_id"] and element("code", gpu["pci_bus_id"])),
            ("VBIOS", gpu["vbios"]),
            ("Detection power", detection_power(gpu)),
            ("Longest stretch", format_seconds(gpu["longest_contiguous_s"])),
            ("Duty", None if duty is None else f"{duty:.0%} of the time counts"),
            ("Thermal cycles", str(gpu["thermal_cycles"])),
            ("Interruptions", _interrupted(gpu["interruptions"])),
        )
    )


def _interrupted(interruptions: Sequence[Mapping[str, Any]]) -> str:
    """Count the interruptions."""
    away = sum(one["away_s"] for one in interruptions)
    return f"{len(interruptions)}, {format_seconds(away)} in all" if interruptions else "none"


def _reasons(gpu: Mapping[str, Any]) -> Markup:
    """Build the reasons of the verdict: bad checks with their limits, then what is missing."""
    items = [bad_check(one) for one in worst_first(gpu["checks"]) if one["status"] in BAD]
    for text in gpu["incomplete"]:
        head = element("p", badge("INCOMPLETE"), element("span", text), class_="what")
        items.append(element("li", head, class_="incomplete"))
    return element("ul", *items, class_="reasons") if items else Markup()


def _key(gpu: Mapping[str, Any]) -> Markup:
    """Explain the backgrounds of the plot."""
    away = (
        join(element("span", class_="swatch away"), "interrupted") if gpu["interruptions"] else None
    )
    items = (
        join(element("span", class_="swatch counted"), "work that counts"),
        away,
        "The bands are the phases. The time begins with the run.",
    )
    return element("ul", *(element("li", one) for one in items if one), class_="key")


def _coverage(phases: Iterable[Mapping[str, Any]]) -> Markup:
    """Build what was done of each phase."""
    head = (
        "#",
        "Phase",
        "State",
        "Done of quota",
        "Checked results",
        "Wrong",
        "Not counted",
        "Remark",
    )
    rows = (
        (
            number,
            join(element("strong", one["phase"]), " ", element("code", one["workload"])),
            "done" if one["complete"] else badge("INCOMPLETE" if one["mandatory"] else "not done"),
            _quota(one),
            format_value(one["checks"]),
            element("strong", one["errors"], class_="fail") if one["errors"] else "0",
            format_seconds(one["uncounted_s"]),
            "; ".join(_remarks(one)),
        )
        for number, one in enumerate(phases, start=1)
    )
    return table(head, rows, class_="coverage", label="Coverage of the plan")


def _quota(phase: Mapping[str, Any]) -> Markup:
    """Build how much of the quota is done, with a bar."""
    parts, shares = [], []
    if phase["quota_s"]:
        parts.append(f"{format_seconds(phase['done_s'])} of {format_seconds(phase['quota_s'])}")
        shares.append(phase["done_s"] / phase["quota_s"])
    if phase["quota_passes"]:
        parts.append(f"{phase['passes']} of {phase['quota_passes']} passes")
        shares.append(phase["passes"] / phase["quota_passes"])
    share = min(1.0, *shares) if shares else 1.0
    bar = element("span", class_="done", style=f"width:{100 * share:.0f}%")
    return join(", ".join(parts), element("span", bar, class_="bar", aria_hidden="true"))


def _remarks(phase: Mapping[str, Any]) -> Iterator[str]:
    """Yield what else is to be said of a phase."""
    if phase["memory_share"]:
        yield f"{phase['memory_share']:.1%} of the memory"
    if phase.get("retained_share"):
        yield f"{phase['retained_share']:.1%} held untouched"
    if phase["interruptions"]:
        yield f"interruptions: {phase['interruptions']}"
    if not phase["mandatory"]:
        yield "not mandatory"
    if phase["not_tested"]:
        yield phase["not_tested"]


def _findings(findings: Sequence[Mapping[str, Any]]) -> Markup:
    """Build the findings of the stressors."""
    if not findings:
        return Markup()
    head = ("Time", "Place", "Workload", "Format", "Kind", "Wrong elements", "First", "Repeated")
    rows = (
        (
            format_time(one.get("time")),
            one.get("place"),
            one.get("workload"),
            one.get("dtype"),
            one.get("kind") or "once",
            format_value(one.get("count")),
            format_value(one.get("first")),
            f"{one.get('repeated', 0)} of {one.get('repeats', 0)}",
        )
        for one in findings[:_MAX_ROWS]
    )
    return section("Findings", table(head, rows, label="Findings"), _more(findings))


def _interruptions(interruptions: Sequence[Mapping[str, Any]]) -> Markup:
    if not interruptions:
        return Markup()
    head = ("Phase", "Interrupted by", "For", "Stretch before it")
    rows = (
        (
            one["phase"],
            one["cause"],
            format_seconds(one["away_s"]),
            format_seconds(one["stretch_s"]),
        )
        for one in interruptions[:_MAX_ROWS]
    )
    return section("Interruptions", table(head, rows, label="Interruptions"), _more(interruptions))


def _more(rows: Sequence[object]) -> Child:
    """Count the rows that are left out."""
    more = len(rows) - _MAX_ROWS
    return element("p", f"{more} more are in report.json.", class_="quiet") if more > 0 else None


def _measurements(measurements: Sequence[Mapping[str, Any]]) -> Markup:
    """Build the measurements of each phase, folded."""
    if not measurements:
        return Markup()
    head = ("Phase", "Measurement", "Median", "5 %", "95 %", "Lowest", "Highest", "Samples")
    rows = (
        (
            one["phase"],
            title(one["name"]),
            *(
                format_measure(one["name"], one[key])
                for key in ("median", "p5", "p95", "lowest", "highest")
            ),
            one["n"],
        )
        for one in measurements
    )
    return section("Measurements", folded("Of the work that counts", table(head, rows)))


def _counters(counters: Mapping[str, Any]) -> Markup:
    """Build the counters that differ before and after the run, folded."""
    before, after = counters["before"], counters["after"]
    if not before or not after:
        missing = "before and after" if not before and not after else "before" if after else "after"
        text = f"The counters could not be read {missing} the run."
        return section("Counters", element("p", text, class_="quiet"))
    rows = [
        (element("code", one.name), format_value(one.before), format_value(one.after), one.growth)
        for one in moved(before, after)
    ]
    title_ = f"Different after the run: {len(rows)}"
    content = table(("Counter", "Before", "After", "Growth"), rows, label="Counters")
    return section(
        "Counters", folded(title_, content) if rows else element("p", "No value differs.")
    )
