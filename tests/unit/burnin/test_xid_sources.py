"""XIDs of two sources are counted once, and gaps in NVML's are known."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.record import GpuRecord, load
from sentinel.burnin.xids import XidEvent, joined, missed
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.counters import Counters

PLAN = Plan(name="test", phases=(Phase(name="one", workload="gemm", seconds=2),))
NO_KERNEL = "/dev/kmsg cannot be read: Permission denied"


def event(number: int, at: float, **fields: Any) -> XidEvent:
    return XidEvent(number=number, pci_bus_id="0000:3b:00", at=at, pid=None, text="", **fields)


def row(name: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "at": at, "gpu": "G", "index": 0, **fields}


def kernel(number: int, at: float) -> dict[str, Any]:
    fields = {"number": number, "pci_bus_id": "0000:3b:00", "pid": None, "text": "words"}
    return {"event": "xid", "at": at, **fields}


def nvml(number: int, at: float, count: int = 1) -> dict[str, Any]:
    return row(
        "gpu.xid", at, xid=number, repeats=0 if count == 1 else count, reported_at=at, last_at=at
    )


WATCHED = row("xids_watched", 109.5, first=100.0, last=109.5)


def record(*samples: dict[str, Any], closed: bool = True, parts: int = 1) -> GpuRecord:
    """Build the record of a GPU with a stressor from 101 to 109."""
    events = [
        *(
            [{"event": "burnin.run_started", "at": 89.0, "gpus": [{"uuid": "G", "index": 0}]}]
            * parts
        ),
        row("burnin.phase_started", 90.0, phase="one"),
        row("stressor.starting", 101.0),
        row("burnin.phase_ended", 109.0, phase="one", seconds=2.0),
        *(sample for sample in samples if sample["event"] == "gpu.xid"),
    ]
    samples = tuple(sample for sample in samples if sample["event"] != "gpu.xid")
    last = [{"event": "last", "at": 110.0}] if closed else []
    found = load(PLAN, events, [*samples, *last])["G"]
    found.before = Counters(uuid="G", index=0, name="", at=0.0, pci_bus_id="00000000:3B:00.0")
    return found


def judged(found: GpuRecord, unread: str | None = NO_KERNEL) -> CheckResult:
    evidence = LoadEvidence(record=found, kernel_log_error=unread)
    return CHECKS["xid"].run(evidence, Thresholds())


def test_one_xid_of_both_sources_is_counted_once_as_the_kernels() -> None:
    (one,) = joined([event(79, 100.0)], [event(79, 100.2)])
    assert one.at == 100.0
    assert len(joined([event(79, 100.0)], [event(79, 105.1)])) == 2
    assert len(joined([event(79, 100.0)], [event(48, 100.0)])) == 2


def test_repeats_are_matched_by_their_count() -> None:
    repeats = event(13, 100.0, count=5, last_at=104.0)
    found = joined([event(13, 99.0), event(13, 104.5), event(13, 120.0)], [repeats])
    assert [(one.at, one.count) for one in found] == [(99.0, 1), (100.0, 3), (104.5, 1), (120.0, 1)]
    assert len(joined([event(13, at) for at in (100.0, 101.0, 102.0)], [event(13, 100.5)])) == 3


@pytest.mark.parametrize(
    ("watched", "expected"),
    [
        ([], "reports no XIDs"),
        ([(100.0, 110.0)], None),
        ([(102.0, 109.0)], None),
        ([(102.1, 110.0)], "not watched"),
        ([(100.0, 108.9)], "not watched"),
        # A replaced probe: nothing is known of the time between.
        ([(100.0, 104.0), (104.5, 110.0)], "not watched"),
        ([(0.0, 1.0), (100.0, 110.0)], None),
    ],
)
def test_a_gap_in_the_watch_is_found(
    watched: list[tuple[float, float]], expected: str | None
) -> None:
    found = missed([(101.0, 109.0)], watched)
    assert found is None if expected is None else expected in str(found)


def test_nvml_is_the_source_where_the_kernels_log_cannot_be_read() -> None:
    found = judged(record(WATCHED))
    assert (found.status, found.value) == (Status.PASS, "none")
    assert found.evidence == f"NVML's events were the source: {NO_KERNEL}"


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ((), "NVML reports no XIDs of this GPU"),
        ((row("xids_watched", 103.0, first=100.0, last=103.0),), "not watched all the time"),
        ((WATCHED, {"event": "log.dropped", "at": 104.0, "events": 3}), "events were lost"),
    ],
)
def test_what_nvml_may_have_missed_is_not_tested(
    samples: tuple[dict[str, Any], ...], why: str
) -> None:
    found = judged(record(*samples))
    assert found.status is Status.NOT_TESTED
    assert NO_KERNEL in found.evidence
    assert why in found.evidence
    assert judged(record(*samples), None).status is Status.PASS, "the kernel's log has all"


def test_a_run_that_was_cut_off_is_not_tested_by_nvml_either() -> None:
    found = judged(record(WATCHED, closed=False), None)
    assert found.status is Status.NOT_TESTED
    assert "not complete" in found.evidence


def test_a_part_that_was_killed_is_not_covered_by_the_watch_of_the_next() -> None:
    """They may follow each other within a second."""
    found = judged(record(WATCHED, parts=2))
    assert found.status is Status.NOT_TESTED
    assert "a part of the run was cut off" in found.evidence


def test_an_xid_of_nvml_fails_also_where_others_may_be_missing() -> None:
    found = judged(record(nvml(79, 105.0)))
    assert (found.status, found.value) == (Status.FAIL, "79")


def test_both_sources_are_judged_together() -> None:
    found = judged(record(kernel(79, 105.0), nvml(79, 105.1), nvml(63, 106.0, count=4)), None)
    assert (found.status, found.value) == (Status.FAIL, "63 (4 times), 79")


def test_43_of_nvml_after_an_own_kill_is_named_so() -> None:
    end = row("end", 105.0, pid=7)
    found = judged(record(WATCHED, end, nvml(43, 104.9)))
    assert (found.status, found.value) == (Status.PASS, "43")
    assert "after Sentinel ended its stressor" in found.evidence
