"""The tables of docs/benchmarks.md are those of the measured files."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from benchmarks import random_jobs, soak, startup
from benchmarks.report import Report
from benchmarks.results import Results

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "benchmarks" / "measured"
#: Files that other programs render: benchmarks.thermal, which plots them, and those below.
NOT_REPORTED = {"h200-heat.jsonl", "simulated-soak.jsonl", "simulated-random-jobs.jsonl"}
#: The measurements of benchmarks.startup.
STARTUP = "h200-startup.jsonl"


def rendered_lines() -> set[str]:
    paths = [path for path in MEASURED.glob("*.jsonl") if path.name not in NOT_REPORTED]
    lines = {line for path in paths for line in Report(Results(path)).render().splitlines()}
    lines |= set(startup.table(Results(MEASURED / STARTUP)))
    lines |= set(soak.table(soak.judge_recorded(Results(MEASURED / "simulated-soak.jsonl"))))
    for record in Results(MEASURED / "simulated-random-jobs.jsonl").of("random jobs"):
        lines |= set(random_jobs.table(record))
    return lines


def tables(text: str) -> list[list[str]]:
    """Split a document into its tables, each a list of lines."""
    lines = iter(text.splitlines())
    return [
        [line, *takewhile(lambda one: one.startswith("|"), lines)]
        for line in lines
        if line.startswith("|")
    ]


def test_each_row_of_the_document_is_rendered_from_a_measured_file() -> None:
    rendered = rendered_lines()
    document = (ROOT / "docs" / "benchmarks.md").read_text()
    ours = [table for table in tables(document) if table[0] in rendered]
    assert len(ours) > 20
    assert [row for table in ours for row in table if row not in rendered] == []
