"""Build report.html; its layout is ``web/templates/burnin.html``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentinel.burnin.checks.measures import (
    MISSING,
    format_measure,
    format_seconds,
    format_time,
    format_value,
    title,
)
from sentinel.burnin.reports.moved import moved
from sentinel.burnin.reports.text import detection_power
from sentinel.web.document import html_document

#: The order of the checks, by their status.
_STATUSES = ("fail", "warn", "not tested", "pass", "n/a")


def html_page(report: Mapping[str, Any], plots: Mapping[str, Any]) -> str:
    """Build the page of a report.

    Args:
        report: The report as JSON values.
        plots: The values of each GPU's curves, by UUID; see :mod:`sentinel.burnin.reports.curves`.
    """
    return html_document(
        "burnin.html",
        scripts=("vendor/uPlot.iife.min.js", "dom.js", "curves.js", "burnin.js"),
        filters={
            "detection_power": detection_power,
            "figures": _figures,
            "limits": _limits,
            "measure": lambda value, name: format_measure(name, value),
            "measure_title": title,
            "moved": moved,
            "seconds": format_seconds,
            "time": format_time,
            "value": format_value,
            "worst_first": _worst_first,
        },
        report=report,
        plots=plots,
    )


def _worst_first(checks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort checks by their status."""
    return sorted(checks, key=lambda check: _STATUSES.index(check["status"]))


def _figures(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rate and the power of the first steady phase, and the highest temperature."""
    measured = gpu["measurements"]
    for name in ("flops_per_s", "power_w"):
        medians = (row["median"] for row in measured if row["steady"] and row["name"] == name)
        median = next(medians, None)
        yield MISSING if median is None else format_measure(name, median)
    heat = [row["highest"] for row in measured if row["name"] == "temperature_c"]
    yield format_measure("temperature_c", max(heat)) if heat else MISSING


def _limits(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List each check of the GPUs once, by its id, for its threshold and source."""
    checks = {check["id"]: check for gpu in report["gpus"] for check in gpu["checks"]}
    return [checks[name] for name in sorted(checks)]
