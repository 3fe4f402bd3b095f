"""The formats of a report by name, and the files of a run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.burnin.records.run_folder import RunFolder
from sentinel.burnin.reports.curves import plot
from sentinel.burnin.reports.html_page import html_page
from sentinel.burnin.reports.junit import junit_xml
from sentinel.burnin.reports.ocp import ocp_lines
from sentinel.burnin.reports.report import Judged, report_object
from sentinel.burnin.reports.text import text_lines
from sentinel.burnin.reports.verdict import verdict_summary

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
