"""The check of one GPU's XIDs in a run, of both sources."""

from __future__ import annotations

from dataclasses import replace

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.checks.xid import judge_xids
from sentinel.burnin.records.record import GpuRecord


def judge_xids_of(record: GpuRecord, thresholds: Thresholds, unread: str | None) -> CheckResult:
    """Judge the XIDs of a GPU of both sources; if some may be missing, the known ones still count.

    Args:
        record: What was recorded of the GPU.
        thresholds: The verdicts that replace those of the table.
        unread: Why the kernel's log has not all XIDs, or None.
    """
    pids = [one.pid for one in record.ends]
    missed = record.missed_by_nvml()
    if not record.closed:
        missed = "the samples of the run are not complete"
        unread = unread or missed
    found = judge_xids(record.own_xids(), record.ends, own_pids=pids, overrides=thresholds.xids)
    if unread is None or found.status in {Status.FAIL, Status.WARN}:
        return found
    if missed is None:
        source = f"NVML's events were the source: {unread}"
        return replace(found, evidence="; ".join(filter(None, (found.evidence, source))))
    return judge_xids(None, unread=unread if missed == unread else f"{unread}; {missed}")
