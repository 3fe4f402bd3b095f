"""The soak: a short one, and its command line; see test_growth.py for the verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import MEASURES, judge_recorded, parse
from tests.harness.benchmark_run import run_benchmark


@pytest.mark.long
def test_nothing_grows_in_a_short_soak(tmp_path: Path) -> None:
    flags = ("--cycles", "120", "--simulate", "6", "--every", "0.5")
    results, output = run_benchmark("soak", tmp_path, *flags)
    (summary,) = results.of("soak")
    assert summary["cycles"] >= 120
    assert summary["refused"] == 0
    assert summary["events"]["gpu.handed_over"] == summary["cycles"]
    # The speed of this machine is not judged.
    assert [one for one in summary["failed"] if not one.startswith("hand-over")] == [], output
    trends = {one.measure.name: one for one in judge_recorded(results)}
    assert trends.keys() == {*(one.name for one in MEASURES), "hand-over"}
    assert trends["hand-over"].samples > 90
    for name in ("supervisor: USS", "probe: USS", "spare: USS", "service: USS"):
        assert trends[name].first > 1000
    assert trends["log: bytes"].slope > 0
    assert all(f"| {name} |" in output for name in trends)


def test_a_real_gpu_has_ten_minutes_by_default() -> None:
    given = parse(["--real", "--gpus", "1", "2"])
    assert (given.simulate, given.seconds, given.gpus) == (0, 600.0, [1, 2])
    assert given.programs
    assert parse(["--real", "--seconds", "60"]).seconds == 60
    assert (parse([]).seconds, parse([]).programs) == (None, False)


@pytest.mark.long
def test_newcomers_may_be_programs_as_on_a_real_gpu(tmp_path: Path) -> None:
    flags = ("--programs", "--cycles", "3", "--simulate", "1", "--every", "0.5")
    results, output = run_benchmark("soak", tmp_path, *flags)
    (summary,) = results.of("soak")
    assert summary["cycles"] >= 3, output
    assert summary["latency_ms"]["p50"] > 0, output
