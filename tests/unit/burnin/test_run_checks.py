"""The checks of a burn-in's node: GPUs without a verdict are no PASS."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.run_checks import CHECKS, RunEvidence
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.reports.report import judge_run
from sentinel.burnin.reports.verdict import Verdict
from sentinel.protocol.counters import Counters
from tests.harness.example_run import ExampleRun

TESTED = Counters(uuid="GPU-a", index=0, name="NVIDIA H200", at=0.0)
#: As a GPU is listed that fell off the bus: it does not say which it is.
LOST = Counters(uuid="", index=1, name="", at=0.0, lost="GPU is lost")
UNUSED = Counters(uuid="GPU-c", index=2, name="NVIDIA H200", at=0.0)


@pytest.mark.parametrize(
    ("listed", "selected", "status", "value"),
    [
        ((TESTED,), False, Status.PASS, 0),
        ((TESTED, LOST), False, Status.FAIL, 1),
        ((TESTED, LOST, LOST, UNUSED), False, Status.FAIL, 2),
        ((TESTED, UNUSED), False, Status.WARN, 1),
        ((TESTED, LOST, UNUSED), True, Status.NOT_APPLICABLE, None),
        ((TESTED, LOST, UNUSED), None, Status.NOT_TESTED, None),
    ],
)
def test_a_gpu_that_is_not_in_the_run_has_no_pass(
    listed: tuple[Counters, ...],
    selected: bool | None,  # noqa: FBT001 - pytest's
    status: Status,
    value: int | None,
) -> None:
    (check,) = CHECKS
    evidence = RunEvidence(listed=listed, tested={"GPU-a"}, selected=selected)
    found = check.run(evidence, Thresholds())
    assert (found.status, found.value) == (status, value)


@pytest.mark.parametrize(
    ("selected", "verdict"), [(False, Verdict.FAIL), (True, Verdict.PASS), (None, Verdict.PASS)]
)
def test_gpus_that_were_lost_before_the_run_fail_its_node(
    tmp_path: Path,
    selected: bool | None,  # noqa: FBT001 - pytest's
    verdict: Verdict,
) -> None:
    """The probe lists no lost GPUs, so that the run is one of the others."""
    folder = ExampleRun().write(tmp_path)
    found = json.loads(folder.counters.read_text())
    found["before"] += [asdict(LOST), asdict(LOST)]
    if selected is not None:
        found["selected"] = selected
    folder.write(folder.counters, found)
    judged = judge_run(folder, Thresholds())
    assert judged.verdict is verdict
    assert [gpu.verdict for gpu in judged.gpus] == [Verdict.PASS, Verdict.PASS]
    assert ("node.inventory" in {one.id for one in judged.node}) == (selected is False)
