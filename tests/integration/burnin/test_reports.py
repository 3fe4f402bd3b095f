"""The reports of a real burn-in on a simulated GPU with wrong results, in every format."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.report_formats import (
    SCHEMA,
    closed,
    junit_suites,
    ocp_messages,
    schema_problems,
)
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = plan_of(
    "short",
    ("impossible", "bad_workloads:refuses_its_gpu", "seconds = 1"),
    ("right", CHECKED, "seconds = 2"),
    ("wrong", "bad_workloads:faulty", "seconds = 2"),
)


def sentinel(host: SimulatedHost, *arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", *arguments],
        env=host.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_real_run_has_a_report_in_each_format(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN)
    code, output = run.run("--fail-fast")
    assert code == ExitCode.FAIL, output
    code, text = sentinel(simulated, "report", "--json", str(run.folder))
    assert code == ExitCode.FAIL
    report = json.loads(text)
    assert schema_problems(closed(SCHEMA), report) == []
    (gpu,) = report["gpus"]
    assert gpu["findings"] or gpu["detection_power"]["errors"]
    gpu_suite, _ = junit_suites(report)
    assert gpu_suite.get("errors") == "1", "the phase whose workload cannot run"
    assert int(gpu_suite.get("failures", "")) >= 1
    end = ocp_messages(report)[-1]["testRunArtifact"]["testRunEnd"]
    assert end == {"status": "COMPLETE", "result": "FAIL"}
    code, page = sentinel(simulated, "report", "--html", str(run.folder))
    assert code == ExitCode.FAIL
    assert '<div class="drawing"' in page
    assert "results.wrong" in page
