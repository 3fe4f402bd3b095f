"""Two checks of what a burn-in has recorded: of each GPU, and of the node.

Checks for sentinel, and a model for others: limits, source, severity and action are data; the
functions are pure; a value that is missing is not a fault.
"""

from __future__ import annotations

from statistics import median

from sentinel.checks import (
    GpuCheck,
    Judgement,
    Limits,
    LoadEvidence,
    NodeCheck,
    RunEvidence,
    Severity,
    Status,
    above,
    below,
    by_limits,
    untested,
)

#: Fewer readings have no median to trust, in each half of a stretch.
_MIN_SAMPLES = 5


def _clock_drop(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the clock in the second half of a steady phase with the first half."""
    worst: tuple[float, str] | None = None
    for phase in evidence.record.phases:
        if not phase.phase.steady:
            continue
        readings = [one.values.get("sm_clock_mhz") for one in phase.judged(phase.telemetry)]
        clocks = [float(clock) for clock in readings if clock]
        half = len(clocks) // 2
        if half < _MIN_SAMPLES:
            continue
        first, second = median(clocks[:half]), median(clocks[half:])
        text = f"{first:g} MHz, then {second:g} MHz in {phase.phase.name}"
        found = (round(second / first, 4), text)
        worst = found if worst is None else min(worst, found)
    if worst is None:
        return untested("no steady phase has enough readings of the clock")
    return by_limits(worst[0], limits, worst[1])


CLOCK_DROP = GpuCheck(
    id="site.clock_drop",
    title="The clock does not drop in the course of a steady phase",
    reads="nvmlDeviceGetClockInfo, in the stretches that count",
    source="our acceptance test, 2026",
    severity=Severity.TRIAGE,
    action="CHECK_MECHANICALS: compare the airflow with that of the neighbours.",
    unit="of the clock at first",
    limits={"fail": below(0.85), "warn": below(0.95)},
    judge=_clock_drop,
)


def _same_firmware(evidence: RunEvidence, limits: Limits) -> Judgement:
    """Count the versions of the VBIOS among GPUs of one model."""
    versions: dict[str, set[str]] = {}
    for gpu in evidence.gpus:
        if gpu.before is not None and gpu.before.vbios:
            versions.setdefault(gpu.before.name, set()).add(gpu.before.vbios)
    if not versions:
        return untested("no GPU says which VBIOS it has")
    text = "; ".join(f"{model}: {', '.join(sorted(found))}" for model, found in versions.items())
    most = max(len(found) for found in versions.values())
    if len(evidence.gpus) == 1:
        return Judgement(status=Status.NOT_APPLICABLE, evidence="there is one GPU")
    return by_limits(most, limits, text)


SAME_FIRMWARE = NodeCheck(
    id="site.same_firmware",
    title="All GPUs of a model have the same VBIOS",
    reads="nvmlDeviceGetVbiosVersion",
    source="our acceptance test, 2026",
    severity=Severity.CONFIG,
    action="UPDATE_SWFW: flash the VBIOS that the vendor names.",
    unit="versions",
    limits={"warn": above(1)},
    judge=_same_firmware,
)
