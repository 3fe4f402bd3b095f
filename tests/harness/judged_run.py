"""An invented run, judged by the default thresholds, with its report as JSON values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.report import Judged, judge_run, report_object
from tests.harness.example_run import ExampleRun

#: One run for each verdict of a node.
RUNS = {
    "PASS": ExampleRun(),
    "WARN": ExampleRun(moved={1: {"ecc_corrected_total": 12}}),
    "FAIL": ExampleRun(wrong={1: 3}, interrupted={0: "python"}),
    "INCOMPLETE": ExampleRun(cut=frozenset({1})),
    "N/A": ExampleRun(screen=True),
}


def judged(run: ExampleRun, folder: Path) -> Judged:
    """Write the folder of a run, and judge it."""
    return judge_run(run.write(folder), Thresholds())


def report_of(run: ExampleRun, folder: Path) -> dict[str, Any]:
    """Write the folder of a run, and build its report; as a reader of its JSON gets it."""
    report: dict[str, Any] = json.loads(json.dumps(report_object(judged(run, folder))))
    return report
