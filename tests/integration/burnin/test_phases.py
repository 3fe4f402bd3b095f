"""Phases of the shipped levels with real torch on simulated GPUs: a held stripe, and pulses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sentinel.errors import ExitCode
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long

PLAN = """
spec = "sentinel-plan-v1"
name = "both"
[[phase]]
name = "retention"
workload = "memtest:patterns=zeros,retention=2"
passes = 1
[[phase]]
name = "pulse"
workload = "pulse:hz=1,sync=in-phase"
seconds = 2
[[phase]]
name = "pulse-fast"
workload = "pulse:hz=10,sync=out-of-phase"
seconds = 2
"""
FADING = """
spec = "sentinel-plan-v1"
name = "fading"
[[phase]]
name = "retention"
workload = "bad_workloads:tests_memory_that_loses_a_held_bit"
passes = 1
"""


def burn_in(host: SimulatedHost, plan: str, gpus: int) -> tuple[int, dict[str, Any]]:
    """Run a plan to its end; return the exit code and the report."""
    file, folder = host.folder / "plan.toml", host.folder / "report"
    file.write_text(plan)
    command = [sys.executable, "-m", "sentinel", "burnin", "--simulate", str(gpus)]
    options = ["--plan", str(file), "--report", str(folder), "--rearm", "200ms", "--poll", "200ms"]
    done = subprocess.run(
        [*command, *options],
        env=host.environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    report = folder / "report.json"
    assert report.exists(), done.stdout
    return done.returncode, json.loads(report.read_text())


def test_a_held_stripe_and_synchronised_pulses_are_done_to_the_end(
    simulated: SimulatedHost,
) -> None:
    code, report = burn_in(simulated, PLAN, gpus=2)
    assert code == ExitCode.OK, report
    assert len(report["gpus"]) == 2
    for gpu in report["gpus"]:
        assert all(phase["complete"] for phase in gpu["coverage"]), gpu["coverage"]
        assert all(phase["checks"] and not phase["errors"] for phase in gpu["coverage"])
        assert [phase["retained_share"] for phase in gpu["coverage"][1:]] == [None, None]
        retention = gpu["coverage"][0]
        assert retention["done_s"] > 1.0, "no progress was reported while the stripe was held"
        assert 0.05 < retention["retained_share"] <= 0.25


def test_a_bit_that_fades_in_a_held_stripe_fails_the_gpu(simulated: SimulatedHost) -> None:
    code, report = burn_in(simulated, FADING, gpus=1)
    assert code == ExitCode.FAIL, report
    (gpu,) = report["gpus"]
    assert {"results.wrong", "results.finding"} <= {
        one["id"] for one in gpu["checks"] if one["status"] == "fail"
    }
    (finding,) = gpu["findings"]
    assert (finding["place"], finding["first"][1], finding["bits"][17]) == ("memory", 3, 1)
    assert finding["detail"].startswith("pattern retention (random")
