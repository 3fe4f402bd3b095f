"""The figures of docs/internals/benchmarks.md are those of the measured files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from benchmarks import load, load_table, memory_shapes, pace, random_jobs, soak, startup
from benchmarks.report import Report
from benchmarks.results import Results

MEASURED = Path(__file__).resolve().parents[3] / "benchmarks" / "measured"
DOCUMENT = MEASURED.parents[1] / "docs" / "internals/benchmarks.md"


@cache
def rendered(name: str) -> str:
    """Render a measured file with the program that wrote it."""
    results = Results(MEASURED / name)
    if "shapes" in name:
        return "\n".join(memory_shapes.table(results))
    if "soak" in name:
        return "\n".join(soak.table(soak.judge_recorded(results)))
    if "random-jobs" in name:
        return "\n".join(
            line for one in results.of("random jobs") for line in random_jobs.table(one)
        )
    return "\n".join(
        [
            Report(results).render(),
            *startup.table(results),
            load_table.LoadTable(results, [cell.name for cell in load.CELLS]).render(),
            pace.PaceTable(results).render(),
        ]
    )


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d.,]*\d|\d", text))


def raw_files(text: str) -> list[str]:
    return re.findall(r"\]\((?:\.\./)+benchmarks/measured/([\w-]+\.jsonl)\)", text)


def rows() -> list[tuple[str, str]]:
    """Collect the rows of tables, each with what names its raw files: itself or the line above."""
    found = []
    above = ""
    text, _, _ = DOCUMENT.read_text().partition("\n## Scale\n")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            found += [(line, line if raw_files(line) else above) for line in block.splitlines()[2:]]
        above = block
    return [(row, source) for row, source in found if raw_files(source)]


def test_each_figure_of_a_row_is_in_its_measured_file() -> None:
    assert len(rows()) > 50
    wrong = {
        row: missing
        for row, source in rows()
        if (missing := numbers(figures(row)) - numbers(text_of(source)))
    }
    assert not wrong


def figures(row: str) -> str:
    """Return a row without its name and without the cell that names the raw file."""
    return " ".join(cell for cell in row.split(" | ")[1:] if not raw_files(cell))


def text_of(source: str) -> str:
    return "\n".join(rendered(name) for name in raw_files(source))


def test_each_row_has_the_date_of_its_measured_file() -> None:
    for row, source in rows():
        records = [one for name in raw_files(source) for one in Results(MEASURED / name).records]
        dates = {one["date"] for one in records if "date" in one}
        assert dates <= set(re.findall(r"\d{4}-\d\d-\d\d", source)), row
