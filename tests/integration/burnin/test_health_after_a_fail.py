"""What takes a FAIL back: burn-ins on simulated GPUs, and ``sentinel health`` after each."""

from __future__ import annotations

import signal
import sys

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import BurninRun, plan_of
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.programs import output_of, started_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: With less work, no run proves anything.
PROOF_S = 61
PASSED = ("--require", "warn", "--gpus", "0")


def burnin(host: SimulatedHost, name: str, seconds: int) -> BurninRun:
    """Prepare a burn-in of some seconds of products on two GPUs."""
    plan = plan_of(name, ("work", "gemm", f"seconds = {seconds}"))
    return BurninRun(host, plan, gpus=2, name=name)


def health(host: SimulatedHost, *words: str, code: int) -> str:
    """Run the command, which must have this exit code."""
    command = [sys.executable, "-m", "sentinel", "health", "--simulated", *words]
    with started_program(*command, env=host.environment(), cwd=ROOT) as process:
        return output_of(process, code)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_only_the_same_work_takes_a_fail_back_also_in_two_parts(simulated: SimulatedHost) -> None:
    counters = {"ecc_uncorrected_total": 1, "ecc_uncorrected_lifetime_total": 1}
    failed = burnin(simulated, "failed", PROOF_S + 1)
    with failed.started("--gpus", "0") as process:
        eventually(lambda: failed.events("stressor.ready"))
        simulated.registry.inject_figures(simulated.uuid(0), counters)
        eventually(lambda: failed.events("gpu.health_changed"))
        process.send_signal(signal.SIGINT)
        output_of(process, ExitCode.FAIL)
    counters["ecc_uncorrected_total"] = 0
    simulated.registry.inject_figures(simulated.uuid(0), counters)
    health(simulated, *PASSED, code=ExitCode.FAIL)

    burnin(simulated, "shorter", PROOF_S).run()
    assert "shorter" in health(simulated, *PASSED, code=ExitCode.FAIL)
    health(simulated, "--require", "warn", "--gpus", "1", code=ExitCode.OK)
    level = ("--level", "standard", "--max-age", "1s")
    health(simulated, *PASSED, *level, code=ExitCode.FAIL)

    same = burnin(simulated, "same", PROOF_S + 1)
    with same.started() as process:
        eventually(lambda: len(same.events("stressor.ready")) == 2)
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)
    health(simulated, *PASSED, code=ExitCode.FAIL)
    same.run(resume=True)
    health(simulated, *PASSED, code=ExitCode.OK)
