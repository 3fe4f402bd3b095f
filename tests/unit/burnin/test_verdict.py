"""The verdict of a GPU and of a node, and its summary: a fault is final, and never hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.evidence import ParticipationEvidence
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.burnin.report import judge_run
from sentinel.burnin.verdict import (
    MAX_BYTES,
    MIN_CHECKED_S,
    Verdict,
    judge_gpu,
    judge_node,
    verdict_summary,
)
from sentinel.config.plan import Plan
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.counters import Counters
from tests.harness import check_evidence
from tests.harness.check_evidence import HEALTHY, STEADY
from tests.harness.example_run import RUNS, ExampleRun, report_of
from tests.harness.parameters import mostly_long

PLAN = Plan(name="test", phases=(STEADY,))
SCREEN = replace(PLAN, screen=True)
MISMATCH = {"event": "stressor.mismatch", "errors": 2, "checks": 10}
LOW_POWER = {"power_w": 300.0}


class Run(check_evidence.Run):
    """A run whose counters were read before its first phase."""

    def record(self, index: int = 0) -> GpuRecord:
        found = super().record(index)
        assert found.before is not None
        found.before = replace(found.before, at=-10.0)
        return found


class Short(Run):
    """A run that is complete, and whose results were checked for less than a PASS needs."""

    def record(self, index: int = 0) -> GpuRecord:
        found = super().record(index)
        for phase in found.phases:
            if phase.phase.checked:
                seconds = (MIN_CHECKED_S - 1) / len(found.phases)
                phase.phase = replace(phase.phase, seconds=min(phase.phase.seconds, seconds))
                phase.work = replace(phase.work, seconds=seconds, longest=seconds)
        return found


SHORT = Short()


class Unverified(Run):
    """A run of a site's own workload, which says that it has checked its results."""

    def record(self, index: int = 0) -> GpuRecord:
        found = super().record(index)
        for phase in found.phases:
            phase.phase = replace(phase.phase, workload="site.checks:run")
        return found


def verdict(run: Run, plan: Plan = PLAN, *, complete: bool = True) -> Verdict:
    evidence = run.evidence()
    if not complete:
        evidence.record.phases[-1].work = PhaseWork(longest=30.0, seconds=55.0)
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
        (lambda: verdict(SHORT), Verdict.NOT_APPLICABLE),
        (lambda: verdict(replace(SHORT, read=LOW_POWER)), Verdict.WARN),
        (lambda: verdict(replace(SHORT, events=(MISMATCH,))), Verdict.FAIL),
        (lambda: verdict(Run(checks=0)), Verdict.INCOMPLETE),
        (lambda: verdict(Unverified()), Verdict.NOT_APPLICABLE),
    ],
)
def test_a_fault_is_final_and_a_pass_needs_every_quota(
    found: Callable[[], Verdict], wanted: Verdict
) -> None:
    assert found() is wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"before": None},
        {"after": None},
        {"before": HEALTHY.unread("no permission")},
        {"after": HEALTHY.unread("the driver failed before all was read")},
        {"dropped": 3},
    ],
)
def test_a_pass_needs_the_counters_and_every_event(changes: dict[str, Any]) -> None:
    record = Run().record()
    for name, value in changes.items():
        setattr(record, name, value)
    assert judge_gpu(record, [], PLAN).verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(
    ("work", "ended", "wanted"),
    [
        ({"given_up": "this GPU cannot run it"}, None, Verdict.PASS),
        ({"longest": 3.0, "seconds": 3.0}, "cancelled by anna", Verdict.INCOMPLETE),
        ({}, "SIGTERM", Verdict.INCOMPLETE),
        ({}, "", Verdict.INCOMPLETE),
    ],
)
def test_an_optional_phase_is_missed_only_if_the_run_was_cut_short(
    work: dict[str, Any], ended: str | None, wanted: Verdict
) -> None:
    optional = replace(STEADY, mandatory=False)
    record = Run(ended=ended).record()
    record.phases[-1] = PhaseRecord(phase=optional, work=PhaseWork(checks=1, **work))
    record.phases[0].work = replace(record.phases[0].work, seconds=MIN_CHECKED_S)
    warned = CHECKS.run(Run(read=LOW_POWER).evidence(), Thresholds())
    judged = judge_gpu(record, warned if ended is not None else [], PLAN)
    assert judged.verdict is wanted
    assert (record.cut_short is None) == (wanted is Verdict.PASS)
    if record.cut_short is not None:
        assert "not complete" in judged.reasons[0], "why it is INCOMPLETE is first"


@pytest.mark.parametrize(
    ("run", "plan", "why"),
    [
        (Run(), PLAN, None),
        (Run(), SCREEN, "a screen is too short for a PASS"),
        (
            SHORT,
            PLAN,
            "44.2 s of work with checked results of built-in workloads; a PASS needs 1 min",
        ),
    ],
)
def test_a_run_that_is_too_short_says_why(run: Run, plan: Plan, why: str | None) -> None:
    found = judge_gpu(run.record(), [], plan)
    assert (found.too_short or "").startswith(why or "")
    assert (found.too_short is None) == (why is None)
    assert found.reasons == (() if found.too_short is None else (found.too_short,))


def test_a_node_has_the_worst_verdict_and_an_empty_one_is_no_pass() -> None:
    passed = judge_gpu(Run().record(), [], PLAN)
    failed = replace(passed, verdict=Verdict.FAIL)
    assert judge_node([passed, failed]) is Verdict.FAIL
    assert judge_node([passed]) is Verdict.PASS
    assert judge_node([]) is Verdict.INCOMPLETE
    (held,) = CHECKS.run(ParticipationEvidence(listed=(), tested=(), selected=None), Thresholds())
    assert judge_node([passed], [held]) is Verdict.PASS, "an early record does not say it"
    assert judge_node([passed], [replace(held, value=1)]) is Verdict.INCOMPLETE


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


@pytest.mark.parametrize(("expected", "wanted"), [("2", Verdict.PASS), ("3", Verdict.FAIL)])
def test_fewer_gpus_than_expected_fail_the_node_and_the_missing_one_is_named(
    tmp_path: Path, expected: str, wanted: Verdict
) -> None:
    folder = ExampleRun(settings={"expect-gpus": expected}).write(tmp_path)
    found = json.loads(folder.counters.read_text())
    known = {gpu["uuid"]: "here" for gpu in found["before"]} | {"GPU-3": "GPU 2 GPU-3, serial 7"}
    folder.write(folder.counters, found | {"known": known})
    judged = judge_run(folder, Thresholds())
    assert judged.verdict is wanted
    (one,) = (one for one in judged.node if one.id == "node.gpus")
    assert (wanted is Verdict.FAIL) == one.evidence.endswith("known from before: " + known["GPU-3"])


@pytest.mark.parametrize("verdict", RUNS)
def test_it_has_the_verdict_of_the_node_and_of_each_gpu(verdict: str, tmp_path: Path) -> None:
    report = report_of(RUNS[verdict], tmp_path / "run")
    found = json.loads(verdict_summary(report))
    assert (found["verdict"], found["node"]) == (verdict, report["node"]["hostname"])
    assert {gpu["uuid"]: gpu["verdict"] for gpu in found["gpus"]} == {
        gpu["uuid"]: gpu["verdict"] for gpu in report["gpus"]
    }
    whole_of = {gpu["uuid"]: gpu for gpu in report["gpus"]}
    for gpu in found["gpus"]:
        whole = whole_of[gpu["uuid"]]
        assert gpu.get("reasons", 0) == len(whole["reasons"])
        assert gpu.get("reason", "") == "".join(whole["reasons"][:1])[:200]


def test_a_fault_of_the_node_alone_is_in_its_summary(tmp_path: Path) -> None:
    report = report_of(ExampleRun(settings={"expect-gpus": "3"}), tmp_path / "run")
    found = json.loads(verdict_summary(report))
    assert (found["verdict"], found["summary"]) == ("FAIL", {"PASS": 2})
    assert found["meaning"] == report["meaning"][:197] + "..."
    assert "2 of 3 are there" in found["meaning"]


def _with_gpus(report: dict[str, Any], verdicts: list[str], reason: str) -> dict[str, Any]:
    template = report["gpus"][0]
    gpus = [
        {
            **template,
            "index": index,
            "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
            "verdict": verdict,
            "reasons": [] if verdict == "PASS" else [reason],
        }
        for index, verdict in enumerate(verdicts)
    ]
    summary = {name: verdicts.count(name) for name in report["summary"]}
    return {**report, "gpus": gpus, "summary": summary, "verdict": "FAIL"}


@mostly_long("reason", ["short", "wörter " * 500, "\x00\n" * 300])
@pytest.mark.parametrize("count", [1, 8, 16, 1000])
def test_it_fits_whatever_there_is(tmp_path: Path, count: int, reason: str) -> None:
    verdicts = ["PASS", "INCOMPLETE", "FAIL", "PASS"] * count
    report = _with_gpus(report_of(RUNS["FAIL"], tmp_path / "run"), verdicts, reason)
    text = verdict_summary(report)
    assert len(text.encode()) <= MAX_BYTES
    found = json.loads(text)
    assert found["summary"]["FAIL"] == count
    assert len(found["gpus"]) + found["gpus_left_out"] == len(verdicts)
    shown = [gpu["verdict"] for gpu in found["gpus"]]
    assert shown.count("FAIL") == min(count, len(shown)), "a fault is the last that is left out"
    if count <= 8:
        assert shown.count("INCOMPLETE") == count
