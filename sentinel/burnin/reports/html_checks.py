"""The checks in report.html: of a GPU and of the node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.burnin.checks.measures import format_value
from sentinel.burnin.reports.html_parts import badge, facts, folded, kind, section, table
from sentinel.burnin.reports.markup import Markup, element

#: The order of the checks, by their status.
_STATUSES = ("fail", "warn", "not tested", "pass", "n/a")
#: The statuses that are reasons of a verdict.
BAD = ("fail", "warn")


def worst_first(checks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort checks by their status."""
    return sorted(checks, key=lambda one: _STATUSES.index(one["status"]))


def node_section(checks: Iterable[Mapping[str, Any]]) -> Markup:
    """Build the section of the node's own checks."""
    ordered = worst_first(checks)
    reasons = [bad_check(one) for one in ordered if one["status"] in BAD]
    return element(
        "section",
        element("h2", "Node"),
        element("ul", *reasons, class_="reasons") if reasons else None,
        check_section(ordered),
        class_="node",
    )


def bad_check(check: Mapping[str, Any]) -> Markup:
    """Build one reason."""
    value = format_value(check["value"], check["unit"])
    return element(
        "li",
        element(
            "p",
            badge(check["status"]),
            element("strong", check["id"]),
            element("span", value) if check["value"] is not None else None,
            class_="what",
        ),
        element("p", check["evidence"]) if check["evidence"] else None,
        facts(
            (
                ("Action", check["action"]),
                ("Threshold", check["threshold"]),
                ("Source", check["source"]),
                ("Severity", check["severity"]),
            ),
            class_="facts list",
        ),
        class_=kind(check["status"]),
    )


def check_section(checks: Iterable[Mapping[str, Any]]) -> Markup:
    """Build the checks: those that did not pass, and the others folded."""
    ordered = worst_first(checks)
    others = [one for one in ordered if one["status"] not in {"pass", "n/a"}]
    passed = [one for one in ordered if one["status"] == "pass"]
    missing = [one for one in ordered if one["status"] == "n/a"]
    count = f"{len(passed)} passed, {len(others)} did not"
    return section(
        "Checks",
        check_table(others) if others else None,
        folded(f"Passed: {len(passed)}", check_table(passed)) if passed else None,
        folded(f"Not applicable: {len(missing)}", check_table(missing)) if missing else None,
        quiet=count,
    )


def check_table(checks: Iterable[Mapping[str, Any]]) -> Markup:
    """Build a table of checks."""
    rows = (
        (
            badge(one["status"]),
            element("code", one["id"]),
            format_value(one["value"], one["unit"]),
            one["threshold"],
            one["evidence"],
            one["source"],
        )
        for one in checks
    )
    head = ("Status", "Check", "Value", "Threshold", "Evidence", "Source")
    return table(head, rows, class_="checks", label="Checks")
