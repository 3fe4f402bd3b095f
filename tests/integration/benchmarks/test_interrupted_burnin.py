"""The benchmark of a burn-in beside jobs, on simulated GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness.burnin_run import plan_of
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

pytestmark = pytest.mark.long


def test_a_newcomer_comes_in_each_named_phase_and_the_verdicts_are_recorded(tmp_path: Path) -> None:
    results, plan = tmp_path / "results.jsonl", tmp_path / "plan.toml"
    lengths = {"one": 2, "two": 10}  # on a busy host a newcomer comes late
    phases = [(name, "hold", f"seconds = {s}", "checked = false") for name, s in lengths.items()]
    plan.write_text(plan_of("two", *phases))
    given = ("--plan", str(plan), "--phases", "two", "--results", str(results))
    command = (sys.executable, "-m", "benchmarks.interrupted_burnin", "--simulate", "2")
    done = run_program(*command, *given, cwd=ROOT)
    assert done.returncode in {0, 1}, done.stderr
    machine, *newcomers, burnin = map(json.loads, results.read_text().splitlines())
    newcomer = newcomers[-1]
    assert machine["simulated"]
    assert (newcomer["phase"], newcomer["stressor"]) == ("two", "RUNNING")
    assert all(one["got"] for one in newcomers) == (done.returncode == 0), done.stderr
    assert burnin["no newcomer in"] == []
    first, other = (gpu["interruptions"] for gpu in burnin["gpus"])
    assert (first >= 1, other) == (True, 0)
    assert all(gpu["phases"] == gpu["of"] == 2 for gpu in burnin["gpus"])
