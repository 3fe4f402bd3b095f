"""The checks of what a GPU did under load: results, rate, power, temperature, links. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.burnin.checks.check import (
    Check,
    Judgement,
    Severity,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.peers import MIN_PEERS, TEMPERATURE_LIMITS, judge_temperature, peers_of
from sentinel.burnin.checks.references import Reference
from sentinel.burnin.checks.thresholds import Limits, above, at_most, below
from sentinel.burnin.records.history import Former
from sentinel.burnin.records.record import GpuRecord, PhaseRecord
from sentinel.core.node.burnin import FAULTY
from sentinel.protocol.stressor import FindingPlace

#: Below this share of the power limit a load is not representative (DCGM targeted_power).
MIN_POWER_SHARE = 0.75

RETEST = "Run it again on an otherwise idle node; if it fails again, return the GPU."


@dataclass(frozen=True, kw_only=True)
class LoadEvidence:
    """What the checks of one GPU's load may use."""

    record: GpuRecord
    #: All GPUs of the run that are of the same model.
    peers: Sequence[GpuRecord] = ()
    references: Sequence[Reference] = ()
    #: Earlier runs of the same plan on this card, with the same driver.
    former: Sequence[Former] = ()
    #: The model's name, for messages.
    model: str = ""
    #: How many GPUs the node has.
    node_gpus: int = 0


def _judge(value: float | None, limits: Limits, missing: str, evidence: str = "") -> Judgement:
    """Judge a number by its limits; without one, nothing was tested."""
    if value is None:
        return untested(missing)
    return by_limits(round(value, 4), limits, evidence)


# --- results ---------------------------------------------------------------------------------


def wrong_results(record: GpuRecord) -> int:
    """Count the wrong results of a GPU, without differences from golden checksums."""
    # A lost event must not hide an error, and a phase does not count those of its stressor's end.
    reported = sum(int(one["errors"]) for one in record.named("stressor.mismatch"))
    wrong = max(reported, sum(int(phase.work.get("errors", 0)) for phase in record.phases))
    found = record.named("stressor.finding")
    if found and all(_is_golden(one) for one in found):
        # Each counts as one error, although the GPU that was first may be the faulty one.
        wrong = max(0, wrong - len(found))
    return wrong


def _wrong_results(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    wrong = wrong_results(record)
    checks = sum(int(phase.work.get("checks", 0)) for phase in record.phases)
    power = f"less than {3 / checks:.1e} wrong results per check at 95 %" if checks else ""
    text = f"{checks:,} results checked" + (f"; {power}" if checks and not wrong else "")
    value = wrong if checks or wrong else None
    return _judge(value, limits, "no result was checked", text)


def _findings(evidence: LoadEvidence, limits: Limits) -> Judgement:
    found = [one for one in evidence.record.named("stressor.finding") if not _is_golden(one)]
    places = ", ".join(sorted({str(one["place"]) for one in found}))
    text = f"wrong: {places}; first: {found[0]['detail'] or found[0]['workload']}" if found else ""
    checks = sum(int(phase.work.get("checks", 0)) for phase in evidence.record.phases)
    value = len(found) if checks or found else None
    return _judge(value, limits, "no result was checked", text)


def _is_golden(finding: Mapping[str, Any]) -> bool:
    """Check whether a finding is a difference between GPUs, which ``golden_checks`` judge."""
    return bool(finding["place"] == FindingPlace.GOLDEN)


def _hang(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    hangs = [
        one
        for one in record.named("stressor.failed", "stressor.fatal")
        if one.get("kind") == "hang"
    ]
    unread = record.ended or ""
    text = hangs[0]["reason"] if hangs else ""
    count = len(hangs)
    if unread.startswith(FAULTY):
        count, text = count + 2, unread
    ran = any(phase.began is not None for phase in record.phases)
    return _judge(count if ran else None, limits, "nothing was run", text)


# --- temperature, power, clocks --------------------------------------------------------------


def _highest(record: GpuRecord, name: str) -> float | None:
    values = [sample.values[name] for sample in record.telemetry if sample.values.get(name)]
    return float(max(values)) if values else None


def _gpu_temperature(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    hottest = _highest(record, "temperature_c")
    limit = record.before.maximum_c or record.before.slowdown_c if record.before else None
    if limit is None:
        return not_applicable("no limit is declared")
    value = None if hottest is None else hottest - limit
    text = "" if hottest is None else f"{hottest:g} C at most; the GPU declares {limit} C"
    return _judge(value, limits, "no temperature was read", text)


def _memory_temperature(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    hottest = _highest(record, "memory_temperature_c")
    limit = record.before.memory_maximum_c if record.before else None
    if limit is None or hottest is None:
        return not_applicable("not reported")
    text = f"{hottest:g} C at most; the GPU declares {limit} C"
    return _judge(hottest - limit, limits, "", text)


def steady_phase(record: GpuRecord) -> PhaseRecord | None:
    """Find the last steady phase with samples that count."""
    phases = [one for one in record.phases if one.phase.steady and one.judged(one.telemetry)]
    return phases[-1] if phases else None


NO_STEADY = "no stretch of a steady phase counts"


def _temperature_spread(evidence: LoadEvidence, limits: Limits) -> Judgement:
    own = _temperature(evidence.record)
    peers = peers_of(map(_temperature, at_the_same_time(evidence)))
    if own is None or peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs to compare with")
    return judge_temperature(own, peers, limits)


def at_the_same_time(evidence: LoadEvidence) -> list[GpuRecord]:
    """Select the peers whose last steady stretch covers at least half of this GPU's, itself too."""
    own = steady_phase(evidence.record)
    if own is None:
        return []
    begin, end = own.stretches[-1]
    found = []
    for one in evidence.peers:
        other = steady_phase(one)
        if other is not None:
            first, last = other.stretches[-1]
            common = min(end, last) - max(begin, first)
            if common >= (end - begin) / 2:
                found.append(one)
    return found


def _temperature(record: GpuRecord) -> float | None:
    phase = steady_phase(record)
    return None if phase is None else phase.median("temperature_c")


def _power_reached(evidence: LoadEvidence, limits: Limits) -> Judgement:
    share = power_share(evidence.record)
    text = ""
    if share is not None:
        text = f"{share:.0%} of the enforced limit in the steady phase"
    return _judge(share, limits, NO_STEADY, text)


def power_share(record: GpuRecord) -> float | None:
    """Compute the median power of the steady phase as a share of the enforced limit."""
    phase = steady_phase(record)
    if phase is None:
        return None
    power, limit = phase.median("power_w"), phase.median("power_limit_w")
    return power / limit if power is not None and limit else None


def _memory_clock(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record, phase = evidence.record, steady_phase(evidence.record)
    maximum = record.before.memory_clock_maximum_mhz if record.before else None
    clock = phase.median("memory_clock_mhz") if phase is not None else None
    if maximum is None:
        return not_applicable("not reported")
    value = None if clock is None else clock / maximum
    text = "" if clock is None else f"{clock:g} of {maximum} MHz under load"
    return _judge(value, limits, NO_STEADY, text)


def _pcie(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record, phase = evidence.record, steady_phase(evidence.record)
    before = record.before
    if before is None or not before.pcie_generation_maximum or not before.pcie_width_maximum:
        return not_applicable("not reported")
    generation = phase.median("pcie_generation") if phase is not None else None
    width = phase.median("pcie_width") if phase is not None else None
    value, text = None, ""
    if generation is not None and width is not None:
        most = before.pcie_generation_maximum, before.pcie_width_maximum
        value = min(generation / most[0], width / most[1])
        text = f"gen {generation:g} x{width:g} under load; gen {most[0]} x{most[1]} is possible"
    return _judge(value, limits, NO_STEADY, text)


# --- the table -------------------------------------------------------------------------------


def _failures(evidence: LoadEvidence, limits: Limits) -> Judgement:
    failed = [
        one
        for one in evidence.record.named("stressor.failed", "stressor.fatal")
        if one.get("kind") in {"crash", "workload", "stuck", "returned", "garbage"}
    ]
    text = f"{failed[0]['kind']}: {failed[0]['reason']}" if failed else ""
    return by_limits(len(failed), limits, text)


def _margin(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    found = [
        sample.values["temperature_margin_c"]
        for sample in record.telemetry
        if sample.values.get("temperature_margin_c") is not None
    ]
    if not found:
        return not_applicable("no margin is reported")
    offset = (record.before.slowdown_margin_c if record.before else None) or 0
    text = f"{min(found)} C at least; it slows down at {offset} C"
    return by_limits(min(found) - offset, limits, text)


def _memory_covered(evidence: LoadEvidence, limits: Limits) -> Judgement:
    tests = [phase.work for phase in evidence.record.phases if phase.phase.passes]
    # While a stripe is held, the other patterns cover the rest only, by design.
    whole = [work for work in tests if work.get("retained") is None] or tests
    shares = [float(work["share"]) for work in whole if work.get("share") is not None]
    if not any(phase.phase.passes for phase in evidence.record.phases):
        return not_applicable("the plan has no memory test")
    value = min(shares, default=None)
    return _judge(value, limits, "no pattern has covered the memory")


CHECKS: tuple[Check[LoadEvidence], ...] = (
    Check(
        id="stressor.failures",
        limits={"warn": above(0)},
        title="The stressors do not fail",
        reads="the exits of the stressors",
        source="own: a fault of the GPU may look like one of the workload",
        severity=Severity.MONITOR,
        action="TRIAGE: read the reason; look for XIDs and errors of the memory at that time.",
        judge=_failures,
    ),
    Check(
        id="load.margin",
        limits={"fail": at_most(0), "warn": below(5)},
        title="The GPU stays away from its slowdown",
        reads="nvmlDeviceGetMarginTemperature, field 194",
        unit="C left",
        source="NVIDIA/NVSentinel, runbook gpu-thermal-margin; the warning is own",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: check airflow, heat sink and inlet temperature.",
        judge=_margin,
    ),
    Check(
        id="memory.covered",
        limits={"warn": below(0.75)},
        title="The memory test covers most of the memory",
        reads="the reports of the memory test",
        unit="of the memory",
        source="own: 88 % of the free memory are 0.8 and more",
        severity=Severity.CONFIG,
        action="CONFIG: free the memory, or raise --memory.",
        judge=_memory_covered,
    ),
    Check(
        id="results.wrong",
        limits={"fail": above(0)},
        title="Every result that was checked is right, bit for bit",
        reads="the stressors' own comparison on the GPU",
        source="own; engineering.fb.com on silent data corruption, 2022",
        severity=Severity.ISOLATE,
        action=f"TRIAGE: a wrong result that is not repeated is a fault, too. {RETEST}",
        judge=_wrong_results,
    ),
    Check(
        id="results.finding",
        limits={"fail": above(0)},
        title="No evidence of wrong results, inputs, references or memory",
        reads="the stressors' findings",
        source="own; cuda_memtest",
        severity=Severity.ISOLATE,
        action=f"TRIAGE: the findings name the bits and the place. {RETEST}",
        judge=_findings,
    ),
    Check(
        id="gpu.hang",
        limits={"fail": above(1), "warn": above(0)},
        title="The GPU answers and makes progress",
        reads="progress of the stressors, calls of the driver",
        source="own: 30 s without progress twice, or 60 s without a reading; a single hang may be"
        " the host's",
        severity=Severity.RESET,
        action="RESET_GPU: reset the GPU or reboot the node, then run it again.",
        judge=_hang,
    ),
    Check(
        id="load.temperature",
        limits={"fail": above(0), "warn": above(-3)},
        title="The GPU stays below the temperature that it declares",
        reads="nvmlDeviceGetTemperature, nvmlDeviceGetTemperatureThreshold",
        unit="C above the limit",
        source="NVML's own threshold; the warning is own",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: check airflow, heat sink and inlet temperature.",
        judge=_gpu_temperature,
    ),
    Check(
        id="load.memory_temperature",
        limits={"fail": above(0), "warn": above(-5)},
        title="The memory stays below the temperature that the GPU declares",
        reads="field NVML_FI_DEV_MEMORY_TEMP",
        unit="C above the limit",
        source="NVML's own threshold; the warning is own",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: check airflow and heat sink.",
        judge=_memory_temperature,
    ),
    Check(
        id="load.temperature_spread",
        limits=TEMPERATURE_LIMITS,
        title="No GPU is much hotter than its peers",
        reads="the median temperature of the steady phase",
        unit="C above the median",
        source="own",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: compare its airflow and heat sink with those of the others.",
        judge=_temperature_spread,
    ),
    Check(
        id="load.power",
        limits={"warn": below(MIN_POWER_SHARE)},
        title="The load reaches the power limit",
        reads="the median power of the steady phase against the enforced limit",
        unit="of the limit",
        source="DCGM targeted_power: 0.75",
        severity=Severity.MONITOR,
        action="CONFIG: below this the load is not representative, and no rate is judged.",
        judge=_power_reached,
    ),
    Check(
        id="load.memory_clock",
        limits={"fail": below(0.8), "warn": below(0.95)},
        title="The memory clock is at its maximum under load",
        reads="nvmlDeviceGetClockInfo",
        unit="of the maximum",
        source="own; lenient, since some cards compute below their maximum",
        severity=Severity.TRIAGE,
        action="CONFIG: look for a locked memory clock; else return the GPU.",
        judge=_memory_clock,
    ),
    Check(
        id="load.pcie",
        limits={"fail": below(1)},
        title="The PCIe link has its full generation and width under load",
        reads="nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkWidth",
        unit="of the maximum",
        source="own; an idle link is no evidence",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: reseat the GPU, check risers and the slot's setting.",
        judge=_pcie,
    ),
)
