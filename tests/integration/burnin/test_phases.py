"""Phases of the shipped levels with real torch on simulated GPUs: a held stripe, and pulses."""

from __future__ import annotations

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import BurninRun, plan_of
from tests.harness.gpu_environment import SimulatedHost

pytestmark = pytest.mark.long

PLAN = plan_of(
    "both",
    ("retention", "memtest:patterns=zeros,retention=2", "passes = 1"),
    ("pulse", "pulse:hz=1,sync=in-phase", "seconds = 2"),
    ("pulse-fast", "pulse:hz=10,sync=out-of-phase", "seconds = 2"),
)
FADING = plan_of(
    "fading", ("retention", "bad_workloads:tests_memory_that_loses_a_held_bit", "passes = 1")
)


def test_a_held_stripe_and_synchronised_pulses_are_done_to_the_end(
    simulated: SimulatedHost,
) -> None:
    run = BurninRun(simulated, PLAN, gpus=2)
    code, output = run.run()
    assert code == ExitCode.OK, output
    report = run.report()
    assert len(report["gpus"]) == 2
    for gpu in report["gpus"]:
        assert all(phase["complete"] for phase in gpu["coverage"]), gpu["coverage"]
        assert all(phase["checks"] and not phase["errors"] for phase in gpu["coverage"])
        assert [phase["retained_share"] for phase in gpu["coverage"][1:]] == [None, None]
        retention = gpu["coverage"][0]
        assert retention["done_s"] > 1.0, "no progress was reported while the stripe was held"
        assert 0.05 < retention["retained_share"] <= 0.25


def test_a_bit_that_fades_in_a_held_stripe_fails_the_gpu(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, FADING)
    code, output = run.run()
    assert code == ExitCode.FAIL, output
    (gpu,) = run.report()["gpus"]
    assert {"results.wrong", "results.finding"} <= {
        one["id"] for one in gpu["checks"] if one["status"] == "fail"
    }
    (finding,) = gpu["findings"]
    assert (finding["place"], finding["first"][1], finding["bits"][17]) == ("memory", 3, 1)
    assert finding["detail"].startswith("pattern retention (random")
