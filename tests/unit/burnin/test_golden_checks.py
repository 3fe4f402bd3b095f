"""Golden checksums over the GPUs of a run: which one differs, and from what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.golden_checks import CHECKS
from sentinel.burnin.checks.load_checks import CHECKS as LOAD_CHECKS
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.record import Checksum, GpuRecord, load
from sentinel.config.plan import Phase, Plan

STORED, PEERS = CHECKS
#: The key, the checksum and the one on record.
Row = tuple[str, str, str | None]
GOLDEN = {"event": "stressor.finding", "place": "golden", "detail": "0xb, 0xa is on record"}
MISMATCH = {"event": "stressor.mismatch", "errors": 1, "checks": 9}
FAIL, PASS, NOT_TESTED = Status.FAIL, Status.PASS, Status.NOT_TESTED


def judged(check: str, *gpus: Sequence[Row]) -> list[CheckResult]:
    """Judge every GPU of a node, given the checksums of each."""
    records = [
        GpuRecord(
            uuid=f"GPU-{index}",
            index=index,
            phases=[],
            checksums=[Checksum(key=key, checksum=one, stored=old) for key, one, old in rows],
        )
        for index, rows in enumerate(gpus)
    ]
    by_id = {one.id: one for one in CHECKS}
    return [
        by_id[check].run(LoadEvidence(record=one, peers=records), Thresholds()) for one in records
    ]


def statuses(check: str, *gpus: Sequence[Row]) -> list[Status]:
    """Judge every GPU of a node; return the statuses."""
    return [one.status for one in judged(check, *gpus)]


def test_the_gpu_that_differs_from_the_majority_fails_whichever_made_the_record() -> None:
    good: list[Row] = [("bf16 1", "0xa", "0xb"), ("bf16 2", "0xc", "0xc")]
    faulty: list[Row] = [("bf16 1", "0xb", None), ("bf16 2", "0xc", None)]
    found = judged("golden.peers", faulty, good, good, good)
    assert [one.status for one in found] == [FAIL, PASS, PASS, PASS]
    assert "0xb, as 0 of 3 other GPUs; GPU 1, 2, 3 computed 0xa" in found[0].evidence
    assert found[0].value == 1
    assert found[1].evidence == "2 checksums are compared with those of 3 GPUs; GPU 0 differs"
    # The record of this run is the faulty GPU's own, so it accuses none.
    assert statuses("golden.stored", faulty, good, good, good) == [NOT_TESTED] * 4


def test_a_record_from_before_the_run_is_compared_and_counted() -> None:
    good: list[Row] = [("bf16 1", "0xa", "0xa"), ("bf16 2", "0xc", "0xc"), ("fp16 1", "0xd", None)]
    bad: list[Row] = [("bf16 1", "0xb", "0xa"), ("bf16 2", "0xc", "0xc")]
    found = judged("golden.stored", good, bad)
    assert [one.status for one in found] == [PASS, FAIL]
    assert found[0].evidence == "2 of 3 checksums were on record before the run"
    assert found[1].evidence == "1 of 2 differ; first: bf16 1: 0xb, 0xa is on record"
    assert statuses("golden.stored", bad) == [FAIL], "one GPU alone"


def test_without_a_majority_the_record_decides_and_without_one_all_fail() -> None:
    one: list[Row] = [("bf16 1", "0xa", "0xa")]
    other: list[Row] = [("bf16 1", "0xb", "0xa")]
    assert statuses("golden.peers", one, other) == [PASS, FAIL]
    one, other = [("bf16 1", "0xa", None)], [("bf16 1", "0xb", "0xa")]
    found = judged("golden.peers", one, other)
    assert [each.status for each in found] == [FAIL, FAIL]
    assert "no majority says which is right" in found[0].evidence
    three: list[Row] = [("bf16 1", "0xc", "0xa")]
    assert statuses("golden.peers", one, other, three) == [FAIL, FAIL, FAIL]


def test_a_gpu_that_contradicts_itself_fails_even_alone() -> None:
    torn: list[Row] = [("bf16 1", "0xa", None), ("bf16 1", "0xb", "0xa")]
    (found,) = judged("golden.peers", torn)
    assert found.status is FAIL
    assert found.evidence == "1 of 1: the GPU contradicts itself: 0xa, 0xb"


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([[]], "no checksum was computed"),
        ([[("bf16 1", "0xa", None)]], "no other GPU of this model has computed the same"),
        ([[("bf16 1", "0xa", None)], [("fp16 1", "0xb", None)]], "no other GPU"),
    ],
)
def test_nothing_to_compare_with_is_not_tested(gpus: list[list[Row]], why: str) -> None:
    for check in ("golden.stored", "golden.peers"):
        assert statuses(check, *gpus)[0] is NOT_TESTED
    assert why in judged("golden.peers", *gpus)[0].evidence


def test_a_finding_is_not_hidden_by_a_sample_that_was_lost() -> None:
    record = GpuRecord(uuid="GPU-0", index=0, phases=[], events=[GOLDEN])
    assert STORED.run(LoadEvidence(record=record), Thresholds()).status is FAIL
    assert PEERS.run(LoadEvidence(record=record), Thresholds()).status is NOT_TESTED


def test_a_difference_between_gpus_is_no_wrong_result_of_the_one_that_reported_it() -> None:
    by_id = {one.id: one for one in LOAD_CHECKS}
    record = GpuRecord(uuid="GPU-0", index=0, phases=[], events=[GOLDEN, MISMATCH])
    evidence = LoadEvidence(record=record)
    for check in ("results.wrong", "results.finding"):
        assert by_id[check].run(evidence, Thresholds()).status is not FAIL, check
    record.events.append({**MISMATCH, "errors": 2})
    assert by_id["results.wrong"].run(evidence, Thresholds()).value == 2
    record.events.append({**GOLDEN, "place": "result"})
    assert by_id["results.wrong"].run(evidence, Thresholds()).value == 3
    assert by_id["results.finding"].run(evidence, Thresholds()).value == 1


def test_the_samples_of_a_run_become_checksums() -> None:
    plan = Plan(name="test", phases=(Phase(name="one", workload="gemm", seconds=1),))
    start = {"event": "sentinel.started", "at": 0.0, "gpus": [{"uuid": "GPU-0", "index": 0}]}
    row = {"key": "bf16", "checksum": "0xa", "stored": None}
    sample = {"event": "checksum", "at": 1.0, "gpu": "GPU-0", **row}
    record = load(plan, [start], [sample])["GPU-0"]
    assert [vars(one) for one in record.checksums] == [row]
