"""The last verdict of each GPU: a FAIL stands until the same checks have passed with like work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from os import utime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.levels import LEVELS, find_plan
from sentinel.burnin.run_folder import plan_object
from sentinel.host.last_verdicts import (
    LastVerdict,
    kind_of_work,
    lacking,
    last_verdicts,
    report_paths,
    work_of,
)
from tests.harness.narrowing import not_none

ONE = "GPU-one"
STARTED = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)


def phase(workload: str, seconds: float = 0.0, passes: int = 0, **more: Any) -> dict[str, Any]:
    """Build what a report says of a phase that is done."""
    found = {
        "workload": workload,
        "mandatory": True,
        "complete": True,
        "done_s": seconds,
        "quota_s": seconds,
        "passes": passes,
        "quota_passes": passes,
        "errors": 0,
        "not_tested": None,
    }
    return found | more


GEMM, MEMTEST = phase("gemm", 600.0), phase("memtest:retention=30", 90.0, 3)
FP8 = phase("gemm:dtype=fp8", 9.0, mandatory=False)


class Reports:
    """Reports of one GPU, each an hour after the one before.

    Args:
        state: The state folder.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.count = 0

    def add(
        self,
        verdict: str,
        phases: tuple[dict[str, Any], ...] = (GEMM, MEMTEST),
        checks: Mapping[str, str] | None = None,
        *,
        screen: bool = False,
        age: int | None = None,
        node: str | None = None,
        limits: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Write one report.

        Args:
            verdict: Of the GPU.
            phases: What was asked for and done.
            checks: The statuses of checks by id; all others pass.
            screen: Whether the plan is a screen.
            age: Since what hour it runs; None for the next.
            node: A check of the node that failed.
            limits: The replaced limits.
            more: Other values of the GPU.
        """
        self.count += 1
        began = STARTED + timedelta(hours=self.count if age is None else age)
        statuses = {"xid": "pass", "results.wrong": "pass", "rate.peers": "n/a", **(checks or {})}
        plan = [
            {"workload": p["workload"], "seconds": p["quota_s"], "passes": p["quota_passes"]}
            for p in phases
        ]
        run = {
            "id": f"run-{self.count}",
            "plan": {"name": f"plan-{self.count}", "screen": screen, "phases": plan},
            "started": began.isoformat(),
            "ended": (began + timedelta(minutes=30)).isoformat(),
        }
        gpu = {
            "uuid": ONE,
            "index": 0,
            "model": "NVIDIA H200",
            "verdict": verdict,
            "incomplete": [],
            "too_short": None,
            "coverage": list(phases),
            "checks": [{"id": name, "status": status} for name, status in statuses.items()],
        }
        of_node = [] if node is None else [{"id": node, "status": "fail"}]
        path = self.state / "runs" / f"run-{self.count}" / "report.json"
        path.parent.mkdir(parents=True)
        report = {"run": run, "gpus": [gpu | more], "checks": of_node}
        path.write_text(json.dumps(report | {"thresholds_overridden": limits or {}}))
        utime(path, (self.count, self.count))

    def last(self, level: str | None = None) -> LastVerdict | None:
        """Return what is known of the GPU."""
        least = None if level is None else work_of(plan_object(find_plan(level))["phases"])
        return last_verdicts(report_paths(self.state), least).get(ONE)

    @property
    def verdict(self) -> str | None:
        """The last verdict."""
        last = self.last()
        return None if last is None else last.verdict


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(tmp_path)


XID = {"xid": "fail"}
HALF = phase("gemm", 300.0)


@pytest.mark.parametrize(
    ("failed", "later", "why"),
    [
        # The same again, or more.
        ((GEMM, MEMTEST), (GEMM, MEMTEST), None),
        ((GEMM,), (GEMM, MEMTEST), None),
        ((GEMM,), (HALF, {**HALF, "workload": "gemm"}), None),
        ((GEMM, MEMTEST), (GEMM, phase("memtest:retention=120", 90.0, 3)), None),
        # What the GPU cannot do is no part of the proof.
        ((GEMM, {**FP8, "complete": False, "not_tested": "no fp8"}), (GEMM,), None),
        # Less: in seconds, in passes, in kinds; or planned and not done.
        ((GEMM,), (HALF,), "10 min of gemm, not 5 min"),
        ((GEMM,), (MEMTEST,), "10 min of gemm, not 0 s"),
        ((GEMM, MEMTEST), (GEMM, {**MEMTEST, "passes": 2}), "3 passes of memtest, not 2"),
        ((GEMM, FP8), (GEMM, phase("gemm:dtype=fp16", 9.0)), "9 s of gemm:dtype=fp8"),
        ((GEMM, FP8), (GEMM, {**FP8, "complete": False, "done_s": 0.0}), "9 s of gemm:dtype=fp8"),
    ],
)
def test_a_fail_is_taken_back_by_at_least_the_same_work(
    reports: Reports,
    failed: tuple[dict[str, Any], ...],
    later: tuple[dict[str, Any], ...],
    why: str | None,
) -> None:
    reports.add("FAIL", failed, XID)
    reports.add("PASS", later)
    last = not_none(reports.last())
    assert last.verdict == ("PASS" if why is None else "FAIL")
    assert (last.not_taken_back is None) == (why is None)
    assert (why or "") in (last.not_taken_back or "")
    if why is not None:
        reports.add("WARN", failed)
        assert reports.verdict == "WARN"


@pytest.mark.parametrize(
    ("check", "phases", "later", "wanted"),
    [
        # Wrong results need the work that gave them; a rate needs products, and links need links.
        ("results.wrong", ({**GEMM, "errors": 3}, MEMTEST), (GEMM,), "PASS"),
        ("results.wrong", (GEMM, {**MEMTEST, "errors": 3}), (GEMM,), "FAIL"),
        ("rate.peers", (GEMM, MEMTEST), (GEMM,), "PASS"),
        ("rate.peers", (GEMM, MEMTEST), (MEMTEST,), "FAIL"),
        ("links.peer", (GEMM, phase("links", 15.0)), (phase("links", 60.0),), "PASS"),
        ("memory.covered", (GEMM, MEMTEST), (MEMTEST,), "PASS"),
        # Any other check needs the whole plan.
        ("site.own", (GEMM, MEMTEST), (GEMM,), "FAIL"),
    ],
)
def test_a_check_needs_its_own_kind_of_work(
    reports: Reports,
    check: str,
    phases: tuple[dict[str, Any], ...],
    later: tuple[dict[str, Any], ...],
    wanted: str,
) -> None:
    reports.add("FAIL", phases, {check: "fail"})
    reports.add("PASS", later, {check: "pass"})
    assert reports.verdict == wanted


@pytest.mark.parametrize(
    ("failed", "later", "wanted"),
    [
        ({}, {"rate.peers.fail": "< 0.5"}, "FAIL"),
        ({"rate.peers.fail": "< 0.9"}, {}, "FAIL"),
        ({"rate.peers.fail": "< 0.9"}, {"rate.peers.fail": "< 0.5"}, "FAIL"),
        ({"rate.peers.fail": "< 0.9"}, {"rate.peers.fail": "< 0.9"}, "PASS"),
        ({}, {"links.peer.fail": "< 0.5", "rate.peers_of.fail": "< 0.5"}, "PASS"),
    ],
)
def test_other_limits_of_the_check_take_nothing_back(
    reports: Reports, failed: Mapping[str, str], later: Mapping[str, str], wanted: str
) -> None:
    reports.add("FAIL", checks={"rate.peers": "fail"}, limits=failed)
    reports.add("PASS", checks={"rate.peers": "pass"}, limits=later)
    last = not_none(reports.last())
    assert last.verdict == wanted
    assert ("by other limits" in (last.not_taken_back or "")) == (wanted == "FAIL")


def test_another_fail_by_other_limits_makes_the_proof_no_easier(reports: Reports) -> None:
    lax = {"rate.peers.fail": "< 0.5"}
    reports.add("FAIL", checks={"rate.peers": "fail"})
    reports.add("FAIL", checks={"rate.peers": "pass", **XID}, limits=lax)
    reports.add("PASS", checks={"rate.peers": "pass"}, limits=lax)
    assert reports.verdict == "FAIL"
    reports.add("PASS", checks={"rate.peers": "pass"})
    assert reports.verdict == "PASS"


@pytest.mark.parametrize("status", ["not tested", "n/a", None])
def test_a_check_that_was_not_judged_takes_nothing_back(
    reports: Reports, status: str | None
) -> None:
    reports.add("FAIL", checks={"rate.peers": "fail"})
    reports.add("PASS", checks={} if status is None else {"rate.peers": status})
    last = not_none(reports.last())
    assert last.verdict == "FAIL"
    assert "rate.peers failed, and is" in (last.not_taken_back or "")


@pytest.mark.parametrize(
    "more",
    [
        {"verdict": "INCOMPLETE"},
        {"verdict": "N/A"},
        {"verdict": "WARN", "screen": True},
        {"verdict": "WARN", "too_short": "12 s of work"},
        {"verdict": "PASS", "age": 0},
        {"verdict": "PASS", "node": "node.kernel_faults"},
    ],
)
def test_a_run_that_proves_nothing_takes_nothing_back(
    reports: Reports, more: dict[str, Any]
) -> None:
    """Nor does an earlier run that is judged again."""
    reports.add("FAIL", checks=XID)
    reports.add(**more)
    assert reports.verdict == "FAIL"


def test_an_earlier_run_that_is_judged_again_stays_the_earlier_one(reports: Reports) -> None:
    reports.add("INCOMPLETE", age=5)
    reports.add("PASS", age=4)
    assert reports.verdict == "INCOMPLETE"
    reports.add("PASS", age=6)
    reports.add("FAIL", checks=XID, age=3)
    assert reports.verdict == "PASS"
    reports.add("FAIL", checks={"rate.peers": "fail"}, age=2)
    assert reports.verdict == "FAIL"


def test_each_failed_check_has_its_own_proof(reports: Reports) -> None:
    reports.add("FAIL", checks={"xid": "fail", "results.wrong": "fail"})
    reports.add("FAIL", checks=XID)  # the results are right now
    reports.add("PASS", (GEMM,))
    assert reports.verdict == "FAIL"
    reports.add("PASS", checks={"results.wrong": "not tested"})
    assert reports.verdict == "PASS"


def test_a_second_fail_with_less_work_makes_the_proof_no_easier(reports: Reports) -> None:
    reports.add("FAIL", checks=XID)
    reports.add("FAIL", (HALF,), XID)
    reports.add("PASS", (HALF,))
    assert reports.verdict == "FAIL"
    reports.add("PASS")
    assert reports.verdict == "PASS"


def test_a_fail_of_an_earlier_version_needs_a_run_that_proves_something(reports: Reports) -> None:
    reports.add("FAIL", checks=XID)
    path = reports.state / "runs/run-1/report.json"
    old = json.loads(path.read_text())
    old["gpus"][0]["coverage"] = [{"workload": "gemm", "quota_s": 600.0}]
    path.write_text(json.dumps(old))
    utime(path, (1, 1))
    reports.add("PASS", (HALF,))
    assert reports.verdict == "FAIL", "what is missing is no reason to forget it"
    reports.add("PASS", (GEMM,))
    assert reports.verdict == "PASS"


def _dangling(reports: Reports, run: Path) -> None:
    elsewhere = run.rename(reports.state / "elsewhere")
    run.symlink_to(elsewhere)
    elsewhere.rename(reports.state / "moved")


def _damaged(text: str) -> Callable[[Reports, Path], None]:
    def damage(_: Reports, run: Path) -> None:
        (run / "report.json").write_text(text)

    return damage


def _edited(reports: Reports, run: Path) -> None:
    report = run / "report.json"
    files = {report.name: sha256(report.read_bytes()).hexdigest()}
    (run / "manifest.json").write_text(json.dumps({"schema_version": "1.0", "files": files}))
    last = not_none(reports.last())
    assert last.verdict == "FAIL"
    report.write_text(report.read_text().replace("FAIL", "PASS").replace('"fail"', '"pass"'))


def _without_manifest(_: Reports, run: Path) -> None:
    (run / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    "damage",
    [
        _edited,
        _without_manifest,
        _dangling,
        *map(_damaged, ["", '{"run": {"id"', "[]", "{}", '{"run": {}, "gpus": []}']),
    ],
    ids=["edited", "manifest", "away", "empty", "truncated", "list", "object", "incomplete"],
)
def test_a_run_that_cannot_be_read_may_have_failed(
    reports: Reports, damage: Callable[[Reports, Path], None]
) -> None:
    reports.add("PASS")
    reports.add("FAIL", checks=XID)
    damage(reports, reports.state / "runs" / "run-2")
    last = not_none(reports.last())
    assert (last.verdict, last.run) == ("PASS", "run-1")
    assert "runs/run-2 cannot be read or was changed, and may be a FAIL" in str(last.no_proof)
    reports.add("PASS", age=10**5)  # began after it
    last = not_none(reports.last())
    assert "it began in the future" in str(last.no_proof)


def test_a_later_run_proves_what_one_that_cannot_be_read_did_not(reports: Reports) -> None:
    reports.add("FAIL", checks=XID)
    path = reports.state / "runs" / "run-1" / "report.json"
    path.write_text("")
    for changed in (path, path.parent):
        utime(changed, (STARTED.timestamp(),) * 2)
    reports.add("PASS")
    last = not_none(reports.last())
    assert (last.verdict, last.no_proof) == ("PASS", None)


def test_a_run_of_a_clock_that_was_ahead_takes_nothing_back(reports: Reports) -> None:
    reports.add("FAIL", checks=XID)
    hours = (datetime.now(UTC) - STARTED) // timedelta(hours=1) + 48
    reports.add("PASS", age=hours)
    assert reports.verdict == "FAIL"


def test_a_level_leaves_out_runs_with_less_work_but_no_fail(reports: Reports) -> None:
    of_level = {
        level: tuple(
            phase(one.workload, one.seconds, one.passes) for one in find_plan(level).phases
        )
        for level in LEVELS
    }
    assert reports.last("standard") is None
    reports.add("PASS", of_level["long"])
    reports.add("PASS", of_level["standard"])
    reports.add("INCOMPLETE", of_level["screen"])
    assert [getattr(reports.last(level), "run", None) for level in LEVELS] == [
        *("run-3", "run-2", "run-1", None),
    ]
    reports.add("FAIL", of_level["screen"], XID)
    assert {getattr(reports.last(level), "run", None) for level in LEVELS} == {"run-4"}
    reports.add("PASS", of_level["standard"])
    assert reports.last("long") is None, "the FAIL is taken back, and a long run is missing"


@pytest.mark.parametrize(("shorter", "longer"), list(pairwise(LEVELS)))
def test_a_longer_level_takes_back_what_a_shorter_one_found(shorter: str, longer: str) -> None:
    first, second = (work_of(plan_object(find_plan(one))["phases"]) for one in (shorter, longer))
    assert lacking(second, first) is None
    assert lacking(first, second) is not None


@given(st.lists(st.sampled_from(("retention=30", "seconds=2", "dtype=fp8", "hz=1")), unique=True))
def test_a_kind_of_work_is_the_same_whatever_its_lengths(options: list[str]) -> None:
    kept = [one for one in options if one.startswith(("dtype", "hz"))]
    name = kind_of_work(f"work:{','.join(options)}" if options else "work")
    assert name == (f"work:{','.join(kept)}" if kept else "work")
