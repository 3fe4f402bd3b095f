"""The long runs in their short form: real daemons on simulated GPUs, and every verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_jobs import FIRST_BYTES
from benchmarks.results import Results
from benchmarks.soak import MEASURES, judge_recorded, parse
from sentinel.host.simulation import Registry
from tests.harness.gpu_environment import ROOT
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: No newcomer gives up on a machine that freezes for a while.
PATIENT = ("--limit", str(TIMEOUT_S))


def run(program: str, folder: Path, *flags: str) -> tuple[Results, str]:
    """Run a benchmark in its short form; return its results and its output."""
    file = folder / "results.jsonl"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SENTINEL_")}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", "--results", str(file), *PATIENT, *flags],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * TIMEOUT_S,
        check=False,
    )
    assert file.exists(), done.stdout
    return Results(file), done.stdout


@pytest.mark.long
def test_nothing_grows_in_a_short_soak(tmp_path: Path) -> None:
    flags = ("--cycles", "150", "--simulate", "6", "--every", "0.5")
    results, output = run("soak", tmp_path, *flags)
    (summary,) = results.of("soak")
    assert summary["cycles"] == 150
    assert summary["refused"] == 0
    assert summary["events"]["gpu.handed_over"] == 150
    # The speed of this machine is not judged.
    assert [one for one in summary["failed"] if not one.startswith("hand-over")] == [], output
    trends = {one.measure.name: one for one in judge_recorded(results)}
    assert trends.keys() == {*(one.name for one in MEASURES), "hand-over"}
    assert trends["hand-over"].samples > 100
    for name in ("supervisor: USS", "probe: USS", "spare: USS", "service: USS"):
        assert trends[name].first > 1000
    assert trends["log: bytes"].slope > 0
    assert all(f"| {name} |" in output for name in trends)


@pytest.mark.long
def test_random_jobs_under_hostile_clients_break_no_invariant(tmp_path: Path) -> None:
    flags = ("--simulate", "6", "--jobs", "20", "--seconds", "20", "--clients", "200")
    results, output = run("random_jobs", tmp_path, *flags)
    (record,) = results.of("random jobs")
    assert record["failed"] == [], output
    assert record["jobs"] == 20
    assert record["refused"] == 0
    assert record["handovers"] > 0
    assert record["token_answers"] > 0
    assert 0.9 < record["fullest"] <= 1
    answers = record["clients_answers"]
    for kind in ("malformed: 400", "too large: 431", "wrong token: 401", "half a head: closed"):
        assert answers.get(kind), (kind, answers)


def test_a_real_gpu_has_ten_minutes_by_default() -> None:
    given = parse(["--real", "--gpus", "1", "2"])
    assert (given.simulate, given.seconds, given.gpus) == (0, 600.0, [1, 2])
    assert given.programs
    assert parse(["--real", "--seconds", "60"]).seconds == 60
    assert (parse([]).seconds, parse([]).programs) == (None, False)


@pytest.mark.long
def test_newcomers_may_be_programs_as_on_a_real_gpu(tmp_path: Path) -> None:
    flags = ("--programs", "--cycles", "3", "--simulate", "1", "--every", "0.5")
    results, output = run("soak", tmp_path, *flags)
    (summary,) = results.of("soak")
    assert summary["cycles"] == 3, output
    assert summary["latency_ms"]["p50"] > 0, output


# --- foreign jobs ----------------------------------------------------------------------------


def start_jobs(folder: Path, limit_s: float) -> subprocess.Popen[str]:
    command = ["benchmarks.foreign_jobs", "--simulation", str(folder), "--limit", str(limit_s)]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert next_line(process)["ready"]
    return process


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def order(process: subprocess.Popen[str], gpus: Sequence[str], end: str, size: int) -> None:
    assert process.stdin is not None
    job = {"job": 1, "gpus": gpus, "size": size, "stay": 0.1, "end": end}
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("exit", ["began", "got", "left"]),
        ("crash", ["began", "got", "left"]),
        ("fork", ["began", "got", "left", "ended"]),
    ],
)
def test_a_foreign_job_waits_for_its_memory_and_ends_as_ordered(
    tmp_path: Path, end: str, lines: list[str]
) -> None:
    registry = Registry.create(tmp_path, 2)
    gpus = [gpu.uuid for gpu in registry.gpus()]
    holder = registry.attach(gpus[1])
    assert holder.allocate(registry.memory(gpus[1]).total - FIRST_BYTES)
    with start_jobs(tmp_path, TIMEOUT_S) as process:
        try:
            order(process, gpus, end, registry.memory(gpus[1]).total)
            began = next_line(process)
            assert registry.memory(gpus[0]).used == FIRST_BYTES
            given_at = time.monotonic()
            holder.close()
            got = next_line(process)
            assert got["got"]
            assert got["wait_s"] >= given_at - began["at"]
            rest = [next_line(process) for _ in lines[2:]]
            assert [began["event"], got["event"], *(line["event"] for line in rest)] == lines
            assert rest[-1].get("got", True)
            eventually(lambda: not any(registry.memory(gpu).used for gpu in gpus))
        finally:
            process.kill()


def test_a_foreign_job_is_refused_once_its_time_is_over(tmp_path: Path) -> None:
    registry = Registry.create(tmp_path, 1)
    (gpu,) = (gpu.uuid for gpu in registry.gpus())
    holder = registry.attach(gpu)
    assert holder.allocate(2**30)
    with start_jobs(tmp_path, 0.05) as process:
        try:
            order(process, [gpu], "exit", registry.memory(gpu).total)
            assert [next_line(process)["event"], next_line(process)["got"]] == ["began", False]
        finally:
            process.kill()
    holder.close()
