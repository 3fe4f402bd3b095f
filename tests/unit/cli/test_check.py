"""The summary of a check, and the expectation that the host has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.node_report import judge_node
from sentinel.cli.options import setting_options
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


def test_an_expectation_of_the_host_that_cannot_be_looked_for_is_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in a folder that this user may not search; here the name is too long."""
    monkeypatch.delenv("SENTINEL_EXPECT", raising=False)
    monkeypatch.setattr(setting_options, "HOSTS_EXPECTATION", tmp_path / ("x" * 300) / "node.toml")
    with pytest.raises(click.UsageError, match="what this node must be"):
        setting_options.load_expectation(None, 8, is_here=True)
    monkeypatch.setattr(setting_options, "HOSTS_EXPECTATION", tmp_path / "none" / "node.toml")
    assert setting_options.load_expectation(None, 8, is_here=True).gpus == 8
