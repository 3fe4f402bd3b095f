"""The checks of what a GPU counted over a run; those of links are in ``link_checks``. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sentinel.burnin.checks import basis
from sentinel.burnin.checks.check import (
    Action,
    Judgement,
    Limits,
    Severity,
    Status,
    Table,
    Unjudged,
    above,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import REPAIRS_PENDING, RESET, GrowthEvidence, judge_sum

TABLE = Table()
check = TABLE.check


_new_error = TABLE.like(source=basis.XID_48, do=basis.ISOLATE_48, unit="errors", fail=above(0))
_throttled = TABLE.like(source=basis.TIMES, unit="of the time")


def _share(evidence: GrowthEvidence, limits: Limits, field: str, reason: str = "") -> Judgement:
    """Judge the share of the time by which a counter of seconds grew.

    Args:
        evidence: The GPU.
        limits: Of the share.
        field: The counter.
        reason: What readings call it, to say when it was; empty if they have no such name.
    """
    others = evidence.beside_others
    try:
        grown = evidence.growth(field)
    except Unjudged:
        if not reason:
            raise
        return _sampled(evidence, limits, reason)
    own = grown.least
    text = f"{own:g} s in {evidence.time}"
    if limits and others:
        own = max(own - others, min(own, evidence.throttled(reason)[0]))
    if own < grown.least:
        text += f", at least {own:.4g} s of them not beside others, who may have had the GPU"
        text += f" for {others:.4g} s"
    text = "; ".join(filter(None, (text, reason and evidence.seen(reason))))
    possible = evidence.per_second(grown.least, beside_others=True)
    found = evidence.judge_rate(evidence.per_second(own), possible, limits, text)
    if limits and reason and found.status is Status.PASS:
        sampled = _sampled(evidence, limits, reason)
        if sampled.status is Status.FAIL:
            return replace(
                sampled, status=Status.WARN, evidence=f"{sampled.evidence}, which grew: {text}"
            )
    return grown.judged(found)


#: Fewer readings of a slowdown are no fault (NVIDIA/NVSentinel, runbook gpu-power-brake).
_READINGS = 3


def _sampled(evidence: GrowthEvidence, limits: Limits, reason: str) -> Judgement:
    """Judge the share of the time by the readings under load, where no counter has it."""
    seconds, readings, total = evidence.throttled(reason)
    if not total:
        return untested("neither counters of the time nor readings under load are known")
    text = f"{readings} readings under load, for {seconds:,.0f} of {total:,.0f} s; no counter of it"
    text = "; ".join(filter(None, (text, evidence.seen(reason))))
    found = by_limits(seconds / total, limits, text)
    if found.status is Status.FAIL and readings < _READINGS:
        return replace(found, status=Status.WARN)
    return found


#: Counters that begin again with the driver, or after a reset.
_SINCE_LOADED = (
    *("energy_j", "pcie_replays_total", "ecc_corrected_total", "ecc_uncorrected_total"),
    *("power_throttled_s", "software_thermal_throttled_s", "hardware_thermal_throttled_s"),
)


@check(
    "gpu.reset",
    rule="not tested if a counter began again",
    source=basis.OWN,
    do=basis.NOTHING,
)
def _gpu_reset(evidence: GrowthEvidence, _: Limits) -> Judgement:
    """The GPU was not reset, and its driver was not reloaded.

    Reads the counters that begin again then, before and after each part of a run.
    """
    found = []
    for field in _SINCE_LOADED:
        with suppress(Unjudged):
            found.append(evidence.growth(field).unknown)
    resets = [one for one in found if one is not None and one.evidence.endswith(RESET)]
    if not found:
        return not_applicable()
    return resets[0] if resets else Judgement(status=Status.PASS, value="none")


@_new_error("ecc.uncorrected_new")
def _ecc_uncorrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No new uncorrectable errors.

    Reads nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE).
    """
    return evidence.judge_growth("ecc_uncorrected_total", limits)


@_new_error("ecc.uncorrected_lifetime_new")
def _ecc_uncorrected_lifetime_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No new uncorrectable errors in the card's own count.

    Reads nvmlDeviceGetTotalEccErrors(UNCORRECTED, AGGREGATE).
    """
    return evidence.judge_growth("ecc_uncorrected_lifetime_total", limits)


@check(
    "ecc.corrected_new",
    source=f"{basis.DCGM}: MAX_SBE_RATE",
    do=basis.WATCH,
    unit="errors",
    warn=above(10),
)
def _ecc_corrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Few new correctable errors.

    Reads nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE).
    """
    return evidence.judge_growth("ecc_corrected_total", limits)


@check(
    "ecc.corrected_lifetime_new",
    source=f"{basis.DCGM}: MAX_SBE_RATE",
    do=basis.WATCH,
    unit="errors",
    warn=above(10),
)
def _ecc_corrected_lifetime_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Few new correctable errors in the card's own counts.

    Reads nvmlDeviceGetTotalEccErrors(CORRECTED, AGGREGATE), nvmlDeviceGetSramEccErrorStatus.
    """
    fields = "ecc_corrected_lifetime_total", "sram_corrected_lifetime_total"
    return judge_sum(limits, evidence.known_growth, *fields)


@_new_error("memory.sram_uncorrected_new", source=f"{basis.XID_48}, 172")
def _memory_sram_uncorrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No new uncorrectable SRAM errors.

    Reads nvmlDeviceGetSramEccErrorStatus, aggregate.
    """
    return evidence.judge_growth("sram_uncorrected_lifetime_total", limits)


@check(
    "memory.remapped_uncorrected_new", source=basis.RMA, do=basis.RESET, unit="rows", fail=above(0)
)
def _memory_remapped_uncorrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No new remaps after uncorrectable errors.

    Reads nvmlDeviceGetRemappedRows.
    """
    return evidence.judge_growth("remapped_uncorrected_total", limits)


@check(
    "memory.remapped_corrected_new",
    source=basis.RMA,
    do=Action(
        Severity.MONITOR,
        "IGNORE: the remap is the designed repair; reset the GPU when it is convenient.",
    ),
    unit="rows",
    warn=above(0),
)
def _memory_remapped_corrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No new remaps after correctable errors.

    Reads nvmlDeviceGetRemappedRows.
    """
    return evidence.judge_growth("remapped_corrected_total", limits)


@check("memory.repair_new", source=basis.REPAIRS, do=basis.RESET, unit="flags", fail=above(0))
def _memory_repair_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No repair became necessary.

    Reads nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus,
    nvmlDeviceGetRepairStatus.
    """
    return judge_sum(limits, evidence.known_growth, *REPAIRS_PENDING)


@_throttled("throttle.hardware_thermal", do=basis.HOT, fail=above(0.01), warn=above(0))
def _throttle_hardware_thermal(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """The hardware did not slow down because of heat.

    Reads field 270, CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN.
    """
    return _share(evidence, limits, "hardware_thermal_throttled_s", "hw_thermal_slowdown")


@_throttled("throttle.power_brake", do=basis.POWER, fail=above(0.01), warn=above(0))
def _throttle_power_brake(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """The power brake was not applied.

    Reads field 271, CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN.
    """
    return _share(evidence, limits, "power_brake_throttled_s", "hw_power_brake_slowdown")


@_throttled("throttle.software_thermal", do=basis.HOT, fail=above(0.05), warn=above(0.005))
def _throttle_software_thermal(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """The driver did not slow down because of heat.

    Reads field 269, CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN.
    """
    return _share(evidence, limits, "software_thermal_throttled_s", "sw_thermal_slowdown")


@_throttled("throttle.thermal", do=basis.HOT, fail=above(0.05), warn=above(0.005))
def _throttle_thermal(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """No slowdown because of heat, on drivers that do not count their own slowdowns apart.

    Reads field 75, PERF_POLICY_THERMAL, or nvmlDeviceGetViolationStatus, on drivers without 269.
    """
    if evidence.now.software_thermal_throttled_s is not None:
        return not_applicable("software_thermal_throttled_s says more")
    return _share(evidence, limits, "thermal_throttled_s")


@_throttled(
    "throttle.power_cap", rule="information: normal under load", source=basis.OWN, do=basis.NOTHING
)
def _throttle_power_cap(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Time at the power limit.

    Reads field 74, PERF_POLICY_POWER, or nvmlDeviceGetViolationStatus.
    """
    return _share(evidence, limits, "power_throttled_s")
