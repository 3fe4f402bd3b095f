"""The benchmark of the fleet's report: a small fleet keeps its bars, and each figure is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.fleet_report import OPERATIONS
from tests.harness.browser import NEEDS_BROWSER
from tests.harness.example_fleet import node_report
from tests.harness.programs import run_program
from tests.harness.report_formats import ROOT
from tests.harness.timing import TIMEOUT_S

FORMATS = ("text", "json", "jsonl", "junit", "html")
pytestmark = NEEDS_BROWSER


def test_each_format_is_measured_and_the_page_is_operated(tmp_path: Path) -> None:
    template = tmp_path / "report.json"
    template.write_text(json.dumps(node_report(tmp_path)))
    command = [sys.executable, "-m", "benchmarks.fleet_report", "--nodes", "60"]
    done = run_program(*command, "--template", str(template), cwd=ROOT, timeout=4 * TIMEOUT_S)
    names = [line.partition(":")[0] for line in done.stdout.splitlines()[1:]]
    assert names == [*FORMATS, "judged wrongly", "open the page", *OPERATIONS]
    assert done.stdout.startswith("60 nodes of 8 GPUs")
    assert done.stdout.count("exit code 1") == 5  # the fleet has faults
    assert "judged wrongly: 0\n" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
