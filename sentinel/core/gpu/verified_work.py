"""Count the work of which results were checked, for as long as the daemon runs. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.gpu_state import GpuState
from sentinel.protocol.stressor import Progress
from sentinel.protocol.views import VerifiedCounts, VerifiedWork


def count(gpu_state: GpuState, report: Progress, now: float) -> GpuState:
    """Count a report of a stressor, if results were checked in it."""
    if not report.checks:
        return gpu_state
    before, spec = gpu_state.verified.counts, gpu_state.launch_spec
    counts = VerifiedCounts(
        seconds=before.seconds + report.seconds,
        checks=before.checks + report.checks,
        errors=before.errors + report.errors,
    )
    workload = spec.workload if spec is not None else None
    return replace(gpu_state, verified=VerifiedWork(counts=counts, at=now, workload=workload))


def work_of(gpu_state: GpuState) -> VerifiedWork:
    """Return the verified work of a GPU with its findings."""
    work = gpu_state.verified
    counts = replace(work.counts, findings=gpu_state.findings.total)
    return replace(work, counts=counts)
