"""The verdict of a GPU and of a node: a fault is final, and a PASS needs everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.record import PhaseRecord
from sentinel.burnin.report import judge_run
from sentinel.burnin.verdict import Verdict, judge_gpu, judge_node
from sentinel.config.plan import Plan
from sentinel.protocol.counters import Counters
from tests.harness.check_evidence import STEADY, Run
from tests.harness.example_run import ExampleRun

PLAN = Plan(name="test", phases=(STEADY,))
SCREEN = replace(PLAN, screen=True)
MISMATCH = {"event": "stressor.mismatch", "errors": 2, "checks": 10}
LOW_POWER = {"power_w": 300.0}


def verdict(run: Run, plan: Plan = PLAN, *, complete: bool = True) -> Verdict:
    evidence = run.evidence()
    if not complete:
        evidence.record.phases[-1].work = {"longest": 30.0, "seconds": 55.0}
    return judge_gpu(evidence.record, CHECKS.run(evidence, Thresholds()), plan).verdict


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (lambda: verdict(Run()), Verdict.PASS),
        (lambda: verdict(Run(events=(MISMATCH,))), Verdict.FAIL),
        (lambda: verdict(Run(events=(MISMATCH,)), complete=False), Verdict.FAIL),
        (lambda: verdict(Run(events=(MISMATCH,)), SCREEN), Verdict.FAIL),
        (lambda: verdict(Run(), complete=False), Verdict.INCOMPLETE),
        (lambda: verdict(Run(read=LOW_POWER), complete=False), Verdict.INCOMPLETE),
        (lambda: verdict(Run(read=LOW_POWER)), Verdict.WARN),
        (lambda: verdict(Run(), SCREEN), Verdict.NOT_APPLICABLE),
        (lambda: verdict(Run(checks=0)), Verdict.INCOMPLETE),
    ],
)
def test_a_fault_is_final_and_a_pass_needs_every_quota(
    found: Callable[[], Verdict], wanted: Verdict
) -> None:
    assert found() is wanted


@pytest.mark.parametrize("changes", [{"before": None}, {"after": None}, {"dropped": 3}])
def test_a_pass_needs_the_counters_and_every_event(changes: dict[str, Any]) -> None:
    record = Run().record()
    for name, value in changes.items():
        setattr(record, name, value)
    assert judge_gpu(record, [], PLAN).verdict is Verdict.INCOMPLETE


def test_an_optional_phase_is_not_missed() -> None:
    optional = replace(STEADY, mandatory=False)
    record = Run().record()
    record.phases[-1] = PhaseRecord(phase=optional)
    assert judge_gpu(record, [], Plan(name="test", phases=(optional,))).verdict is Verdict.PASS


def test_a_node_has_the_worst_verdict_and_an_empty_one_is_no_pass() -> None:
    passed = judge_gpu(Run().record(), [], PLAN)
    failed = replace(passed, verdict=Verdict.FAIL)
    assert judge_node([passed, failed]) is Verdict.FAIL
    assert judge_node([passed]) is Verdict.PASS
    assert judge_node([]) is Verdict.INCOMPLETE


@pytest.mark.parametrize(
    ("selected", "wanted"), [(False, Verdict.FAIL), (True, Verdict.PASS), (None, Verdict.PASS)]
)
def test_gpus_that_were_lost_before_the_run_fail_its_node(
    tmp_path: Path,
    selected: bool | None,  # noqa: FBT001 - pytest's
    wanted: Verdict,
) -> None:
    """The probe lists no lost GPUs, so that the run is one of the others."""
    folder = ExampleRun().write(tmp_path)
    found = json.loads(folder.counters.read_text())
    lost = asdict(Counters(uuid="", index=1, name="", at=0.0, lost="GPU is lost"))
    found["before"] += [lost, lost]
    if selected is not None:
        found["selected"] = selected
    folder.write(folder.counters, found)
    judged = judge_run(folder, Thresholds())
    assert judged.verdict is wanted
    assert [gpu.verdict for gpu in judged.gpus] == [Verdict.PASS, Verdict.PASS]
    assert ("node.inventory" in {one.id for one in judged.node}) == (selected is False)
