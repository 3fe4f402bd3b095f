"""XIDs of two sources are counted once, and judged by table, process and recovery action."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.burnin.checks.check import CheckResult, Severity, Status, Thresholds
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.xid_checks import judge_xids
from sentinel.burnin.loading import load
from sentinel.burnin.record import GpuRecord, Stretches
from sentinel.burnin.xids import XidEvent, joined, missed, parse_xid
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.counters import Counters
from sentinel.protocol.xids import XIDS, OwnEnd, XidMeaning

BUS = "00000000:3B:00.0"


def event(number: int, text: str = "", *, pid: int | None = None, at: float = 100.0) -> XidEvent:
    return XidEvent(number=number, pci_bus_id="0000:3b:00", at=at, pid=pid, text=text)


#: A line of the kernel's log, and the number, the address and the process of its XID.
LINES: list[tuple[str, tuple[int, str, int | None] | None]] = [
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python, Graphics", (13, "0000:3b:00", 1234)),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", (79, "0000:3b:00", None)),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid='77', name=a, Ch 1", (31, "0000:3b:00", 77)),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=9, Contained", (94, "0000:3b:00", 9)),
    ("[   12.3] NVRM: Xid (0000:AF:00): 48, DBE", (48, "0000:AF:00", None)),
    ("NVRM: Xid (PCI:0018:01:00.0): 149, NETIR_LINK_EVT Fatal", (149, "0018:01:00", None)),
    ("", None),
    ("NVRM: GPU at PCI:0000:3b:00: GPU-1", None),
    ("NVRM: Xid (PCI:0000:3b:00): many", None),
    ("Xid (PCI:0000:3b:00): 79", None),
    ("NVRM: SXid (PCI:0000:c1:00.0): 12028, Non-fatal", None),
]


@pytest.mark.parametrize(("line", "xid"), LINES)
def test_lines_of_the_kernel_are_parsed(line: str, xid: tuple[int, str, int | None] | None) -> None:
    found = parse_xid(line, 5.0)
    assert xid == (None if found is None else (found.number, found.pci_bus_id, found.pid))
    assert found is None or found.at == 5.0


@pytest.mark.parametrize("number", sorted(XIDS))
def test_every_row_of_the_table_has_its_verdict(number: int) -> None:
    row = XIDS[number]
    assert row.name
    assert row.source
    assert row.bucket.replace("_", "").isalnum()
    if number == 154:
        return
    expected = {
        XidMeaning.FAIL: Status.FAIL,
        XidMeaning.WARN: Status.WARN,
        XidMeaning.LOAD: Status.WARN,
        XidMeaning.APPLICATION: Status.PASS,
        XidMeaning.PASS: Status.PASS,
    }[row.meaning]
    found = judge_xids([event(number)])
    assert found.status is expected
    assert found.value == str(number)
    assert (found.action or "").startswith(row.bucket if expected is not Status.PASS else "")


def test_the_lists_of_nvidia_are_those_of_the_table() -> None:
    fails = {number for number, row in XIDS.items() if row.meaning is XidMeaning.FAIL}
    resets = {number for number, row in XIDS.items() if row.bucket == "RESET_GPU"}
    assert resets == {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
    assert fails == resets | {48, 54, 74, 79, 94, 157, 167, 168, 169, 171, 172}
    warns = {number for number, row in XIDS.items() if row.meaning is XidMeaning.WARN}
    assert warns == {63, 78, 142, 151, 159, 163, 164, 165, *range(144, 151)}
    assert {number for number, row in XIDS.items() if row.meaning is XidMeaning.LOAD} == {92}
    assert XIDS[79].bucket == "RESTART_BM"
    assert 58 not in XIDS  # unused on current chips


def test_an_unknown_number_is_a_warning() -> None:
    found = judge_xids([event(9999, "a new error")])
    assert (found.status, found.value) == (Status.WARN, "9999")
    assert "a new error" in found.evidence


def killed(number: int) -> list[tuple[list[XidEvent], dict[str, Any], Status]]:
    """Return what an XID means in process 7, which Sentinel ended at 95."""
    ended = {"kills": [OwnEnd(pid=7, at=95.0)]}
    return [
        ([event(number, pid=7)] * 2, ended, Status.PASS),
        ([event(number, pid=7, at=at) for at in (105.1, 106.0)], ended, Status.FAIL),
        ([event(number, pid=7, at=at) for at in (94.9, 94.8)], ended, Status.FAIL),
        # An own process that was not killed.
        ([event(number, pid=8)] * 2, {**ended, "own_pids": [8]}, Status.FAIL),
        # Another error in a killed process is not a cleanup.
        ([event(48, pid=7)], ended, Status.FAIL),
    ]


RECOVERY = ("from 0x0 (None) to 0x2 (Node Reboot Required)", "from 0x2 (Node) to 0x0 (None)")
#: The XIDs of a GPU, what else is known, and the status of all together.
JUDGED: list[tuple[list[XidEvent], dict[str, Any], Status]] = [
    ([], {}, Status.PASS),
    *killed(43),
    *killed(45),
    # An error of an application counts if it repeats in an own process.
    ([event(31, pid=8)] * 2, {"own_pids": [7]}, Status.PASS),
    ([event(31, pid=7)], {"own_pids": [7]}, Status.PASS),
    ([event(31, pid=7)] * 2, {"own_pids": [7]}, Status.FAIL),
    ([event(31, pid=7), event(13, pid=7)], {"own_pids": [7]}, Status.PASS),
    # One exception has several lines; one that no process is named for counts under own load.
    ([event(13, "SM Warp", pid=7), event(13, "ESR", pid=7)], {"own_pids": [7]}, Status.PASS),
    (
        [event(13, "SM Warp"), event(13, "ESR", at=109.0)],
        {"under_load": Stretches([(90.0, 110.0)])},
        Status.WARN,
    ),
    ([event(13, "SM Warp"), event(13, "ESR", at=109.0)], {}, Status.PASS),
    # The words of the driver decide about errors of NVLink.
    ([event(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 12")], {}, Status.FAIL),
    ([event(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 12")], {}, Status.WARN),
    ([event(149, "NETIR_LINK_EVT Non-fatal XC0 i0 Link 12")], {}, Status.WARN),
    # Many corrected errors are a fault under own load, unless a file says otherwise.
    ([event(92)], {"under_load": Stretches([(90.0, 110.0)])}, Status.FAIL),
    ([event(92)], {"under_load": Stretches([(110.0, 120.0)])}, Status.WARN),
    ([event(63)], {"under_load": Stretches([(90.0, 110.0)])}, Status.WARN),
    (
        [event(92)],
        {"under_load": Stretches([(90.0, 110.0)]), "overrides": {92: "warn"}},
        Status.WARN,
    ),
    # A recovery action that was demanded counts, whatever came later.
    ([event(154, text) for text in RECOVERY], {}, Status.FAIL),
    ([event(154, text) for text in reversed(RECOVERY)], {}, Status.FAIL),
    ([event(154, "from 0x0 (None) to 0x0 (None)")], {}, Status.PASS),
    # A file may replace a verdict.
    ([event(63)], {"overrides": {63: "fail"}}, Status.FAIL),
    ([event(109)], {"overrides": {109: "pass"}}, Status.PASS),
    ([event(9999)], {"overrides": {9999: "pass"}}, Status.PASS),
]


@pytest.mark.parametrize(("events", "known", "status"), JUDGED)
def test_xids_are_judged_by_number_words_process_and_file(
    events: list[XidEvent], known: dict[str, Any], status: Status
) -> None:
    assert judge_xids(events, **known).status is status


@pytest.mark.parametrize(
    ("change", "status", "bucket"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "fail", "RESET_GPU"),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", "fail", "RESTART_BM"),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "fail", "XID_154"),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", "fail", "RESET_GPU"),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", "fail", "RESET_GPU"),
        ("from 0x0 (None) to 0x0 (None)", "pass", ""),
        ("in a way that is not known", "warn", "XID_154"),
    ],
)
def test_the_drivers_own_action_wins_over_the_table(change: str, status: str, bucket: str) -> None:
    text = f"GPU recovery action changed {change}"
    found = judge_xids([event(154, text)])
    assert found.status == status
    assert (found.action or "").startswith(bucket)
    # Together with an error that the table gives another action.
    both = judge_xids([event(94), event(154, text)])
    assert both.status is Status.FAIL
    assert (both.action or "").startswith(bucket if status == "fail" else "RESTART_APP")


def test_the_worst_event_gives_the_result_and_all_are_named() -> None:
    found = judge_xids([event(13), event(63), event(79), event(79)])
    assert (found.status, found.value) == (Status.FAIL, "13, 63, 79 (2 times)")
    assert (found.action or "").startswith("RESTART_BM")
    assert found.severity is Severity.ISOLATE
    assert "fallen off the bus" in found.evidence


PLAN = Plan(name="test", phases=(Phase(name="one", workload="gemm", seconds=2),))
NO_KERNEL = "/dev/kmsg cannot be read: Permission denied"


def reported(number: int, at: float, **fields: Any) -> XidEvent:
    return XidEvent(number=number, pci_bus_id="0000:3b:00", at=at, pid=None, text="", **fields)


def row(name: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "at": at, "gpu": "G", "index": 0, **fields}


def kernel(number: int, at: float) -> dict[str, Any]:
    xid = {"number": number, "pci_bus_id": "0000:3b:00", "pid": None, "text": "words"}
    return {"event": "xid", "at": at, **xid}


def nvml(number: int, at: float, count: int = 1) -> dict[str, Any]:
    repeats = 0 if count == 1 else count
    return row("gpu.xid", at, xid=number, repeats=repeats, reported_at=at, last_at=at)


DROPPED = {"event": "log.dropped", "at": 104.0, "events": 3}
WATCHED = row("xids_watched", 109.5, first=100.0, last=109.5)


def record(*samples: dict[str, Any], closed: bool = True, parts: int = 1) -> GpuRecord:
    """Build the record of a GPU with a stressor from 101 to 109."""
    began = {"event": "burnin.run_started", "at": 89.0, "gpus": [{"uuid": "G", "index": 0}]}
    events = [
        *([began] * parts),
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


@pytest.mark.parametrize(("read", "status"), [((104.0, 106.0), "fail"), ((101.0, 104.0), "warn")])
def test_corrected_errors_under_own_load_are_those_between_readings_beside_a_stressor(
    read: tuple[float, float], status: str
) -> None:
    readings = [row("telemetry", at) for at in read]
    found = judged(record(WATCHED, kernel(92, 105.0), *readings), unread=None)
    assert (found.status, found.value) == (status, "92")


@pytest.mark.parametrize(("stopped", "status"), [(105.0, "fail"), (104.9, "warn")])
def test_corrected_errors_at_the_end_of_a_stressor_are_of_own_load(
    stopped: float, status: str
) -> None:
    """The last sample is from before them."""
    events = [row("stressor.starting", 102.0), row("stressor.stopped", stopped)]
    found = record(WATCHED, kernel(92, 105.0), row("telemetry", 104.0))
    found.events += events
    assert judged(found, unread=None).status == status


def test_one_xid_of_both_sources_is_counted_once_as_the_kernels() -> None:
    (one,) = joined([reported(79, 100.0)], [reported(79, 100.2)])
    assert one.at == 100.0
    assert len(joined([reported(79, 100.0)], [reported(79, 105.1)])) == 2
    assert len(joined([reported(79, 100.0)], [reported(48, 100.0)])) == 2


def test_repeats_are_matched_by_their_count() -> None:
    repeats = reported(13, 100.0, count=5, last_at=104.0)
    found = joined([reported(13, 99.0), reported(13, 104.5), reported(13, 120.0)], [repeats])
    assert [(one.at, one.count) for one in found] == [(99.0, 1), (100.0, 3), (104.5, 1), (120.0, 1)]
    assert (
        len(joined([reported(13, at) for at in (100.0, 101.0, 102.0)], [reported(13, 100.5)])) == 3
    )


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
    ("found", "unread", "why"),
    [
        (record(), NO_KERNEL, "NVML reports no XIDs of this GPU"),
        (
            record(row("xids_watched", 103.0, first=100.0, last=103.0)),
            NO_KERNEL,
            "not watched all the time",
        ),
        (record(WATCHED, DROPPED), NO_KERNEL, "events were lost"),
        # Two parts of a run may follow each other within a second.
        (record(WATCHED, parts=2), NO_KERNEL, "a part of the run was cut off"),
        (record(WATCHED, closed=False), None, "not complete"),
    ],
)
def test_what_may_have_been_missed_is_not_tested(
    found: GpuRecord, unread: str | None, why: str
) -> None:
    result = judged(found, unread)
    assert result.status is Status.NOT_TESTED
    assert why in result.evidence
    if unread is not None:
        assert unread in result.evidence
        assert judged(found, None).status is Status.PASS, "the kernel's log has all"


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
