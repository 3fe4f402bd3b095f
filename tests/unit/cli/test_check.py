"""The summary of a check: what it says of checks that were not tested."""

from __future__ import annotations

from dataclasses import replace

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.node_report import judge_node
from sentinel.cli.tools.check import summary_lines
from tests.harness.check_evidence import HEALTHY


def test_a_call_that_failed_is_the_reason_and_not_an_idle_link() -> None:
    gone = ("fabric_state", "fabric_health")
    gpu = replace(
        HEALTHY,
        **dict.fromkeys(gone),  # type: ignore[arg-type]
        reasons=("gpu_idle",),
        failed=dict.fromkeys(gone, "NVML timed out"),
    )
    text = " ".join(summary_lines(judge_node([gpu], Thresholds()), colour=False, width=500))
    assert "not tested: 4 checks (" in text
    assert "could not be read: NVML timed out)" in text
    assert "idle" not in text
