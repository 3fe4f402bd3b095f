"""The XIDs of NVIDIA's driver as data, and the check of those of a GPU in a run. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sentinel.burnin.checks.check import (
    Action,
    Judgement,
    Limits,
    Severity,
    Status,
    Table,
    untested,
)
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.xids import XidEvent
from sentinel.core.child_facts import is_of_own_end
from sentinel.core.gpu_state import OwnEnd

CATALOG = "NVIDIA, Analyzing Xid Errors with the Xid Catalog"


class XidMeaning(StrEnum):
    """What an XID says about the hardware."""

    FAIL = "fail"
    WARN = "warn"
    #: Of the application: no evidence, unless it repeats in a process of Sentinel's own.
    APPLICATION = "application"
    #: No evidence at all.
    PASS = "pass"  # noqa: S105 - not a password


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One XID."""

    number: int
    name: str
    #: NVIDIA's bucket of immediate actions.
    bucket: str
    meaning: XidMeaning
    source: str = CATALOG


def _rows(
    meaning: XidMeaning, *rows: tuple[int, str, str], source: str = CATALOG
) -> tuple[Xid, ...]:
    return tuple(
        Xid(number=number, name=name, bucket=bucket, meaning=meaning, source=source)
        for number, name, bucket in rows
    )


_ENGINES = (
    *((number, f"copy engine {number - 39}") for number in (39, 40, 41)),
    *((number, f"copy engine {number - 67}") for number in (70, 71, 72)),
    *((number, f"copy engine {number - 69}") for number in (75, 76, 77)),
    (82, "NVJPG 0"),
    (83, "NVDEC 1"),
    (84, "NVDEC 2"),
    (85, "copy engine 9"),
    (86, "OFA"),
    (88, "NVDEC 3"),
    (89, "NVDEC 4"),
    *((number, f"NVDEC {number - 91}") for number in (96, 97, 98)),
    *((number, f"NVJPG {number - 98}") for number in range(99, 106)),
    *((number, f"copy engine {number - 116}") for number in range(126, 136)),
    (139, "OFA 1"),
)

_TABLE: tuple[Xid, ...] = (
    *_rows(
        XidMeaning.FAIL,
        (46, "GPU stopped processing", "RESET_GPU"),
        (48, "double bit ECC error", "WORKFLOW_XID_48"),
        (54, "auxiliary power is not connected", "CHECK_MECHANICALS"),
        (62, "internal micro-controller halt", "RESET_GPU"),
        (64, "GPU memory remapping failure", "RESET_GPU"),
        (74, "NVLink error", "WORKFLOW_NVLINK_ERR"),
        (79, "GPU has fallen off the bus", "RESTART_BM"),
        (95, "uncontained memory error", "RESET_GPU"),
        (109, "context switch timeout", "RESET_GPU"),
        (110, "security fault", "RESET_GPU"),
        (119, "GSP RPC timeout", "RESET_GPU"),
        (120, "GSP error", "RESET_GPU"),
        (136, "link training failed", "RESET_GPU"),
        (140, "unrecovered ECC error", "RESET_GPU"),
        (143, "GPU initialization error", "RESET_GPU"),
        (155, "NVLink: software-defined error", "RESET_GPU"),
        (156, "resource retirement", "RESET_GPU"),
        (158, "GPU fatal timeout", "RESET_GPU"),
    ),
    *_rows(
        XidMeaning.FAIL,
        (94, "contained memory error", "RESTART_APP"),
        source=f"{CATALOG}; it always carries a new uncorrectable error",
    ),
    *_rows(
        XidMeaning.FAIL,
        (157, "resource retirement failure: no repair is possible", "CONTACT_SUPPORT"),
        (167, "PCIe fatal timeout", "CONTACT_SUPPORT"),
        (168, "reduced memory capacity", "CONTACT_SUPPORT"),
        (169, "SEC2 halt", "CONTACT_SUPPORT"),
        (171, "uncorrectable DRAM error", "WORKFLOW_XID_48"),
        (172, "uncorrectable SRAM error", "WORKFLOW_XID_48"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    # The words of these decide: see judge_xids.
    *_rows(
        XidMeaning.WARN,
        *((number, "NVLink 5 error", "WORKFLOW_NVLINK5_ERR") for number in range(144, 151)),
    ),
    *_rows(
        XidMeaning.WARN,
        (63, "GPU memory remapping", "IGNORE"),
        (92, "high rate of single-bit errors", "IGNORE"),
        source=f"{CATALOG}; verdict: Sentinel, since it announces wear",
    ),
    *_rows(
        XidMeaning.WARN,
        (78, "vGPU start error", "UPDATE_SWFW"),
        (142, "NVENC 3", "CONTACT_SUPPORT"),
        (151, "key rotation error", "RESTART_VM"),
        (159, "CHI non-data error", "CHECK_UVM"),
    ),
    *_rows(
        XidMeaning.WARN,
        (163, "power smoothing disengaged", "CONTACT_SUPPORT"),
        (164, "power smoothing: low lifetime", "CONTACT_SUPPORT"),
        (165, "power smoothing: lifetime exhausted", "CONTACT_SUPPORT"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    *_rows(
        XidMeaning.APPLICATION,
        (8, "GPU stopped processing", "RESTART_APP"),
        (11, "invalid push buffer", "RESTART_APP"),
        (13, "graphics engine exception", "RESTART_APP"),
        (25, "invalid push buffer", "RESTART_APP"),
        (31, "GPU memory page fault", "RESTART_APP"),
        (32, "invalid push buffer", "RESTART_APP"),
        (60, "video processor exception", "RESTART_APP"),
        (68, "NVDEC 0 exception", "RESTART_APP"),
        (69, "graphics engine class error", "RESTART_APP"),
        (80, "corrupted data sent to the GPU", "RESTART_APP"),
        *((number, f"exception of {engine}", "RESTART_APP") for number, engine in _ENGINES),
    ),
    *_rows(
        XidMeaning.APPLICATION,
        (43, "GPU stopped processing", "IGNORE"),
        (45, "preemptive cleanup", "WORKFLOW_XID_45"),
    ),
    *_rows(
        XidMeaning.PASS,
        (14, "injected error", "IGNORE"),
        (37, "driver firmware error", "IGNORE"),
        (38, "driver firmware error", "IGNORE"),
        (44, "fault during a context switch", "IGNORE"),
        (66, "illegal access by the driver", "IGNORE"),
        (67, "illegal access by the driver", "IGNORE"),
        (93, "InfoROM wear limit", "IGNORE"),
        (106, "SMBPBI test message", "IGNORE"),
        (107, "SMBPBI test message", "IGNORE"),
        (108, "unused", "IGNORE"),
        (121, "corrected C2C error", "IGNORE"),
        (137, "NVLink privilege error", "IGNORE"),
        (141, "CUDA fast path error", "IGNORE"),
        (152, "DLA SMMU error", "IGNORE"),
        (153, "DLA timeout", "IGNORE"),
        (160, "channel retirement", "IGNORE"),
        (161, "channel retirement failure", "IGNORE"),
    ),
    *_rows(
        XidMeaning.PASS,
        (162, "power smoothing engaged", "IGNORE"),
        (166, "NVLink encryption", "IGNORE"),
        (170, "NVLink encryption", "IGNORE"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    *_rows(
        XidMeaning.PASS,
        (154, "GPU recovery action changed", "XID_154"),
        source=f"{CATALOG}; its text is the driver's own action, which wins over this table",
    ),
)

#: All XIDs by number.
XIDS = {xid.number: xid for xid in sorted(_TABLE, key=lambda xid: xid.number)}


TABLE = Table()

_RECOVERY_ACTION = 154
_NVLINK5 = range(144, 151)
#: An application error in a process of Sentinel's own is a fault once it repeats.
_REPEATED = 2

_TO_ACTION = re.compile(r"\bto 0x([0-9A-Fa-f]{1,4})(?: \(([^)]{1,60})\))?")
_FATAL = re.compile(r"(?<![-\w])fatal\b", re.IGNORECASE)

_SEVERITIES = {
    "RESET_GPU": Severity.RESET,
    "RESTART_BM": Severity.ISOLATE,
    "CHECK_MECHANICALS": Severity.TRIAGE,
    "IGNORE": Severity.MONITOR,
}


@TABLE.check(
    "xid",
    rule="the table of XIDs; the driver's own action (154) wins",
    source=CATALOG,
    do=Action(Severity.ISOLATE, "the action of the worst XID"),
)
def _xid(evidence: LoadEvidence, _: Limits) -> Judgement:
    """No XID tells of a fault.

    Reads the kernel's log, and NVML's events where it cannot be read.
    """
    record = evidence.record
    unread, missed = evidence.kernel_log_error, record.missed_by_nvml()
    if not record.closed:
        missed = "the samples of the run are not complete"
        unread = unread or missed
    own = [end.pid for end in record.ends]
    found = judge_xids(record.own_xids(), record.ends, own_pids=own, overrides=evidence.xids)
    # If some XIDs may be missing, the known ones still count.
    if unread is None or found.status in {Status.FAIL, Status.WARN}:
        return found
    if missed is not None:
        return untested(unread if missed == unread else f"{unread}; {missed}")
    source = f"NVML's events were the source: {unread}"
    return replace(found, evidence="; ".join(filter(None, (found.evidence, source))))


@dataclass(frozen=True, kw_only=True)
class _Judged:
    event: XidEvent
    status: Status
    bucket: str
    why: str
    source: str = CATALOG


def judge_xids(
    events: Sequence[XidEvent],
    kills: Sequence[OwnEnd] = (),
    *,
    own_pids: Sequence[int] = (),
    overrides: Mapping[int, str] | None = None,
) -> Judgement:
    """Judge the XIDs of one GPU: the worst of them decides.

    Args:
        events: Its XIDs.
        kills: The processes that Sentinel ended, whose cleanup XIDs are no evidence.
        own_pids: The processes of Sentinel on that GPU, whose application errors count if they
            repeat.
        overrides: Verdicts that replace those of the table, by number.
    """
    found = list(_judged(events, kills, own_pids, overrides or {}))
    actions = [event for event in events if event.number == _RECOVERY_ACTION]
    found[:0] = [_judge_action(event) for event in actions[-1:]]
    order = (Status.FAIL, Status.WARN, Status.PASS)
    found.sort(key=lambda judged: order.index(judged.status))  # the action before its equals
    counts: Counter[int] = Counter()
    for event in events:
        counts[event.number] += event.count
    value = ", ".join(
        f"{number}" if count == 1 else f"{number} ({count} times)"
        for number, count in sorted(counts.items())
    )
    text = "; ".join(f"{judged.event.number}: {judged.why}" for judged in found[:5])
    if not found or found[0].status is Status.PASS:
        return Judgement(status=Status.PASS, value=value or "none", evidence=text)
    worst = found[0]
    return Judgement(
        status=worst.status,
        value=value,
        evidence=text,
        source=worst.source,
        severity=_SEVERITIES.get(worst.bucket, Severity.ISOLATE),
        action=f"{worst.bucket}: see XID {worst.event.number} in `dmesg`.",
    )


def _judged(
    events: Sequence[XidEvent],
    kills: Sequence[OwnEnd],
    own_pids: Sequence[int],
    overrides: Mapping[int, str],
) -> Iterator[_Judged]:
    """Judge every event but those of the recovery action."""
    own = set(own_pids) | {kill.pid for kill in kills}
    repeated = Counter(event.number for event in events if event.pid in own)
    for event in events:
        if event.number == _RECOVERY_ACTION:
            continue
        xid = XIDS.get(event.number) or Xid(
            number=event.number,
            name=f"unknown number, {event.text}",
            bucket="CONTACT_SUPPORT",
            meaning=XidMeaning.WARN,
        )
        status, why = _status(event, xid, repeated if event.pid in own else Counter(), kills)
        if event.number in overrides:
            status, why = Status(overrides[event.number]), "by the file of thresholds"
        yield _Judged(event=event, status=status, bucket=xid.bucket, why=why, source=xid.source)


def _status(
    event: XidEvent, xid: Xid, repeated: Counter[int], kills: Sequence[OwnEnd]
) -> tuple[Status, str]:
    """Judge one event by the table, the process and the words of the driver."""
    if is_of_own_end(event.number, event.at, event.pid, kills):
        which = "its stressor" if event.pid is None else f"process {event.pid}"
        return Status.PASS, f"{xid.name}, after Sentinel ended {which}"
    if event.number in _NVLINK5 and _FATAL.search(event.text):
        return Status.FAIL, f"{xid.name}, fatal"
    match xid.meaning:
        case XidMeaning.FAIL:
            return Status.FAIL, xid.name
        case XidMeaning.WARN:
            return Status.WARN, xid.name
        case XidMeaning.APPLICATION if repeated[event.number] >= _REPEATED:
            return Status.FAIL, f"{xid.name}, repeatedly in a process of Sentinel"
        case XidMeaning.APPLICATION:
            return Status.PASS, f"{xid.name}, of an application"
        case XidMeaning.PASS:
            return Status.PASS, xid.name


def _judge_action(event: XidEvent) -> _Judged:
    """Judge the driver's own recovery action, the newest of which wins over the table."""
    match = _TO_ACTION.search(event.text)
    if match is None:
        why = f"recovery action changed: {event.text}"
        return _Judged(event=event, status=Status.WARN, bucket="XID_154", why=why)
    name = match[2] or f"action 0x{match[1]}"
    status = Status.PASS if int(match[1], 16) == 0 else Status.FAIL
    lower = name.lower()
    bucket = "RESTART_BM" if "reboot" in lower else "RESET_GPU" if "reset" in lower else "XID_154"
    return _Judged(event=event, status=status, bucket=bucket, why=f"recovery action: {name}")
