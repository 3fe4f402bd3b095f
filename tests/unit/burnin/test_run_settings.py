"""What a run records of its settings: what differs from the defaults, and from where."""

from __future__ import annotations

from pathlib import Path

from sentinel.burnin.reports.formats import FORMATS
from sentinel.burnin.reports.report import report_object
from sentinel.burnin.reports.text import text_lines
from sentinel.burnin.run_settings import recorded_settings
from sentinel.config.sources import from_flags, gather
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import judged
from tests.harness.report_formats import SCHEMA, closed, schema_problems


def test_only_what_differs_from_the_default_is_recorded_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('poll = "2s"\nrearm = "3s"\n[gpu.1]\nmemory.target = "50%"\n')
    flags = {"rearm": "7s", "memory.target": "88%"}
    sources = gather(from_flags(flags), {"SENTINEL_GRACE": "4s", "SENTINEL_TCP": "0.0.0.0:1"}, file)
    found = recorded_settings(sources)
    assert {(one["key"], one["value"], one["source"], one["gpu"]) for one in found} == {
        ("rearm", "7s", "--rearm", None),
        ("poll", "2s", f"{file}: poll", None),
        ("grace", "4s", "SENTINEL_GRACE", None),
        ("memory.target", "50%", f"{file}: gpu.1.memory.target", "1"),
    }
    assert recorded_settings(gather((), {}, None)) == []


def test_every_report_shows_the_settings(tmp_path: Path) -> None:
    run = ExampleRun(settings={"rearm": "7s", "memory/1": "<half>"}, resumed={"grace": "9s"})
    found = judged(run, tmp_path / "run")
    report = report_object(found)
    assert schema_problems(closed(SCHEMA), report) == []
    assert [one["key"] for one in report["run"]["settings"]] == ["rearm", "memory"]
    lines = list(text_lines(report))
    assert "setting rearm = 7s (--rearm)" in lines
    assert "setting memory of GPU 1 = <half> (--memory)" in lines
    assert any(line.startswith("resumed 2026") and "grace = 9s" in line for line in lines)
    page = FORMATS["html"](found, report)
    assert "<code>rearm</code>" in page
    assert "&lt;half&gt;" in page
    assert "Resumed at" in page
