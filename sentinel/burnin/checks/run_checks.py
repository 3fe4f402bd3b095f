"""The checks of the node of a burn-in: which of its GPUs took part. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sentinel.burnin.checks.check import (
    Check,
    Judgement,
    Severity,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.thresholds import Limits, above
from sentinel.protocol.counters import Counters


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """All that the checks of a burn-in's node may use."""

    #: All GPUs that NVML listed before the run, also those that could not be identified.
    listed: tuple[Counters, ...]
    #: The UUIDs of the GPUs of the run.
    tested: Collection[str]
    #: Whether the GPUs were selected, so that others are none of the run's; None if unknown.
    selected: bool | None


def _took_part(evidence: RunEvidence, limits: Limits) -> Judgement:
    """Judge the GPUs that the run has not: lost ones fail, the others may be in another use."""
    if evidence.selected is None:
        return untested("it is not recorded whether GPUs were selected")
    if evidence.selected:
        return not_applicable("GPUs were selected")
    absent = [one for one in evidence.listed if one.uuid not in evidence.tested]
    lost = [one for one in absent if one.lost is not None]
    text = "; ".join(
        f"GPU {one.index} has no verdict: {one.lost or 'it was not used'}" for one in absent
    )
    found = by_limits(len(lost), {"fail": limits["fail"]}, text)
    if found.status is Status.PASS and limits["warn"].broken_by(len(absent)):
        return Judgement(status=Status.WARN, value=len(absent), evidence=text)
    return found


CHECKS: tuple[Check[RunEvidence], ...] = (
    Check(
        id="node.tested",
        title="Every GPU of the node took part in the run",
        reads="nvmlDeviceGetCount before the run, the events of the run",
        limits={"fail": above(0), "warn": above(0)},
        rule="of GPUs that are not in the run, fail those that are lost, warn of others: {limits};"
        " not with --gpus or CUDA_VISIBLE_DEVICES",
        source="own: no verdict is no PASS",
        severity=Severity.ISOLATE,
        action="RESTART_BM: look for XIDs in `dmesg` and reboot if a GPU is lost. Else name the"
        " GPUs to test by --gpus.",
        unit="GPUs",
        judge=_took_part,
    ),
)
