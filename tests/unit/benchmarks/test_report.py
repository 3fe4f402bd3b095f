"""The tables of docs/benchmarks.md are those of the measured files."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from benchmarks import memory_shapes, random_jobs, soak, startup
from benchmarks.report import Report
from benchmarks.results import Results

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "benchmarks" / "measured"
#: The measurements of benchmarks.startup, benchmarks.soak and benchmarks.memory_shapes.
STARTUP = ("h200-startup.jsonl", "h200-startup-2.jsonl")
SOAK = ("simulated-soak.jsonl", "h200-soak.jsonl")
SHAPES = ("h200-shapes.jsonl", "h200-shapes-after.jsonl")
#: Files that other programs render: benchmarks.thermal, which plots them, and those below.
NOT_REPORTED = {
    "h200-heat.jsonl",
    "simulated-random-jobs.jsonl",
    "scrape-tree.jsonl",
    *STARTUP,
    *SOAK,
    *SHAPES,
}


def rendered_lines() -> set[str]:
    paths = [path for path in MEASURED.glob("*.jsonl") if path.name not in NOT_REPORTED]
    lines = {line for path in paths for line in Report(Results(path)).render().splitlines()}
    for name in STARTUP:
        lines |= set(startup.table(Results(MEASURED / name)))
    for name in SOAK:
        lines |= set(soak.table(soak.judge_recorded(Results(MEASURED / name))))
    for name in SHAPES:
        lines |= set(memory_shapes.table(Results(MEASURED / name)))
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
