"""XIDs are judged by the table, the process that caused them and the driver's own action."""

from __future__ import annotations

import pytest

from sentinel.burnin.checks.check import Severity, Status
from sentinel.burnin.checks.xid_checks import judge_xids
from sentinel.burnin.checks.xid_table import XIDS, XidMeaning
from sentinel.burnin.xids import XidEvent, is_of, parse
from sentinel.core.gpu_state import OwnEnd

BUS = "00000000:3B:00.0"


def event(number: int, text: str = "", *, pid: int | None = None, at: float = 100.0) -> XidEvent:
    return XidEvent(number=number, pci_bus_id="0000:3b:00", at=at, pid=pid, text=text)


@pytest.mark.parametrize(
    ("line", "number", "address", "pid"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python, Graphics Exception",
            13,
            "0000:3b:00",
            1234,
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 79, "0000:3b:00", None),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='77', name=a, Ch 1", 31, "0000:3b:00", 77),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=9, Contained", 94, "0000:3b:00", 9),
        ("[   12.3] NVRM: Xid (0000:AF:00): 48, DBE", 48, "0000:AF:00", None),
        ("NVRM: Xid (PCI:0018:01:00.0): 149, NETIR_LINK_EVT Fatal", 149, "0018:01:00", None),
    ],
)
def test_lines_of_the_kernel_are_parsed(
    line: str, number: int, address: str, pid: int | None
) -> None:
    found = parse(line, 5.0)
    assert found is not None
    assert (found.number, found.pci_bus_id, found.pid, found.at) == (number, address, pid, 5.0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1",
        "NVRM: Xid (PCI:0000:3b:00): many",
        "Xid (PCI:0000:3b:00): 79",
        "NVRM: SXid (PCI:0000:c1:00.0): 12028, Non-fatal",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse(line, 0.0) is None


def test_addresses_are_compared_in_every_form() -> None:
    assert is_of(event(1), BUS)
    assert is_of(event(1), "0000:3B:00.0")
    assert not is_of(event(1), "00000000:3C:00.0")
    assert not is_of(event(1), "00000001:3B:00.0")
    assert not is_of(event(1), "garbage")


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
    assert warns == {63, 78, 92, 142, 151, 159, 163, 164, 165, *range(144, 151)}
    assert XIDS[79].bucket == "RESTART_BM"
    assert 58 not in XIDS  # unused on current chips


def test_no_event_passes() -> None:
    assert judge_xids([]).status is Status.PASS


def test_an_unknown_number_is_a_warning() -> None:
    found = judge_xids([event(9999, "a new error")])
    assert (found.status, found.value) == (Status.WARN, "9999")
    assert "a new error" in found.evidence


@pytest.mark.parametrize("number", [43, 45])
def test_the_cleanup_after_an_own_kill_is_no_evidence(number: int) -> None:
    kills = [OwnEnd(pid=7, at=95.0)]
    ours = [event(number, pid=7), event(number, pid=7)]
    assert judge_xids(ours, kills).status is Status.PASS
    late = [event(number, pid=7, at=105.1), event(number, pid=7, at=106.0)]
    assert judge_xids(late, kills).status is Status.FAIL
    before = [event(number, pid=7, at=94.9), event(number, pid=7, at=94.8)]
    assert judge_xids(before, kills).status is Status.FAIL
    # An own process that was not killed.
    other = [event(number, pid=8), event(number, pid=8)]
    assert judge_xids(other, kills, own_pids=[8]).status is Status.FAIL
    # Another error in a killed process is not a cleanup.
    assert judge_xids([event(48, pid=7)], kills).status is Status.FAIL


def test_an_application_error_counts_if_it_repeats_in_an_own_process() -> None:
    foreign = [event(31, pid=8), event(31, pid=8)]
    assert judge_xids(foreign, own_pids=[7]).status is Status.PASS
    assert judge_xids([event(31, pid=7)], own_pids=[7]).status is Status.PASS
    repeated = [event(31, pid=7), event(31, pid=7)]
    assert judge_xids(repeated, own_pids=[7]).status is Status.FAIL
    different = [event(31, pid=7), event(13, pid=7)]
    assert judge_xids(different, own_pids=[7]).status is Status.PASS


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 12", Status.FAIL),
        ("NETIR_LINK_EVT Nonfatal XC0 i0 Link 12", Status.WARN),
        ("NETIR_LINK_EVT Non-fatal XC0 i0 Link 12", Status.WARN),
    ],
)
def test_the_words_of_the_driver_decide_about_nvlink_errors(text: str, status: Status) -> None:
    assert judge_xids([event(149, text)]).status is status


@pytest.mark.parametrize(
    ("text", "status", "bucket"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fail",
         "RESET_GPU"),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fail",
         "RESTART_BM"),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "fail", "XID_154"),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "fail",
         "RESET_GPU"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "pass", ""),
        ("something else", "warn", "XID_154"),
    ],
)  # fmt: skip
def test_the_drivers_own_action_wins_over_the_table(text: str, status: str, bucket: str) -> None:
    found = judge_xids([event(154, text)])
    assert found.status == status
    assert (found.action or "").startswith(bucket)
    # Together with an error that the table gives another action.
    both = judge_xids([event(94), event(154, text)])
    assert both.status is Status.FAIL
    assert (both.action or "").startswith(bucket if status == "fail" else "RESTART_APP")


def test_the_newest_recovery_action_counts() -> None:
    texts = ("from 0x0 (None) to 0x2 (Node Reboot Required)", "from 0x2 (Node) to 0x0 (None)")
    assert judge_xids([event(154, text) for text in texts]).status is Status.PASS


def test_the_worst_event_gives_the_result_and_all_are_named() -> None:
    found = judge_xids([event(13), event(63), event(79), event(79)])
    assert (found.status, found.value) == (Status.FAIL, "13, 63, 79 (2 times)")
    assert (found.action or "").startswith("RESTART_BM")
    assert found.severity is Severity.ISOLATE
    assert "fallen off the bus" in found.evidence


def test_a_file_may_replace_a_verdict() -> None:
    assert judge_xids([event(63)], overrides={63: "fail"}).status is Status.FAIL
    assert judge_xids([event(109)], overrides={109: "pass"}).status is Status.PASS
    assert judge_xids([event(9999)], overrides={9999: "pass"}).status is Status.PASS
