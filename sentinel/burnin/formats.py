"""The formats of a report by name, the files of a run's folder, and report.html.

The layout of the page is ``web/templates/burnin.html``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sentinel.burnin.checks.measures import (
    MISSING,
    format_measure,
    format_seconds,
    format_time,
    format_value,
    title,
)
from sentinel.burnin.compare import moved
from sentinel.burnin.junit import junit_xml
from sentinel.burnin.ocp import ocp_lines
from sentinel.burnin.report import Judged, report_object
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.text import detection_power, text_lines
from sentinel.burnin.timeline import plot
from sentinel.burnin.verdict import verdict_summary
from sentinel.web.document import html_document

#: The order of the checks, by their status.
_STATUSES = ("fail", "warn", "not tested", "pass", "n/a")


def html_page(report: Mapping[str, Any], plots: Mapping[str, Any]) -> str:
    """Build the page of a report.

    Args:
        report: The report as JSON values.
        plots: The values of each GPU's curves, by UUID; see :mod:`sentinel.burnin.timeline`.
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


Report = Mapping[str, Any]


def _html(run: Judged, report: Report) -> str:
    return html_page(report, {gpu.record.uuid: plot(gpu.record, run.span) for gpu in run.gpus})


#: What builds each format of a judged run and its report; without a newline at the end.
FORMATS: Mapping[str, Callable[[Judged, Report], str]] = {
    "text": lambda _, report: "\n".join(text_lines(report)),
    "html": _html,
    "junit": lambda _, report: junit_xml(report),
    "ocp": lambda _, report: "\n".join(ocp_lines(report)),
    "json": lambda _, report: json.dumps(report, indent=1),
    "summary": lambda _, report: verdict_summary(report),
}

#: The file of each format in the folder of a run; report.json is the last, so that it is there only
#: if all others are.
FILES: Mapping[str, str] = {
    "text": "report.txt",
    "html": "report.html",
    "junit": "junit.xml",
    "ocp": "ocp.jsonl",
    "json": "report.json",
}


def write_reports(folder: RunFolder, run: Judged) -> Report:
    """Write the report of a run into its folder in every format, and return it as JSON values."""
    report = report_object(run)
    for name, file in FILES.items():
        folder.write(folder.path / file, FORMATS[name](run, report))
    return report
