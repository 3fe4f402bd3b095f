"""Judge the XIDs of one GPU between two moments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.burnin.checks.check import CheckResult, Severity, Status
from sentinel.burnin.checks.xid_table import CATALOG, XIDS, Verdict, Xid
from sentinel.burnin.records.xid_event import XidEvent
from sentinel.core.gpu.xids import is_of_own_end
from sentinel.core.gpu_state import OwnEnd

_RECOVERY_ACTION = 154
_NVLINK5 = range(144, 151)
#: An application error in a process of Sentinel's own is a fault once it repeats.
_REPEATED = 2

#: The id of the check.
XID_CHECK = "xid"

_TO_ACTION = re.compile(r"\bto 0x([0-9A-Fa-f]{1,4})(?: \(([^)]{1,60})\))?")
_FATAL = re.compile(r"(?<![-\w])fatal\b", re.IGNORECASE)


def judge_xids(
    events: Sequence[XidEvent] | None,
    kills: Sequence[OwnEnd] = (),
    *,
    own_pids: Sequence[int] = (),
    overrides: Mapping[int, str] | None = None,
    unread: str = "the kernel's log cannot be read",
) -> CheckResult:
    """Judge the XIDs of one GPU.

    Args:
        events: Its XIDs, or None if they are unknown.
        kills: The processes that Sentinel ended, whose cleanup XIDs are no evidence.
        own_pids: The processes of Sentinel on that GPU, whose application errors count if they
            repeat.
        overrides: Verdicts that replace those of the table, by number.
        unread: Why the events are unknown.
    """
    if events is None:
        return _result(Status.NOT_TESTED, None, unread)
    found = list(_judged(events, kills, own_pids, overrides or {}))
    action = next((event for event in reversed(events) if event.number == _RECOVERY_ACTION), None)
    if action is not None:
        found.insert(0, _judge_action(action))
    order = (Status.FAIL, Status.WARN, Status.PASS)
    found.sort(key=lambda one: order.index(one.status))  # the action stays before its equals
    counts: Counter[int] = Counter()
    for event in events:
        counts[event.number] += event.count
    value = ", ".join(
        f"{number}" if count == 1 else f"{number} ({count} times)"
        for number, count in sorted(counts.items())
    )
    text = "; ".join(f"{one.event.number}: {one.why}" for one in found[:5])
    if not found or found[0].status is Status.PASS:
        return _result(Status.PASS, value or "none", text)
    worst = found[0]
    return _result(worst.status, value, text, worst)


@dataclass(frozen=True, kw_only=True)
class _Judged:
    event: XidEvent
    status: Status
    bucket: str
    why: str
    source: str = CATALOG


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
        xid = XIDS.get(event.number)
        status, why = _status(event, xid, repeated if event.pid in own else Counter(), kills)
        if event.number in overrides:
            status, why = Status(overrides[event.number]), "by the file of thresholds"
        bucket = "CONTACT_SUPPORT" if xid is None else xid.bucket
        yield _Judged(
            event=event,
            status=status,
            bucket=bucket,
            why=why,
            source=CATALOG if xid is None else xid.source,
        )


def _status(
    event: XidEvent, xid: Xid | None, repeated: Counter[int], kills: Sequence[OwnEnd]
) -> tuple[Status, str]:
    """Judge one event by the table, the process and the words of the driver."""
    if xid is None:
        return Status.WARN, f"unknown number, {event.text}"
    if is_of_own_end(event.number, event.at, event.pid, kills):
        which = "its stressor" if event.pid is None else f"process {event.pid}"
        return Status.PASS, f"{xid.name}, after Sentinel ended {which}"
    if event.number in _NVLINK5 and _FATAL.search(event.text):
        return Status.FAIL, f"{xid.name}, fatal"
    match xid.verdict:
        case Verdict.FAIL:
            return Status.FAIL, xid.name
        case Verdict.WARN:
            return Status.WARN, xid.name
        case Verdict.APPLICATION if repeated[event.number] >= _REPEATED:
            return Status.FAIL, f"{xid.name}, repeatedly in a process of Sentinel"
        case Verdict.APPLICATION:
            return Status.PASS, f"{xid.name}, of an application"
        case Verdict.PASS:
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


_SEVERITIES = {
    "RESET_GPU": Severity.RESET,
    "RESTART_BM": Severity.ISOLATE,
    "CHECK_MECHANICALS": Severity.TRIAGE,
    "IGNORE": Severity.MONITOR,
}


def _result(
    status: Status, value: str | None, evidence: str, worst: _Judged | None = None
) -> CheckResult:
    return CheckResult(
        id=XID_CHECK,
        status=status,
        value=value,
        unit="",
        threshold="the table of XIDs; the driver's own action (154) wins",
        source=CATALOG if worst is None else worst.source,
        severity=Severity.NONE
        if worst is None
        else _SEVERITIES.get(worst.bucket, Severity.ISOLATE),
        action="" if worst is None else f"{worst.bucket}: see XID {worst.event.number} in `dmesg`.",
        evidence=evidence,
    )
