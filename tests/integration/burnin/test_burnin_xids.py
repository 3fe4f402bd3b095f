"""XIDs of simulated GPUs during a burn-in: what they are in its events and in its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import check_passed
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S
from tests.integration.burnin.test_burnin_command import PLAN, run_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


def xid_check(report: dict[str, Any]) -> dict[str, Any]:
    (gpu,) = report["gpus"]
    (check,) = [one for one in gpu["checks"] if one["id"] == "xid"]
    found: dict[str, Any] = check
    return found


@pytest.mark.parametrize("number", [79, 48])
def test_an_xid_during_a_run_fails_it(simulated: SimulatedHost, number: int) -> None:
    run = run_of(simulated)
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        simulated.registry.throw_xids(simulated.uuid(0), number)
        output, _ = process.communicate(timeout=3 * TIMEOUT_S)
        assert process.returncode == ExitCode.FAIL, output
    assert f"XID         {number}" in output
    (event,) = run.events("gpu.xid")
    assert (event["xid"], event["own"], event["gpu"]) == (number, False, simulated.uuid(0))
    check = xid_check(run.report())
    assert (check["status"], check["value"]) == ("fail", str(number))


def test_43_after_an_own_kill_fails_nothing(simulated: SimulatedHost) -> None:
    run = run_of(simulated, PLAN.replace("seconds = 2\nsteady", "seconds = 6\nsteady"))
    with run.started() as process:
        eventually(lambda: run.events("burnin.warm"))
        with simulated.job(0, stay=0.5) as job:
            assert job.got_memory()
            eventually(lambda: run.events("gpu.yielding"))
            simulated.registry.throw_xids(simulated.uuid(0), 43, 43, 43)
            job.wait_for_exit()
        output, _ = process.communicate(timeout=3 * TIMEOUT_S)
        assert process.returncode == ExitCode.OK, output
    report = run.report()
    check_passed(report)
    assert [event["own"] for event in run.events("gpu.xid")] == [True, True]
    assert [event["repeats"] for event in run.events("gpu.xid")] == [0, 2]
    check = xid_check(report)
    assert (check["status"], check["value"]) == ("pass", "43 (3 times)")
    assert "after Sentinel ended its stressor" in check["evidence"]


def test_a_run_without_xids_says_that_nvml_was_the_source(simulated: SimulatedHost) -> None:
    run = run_of(simulated)
    code, output = run.run()
    assert code == ExitCode.OK, output
    check = xid_check(run.report())
    assert (check["status"], check["value"]) == ("pass", "none")
    assert check["evidence"].startswith("NVML's events were the source")
