"""The check of the XIDs of a GPU in a run. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import Judgement, Limits, Severity, Status, unless_more, untested
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.kernel_faults import SAME_S
from sentinel.burnin.record import Stretches
from sentinel.burnin.xids import XidEvent
from sentinel.protocol.xids import CATALOG, XIDS, OwnEnd, Xid, XidMeaning, is_of_own_end

TABLE = Table()

_RECOVERY_ACTION = 154
NVLINK5 = range(144, 151)
#: An application error in a process of Sentinel's own is a fault once it repeats.
_REPEATED = 2

_ACTION = re.compile(r"\b(from|to) 0x([0-9A-Fa-f]{1,4})(?: \(([^)]{1,60})\))?")
_FATAL = re.compile(r"(?<![-\w])fatal\b", re.IGNORECASE)

SEVERITIES = {
    "RESET_GPU": Severity.RESET,
    "RESTART_BM": Severity.ISOLATE,
    "CHECK_MECHANICALS": Severity.TRIAGE,
    "IGNORE": Severity.MONITOR,
}


@TABLE.check("xid")
def _xid(evidence: LoadEvidence, _: Limits) -> Judgement:
    """Judge the XIDs of the GPU."""
    record = evidence.record
    unread, missed = evidence.kernel_log_error, record.missed_by_nvml()
    if not record.closed:
        missed = "the samples of the run are not complete"
        unread = unread or missed
    own = [end.pid for end in record.ends]
    own += [event["pid"] for event in record.named("stressor.starting") if event.get("pid")]
    found = judge_xids(
        record.own_xids(),
        record.ends,
        own_pids=own,
        overrides=evidence.xids,
        under_load=Stretches(
            [*record.loads(), *((first.at, last.at) for _, first, last in record.under_load())]
        ),
    )
    if unread is None:
        return found
    if missed is not None:  # the known ones still count
        return unless_more(found, untested("; ".join(dict.fromkeys((unread, missed)))))
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
    under_load: Stretches | None = None,
) -> Judgement:
    """Judge the XIDs of one GPU: the worst of them decides.

    Args:
        events: Its XIDs.
        kills: The processes that Sentinel ended, whose cleanup XIDs are no evidence.
        own_pids: The processes of Sentinel on that GPU, whose application errors count if they
            repeat.
        overrides: Verdicts that replace those of the table, by number.
        under_load: The times of Sentinel's own load; None if there were none.
    """
    found = list(_judged(events, kills, own_pids, overrides or {}, under_load or Stretches(())))
    actions = [event for event in events if event.number == _RECOVERY_ACTION]
    found[:0] = [_judge_action(event) for event in reversed(actions)]
    found.sort(key=lambda judged: judged.status.rank)  # the action before its equals
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
        severity=SEVERITIES.get(worst.bucket, Severity.ISOLATE),
        action=f"{worst.bucket}: see XID {worst.event.number} in `dmesg`.",
    )


def _judged(
    events: Sequence[XidEvent],
    kills: Sequence[OwnEnd],
    own_pids: Sequence[int],
    overrides: Mapping[int, str],
    under_load: Stretches,
) -> Iterator[_Judged]:
    """Judge every event but those of the recovery action."""
    own = set(own_pids) | {kill.pid for kill in kills}
    repeated = _repetitions(event for event in events if event.pid in own)
    unnamed = _repetitions(e for e in events if e.pid is None and _is_in(e, under_load))
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
        if xid.meaning is XidMeaning.LOAD and _is_in(event, under_load):
            status, why = Status.FAIL, f"{xid.name}, under Sentinel's own load"
        is_many = event.pid is None and unnamed[event.number] >= _REPEATED
        is_own_end = is_of_own_end(event.number, event.at, event.pid, kills)
        if is_many and xid.meaning is XidMeaning.APPLICATION and not is_own_end:
            status, why = Status.WARN, f"{xid.name}, repeatedly under Sentinel's own load"
        if event.number in overrides:
            status, why = Status(overrides[event.number]), "by the file of thresholds"
        yield _Judged(event=event, status=status, bucket=xid.bucket, why=why, source=xid.source)


def _is_in(event: XidEvent, times: Stretches) -> bool:
    return event.at in times or event.last in times


def _repetitions(events: Iterable[XidEvent]) -> Counter[int]:
    """Count by number how often XIDs came: lines of one moment that differ are one."""
    moments: Counter[int] = Counter()
    equal: Counter[tuple[int, str]] = Counter()
    last: dict[int, float] = {}
    for event in sorted(events, key=lambda one: one.at):
        equal[event.number, event.text] += event.count
        if event.at - last.get(event.number, -inf) > SAME_S:
            moments[event.number] += event.count
            last[event.number] = event.at
    for (number, _), count in equal.items():
        moments[number] = max(moments[number], count)
    return moments


def _status(
    event: XidEvent, xid: Xid, repeated: Counter[int], kills: Sequence[OwnEnd]
) -> tuple[Status, str]:
    """Judge one event by the table, the process and the words of the driver."""
    if is_of_own_end(event.number, event.at, event.pid, kills):
        which = "its stressor" if event.pid is None else f"process {event.pid}"
        return Status.PASS, f"{xid.name}, after Sentinel ended {which}"
    if event.number in NVLINK5 and _FATAL.search(event.text):
        return Status.FAIL, f"{xid.name}, fatal"
    match xid.meaning:
        case XidMeaning.FAIL:
            return Status.FAIL, xid.name
        case XidMeaning.WARN | XidMeaning.LOAD:
            return Status.WARN, xid.name
        case XidMeaning.APPLICATION if repeated[event.number] >= _REPEATED:
            return Status.FAIL, f"{xid.name}, repeatedly in a process of Sentinel"
        case XidMeaning.APPLICATION:
            return Status.PASS, f"{xid.name}, of an application"
        case XidMeaning.PASS:
            return Status.PASS, xid.name


def _judge_action(event: XidEvent) -> _Judged:
    """Judge a change of the driver's own recovery action, which wins over the table.

    An action that was demanded counts although the driver has withdrawn it: the GPU needed it.
    """
    found = {match[1]: match for match in _ACTION.finditer(event.text)}
    if "to" not in found:
        why = f"recovery action changed: {event.text}"
        return _Judged(event=event, status=Status.WARN, bucket="XID_154", why=why)
    demands = [found[name] for name in ("to", "from") if name in found and int(found[name][2], 16)]
    if not demands:
        why = "recovery action: None"
        return _Judged(event=event, status=Status.PASS, bucket="XID_154", why=why)
    name = demands[0][3] or f"action 0x{demands[0][2]}"
    lower = name.lower()
    bucket = "RESTART_BM" if "reboot" in lower else "RESET_GPU" if "reset" in lower else "XID_154"
    withdrawn = ", withdrawn" if demands[0][1] == "from" else ""
    why = f"recovery action: {name}{withdrawn}"
    return _Judged(event=event, status=Status.FAIL, bucket=bucket, why=why)
