"""The checks of what a GPU counted over a run; those of links are in ``link_checks``. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Unjudged,
    by_limits,
    not_applicable,
    unless_more,
    untested,
)
from sentinel.burnin.checks.evidence import RESET, GrowthEvidence, judge_sum
from sentinel.protocol.views import UNCORRECTABLE, FaultKind

TABLE = Table()

#: Fewer readings of a slowdown are no fault (NVIDIA/NVSentinel, runbook gpu-power-brake).
_READINGS = 3
#: Counters that begin again with the driver, or after a reset.
_SINCE_LOADED = (
    *("energy_j", "pcie_replays_total", "ecc_corrected_total", "ecc_uncorrected_total"),
    *("power_throttled_s", "software_thermal_throttled_s", "hardware_thermal_throttled_s"),
    *("thermal_throttled_s", "power_brake_throttled_s"),
)
#: Modes that only a reset changes.
_MODES = {"ecc": "ECC", "mig": "MIG"}


@TABLE.rule("grown")
def _grown(evidence: GrowthEvidence, limits: Limits, field: str) -> Judgement:
    """Judge the growth of a counter."""
    grown = evidence.growth(field)
    return grown.judged(by_limits(grown.least, limits, grown.text))


@TABLE.rule("sum_grown")
def _sum_grown(evidence: GrowthEvidence, limits: Limits, *fields: str) -> Judgement:
    """Judge the growth of counters and flags together."""
    unknown = []

    def read_one(field: str) -> float:
        grown = evidence.growth(field)
        if grown.unknown is not None:
            unknown.append(grown.unknown)
        return grown.least

    return unless_more(judge_sum(limits, read_one, *fields), next(iter(unknown), None))


@TABLE.check("ecc.uncorrected_new")
def _uncorrected_new(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Judge the growth of the uncorrectable errors, also of those that are not counted any more."""
    name = "ecc_uncorrected_total"
    known = evidence.readings[-1].ecc_uncorrected_total if evidence.readings else None
    shown = evidence.withdrawn(FaultKind.UNCORRECTABLE, UNCORRECTABLE.format(known))
    try:
        found = _grown(evidence, limits, name)
    except Unjudged as unjudged:
        found = unjudged.judgement
    if not shown or found.status is Status.FAIL:
        return found
    return by_limits(len(shown), limits, "; ".join(shown))


@TABLE.rule("throttled")
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
        return _sampled(evidence, limits, reason, "no counter of it")
    own = grown.least
    text = f"{own:g} s in {evidence.time}"
    if limits and others:
        own = max(own - others, min(own, evidence.throttled(reason)[0][0]))
    if own < grown.least:
        text += f", at least {own:.4g} s of them not beside others, who may have had the GPU"
        text += f" for {others:.4g} s"
    text = "; ".join(filter(None, (text, reason and evidence.seen(reason))))
    possible = evidence.per_second(grown.least, beside_others=True)
    found = evidence.judge_rate(evidence.per_second(own), possible, limits, text)
    if limits and reason and found.status in {Status.PASS, Status.WARN}:
        counted = f"its counter has {grown.least:g} s in {evidence.time}"
        sampled = _sampled(evidence, limits, reason, counted)
        if sampled.status is Status.FAIL:
            # A counter that has grown does not say in which phase; one that has not contradicts.
            status = Status.WARN if found.status is Status.PASS else Status.FAIL
            found = replace(sampled, status=status)
    return grown.judged(found)


def _sampled(evidence: GrowthEvidence, limits: Limits, reason: str, counted: str) -> Judgement:
    """Judge the share of the time by the readings under load.

    Of the whole run and of each steady phase, the worst decides.

    Args:
        evidence: The GPU.
        limits: Of the share.
        reason: What readings call it.
        counted: What its counter says.
    """
    parts = [part for part in evidence.throttled(reason) if part[2]]
    if not parts:
        return untested("neither counters of the time nor readings under load are known")
    seconds, readings, total = max(parts, key=lambda part: part[0] / part[2])
    text = f"{readings} readings under load, for {seconds:,.0f} of {total:,.0f} s; {counted}"
    text = "; ".join(filter(None, (text, evidence.seen(reason))))
    found = by_limits(seconds / total, limits, text)
    if found.status is Status.FAIL and readings < _READINGS:
        return replace(found, status=Status.WARN)
    return found


@TABLE.check("gpu.reset")
def _gpu_reset(evidence: GrowthEvidence, _: Limits) -> Judgement:
    """Judge whether a counter of the GPU began again, or a mode changed that needs a reset."""
    for mode, what in _MODES.items():
        if {True, False} <= {getattr(one, mode) for one in evidence.readings}:
            return untested(f"{what} was on and off: {RESET}")
    found = []
    for field in _SINCE_LOADED:
        with suppress(Unjudged):
            found.append(evidence.growth(field).unknown)
    found += [_began_again(evidence, "ecc_corrected_total")] if found else []
    resets = [one for one in found if one is not None and one.evidence.endswith(RESET)]
    if not found:
        return not_applicable()
    return resets[0] if resets else Judgement(status=Status.PASS, value="none")


def _began_again(evidence: GrowthEvidence, name: str) -> Judgement | None:
    """Find a counter that went backwards from one reading to the next, within a part of the run."""
    begins = [begin.at for begin, _, _ in evidence.parts if begin is not None]
    for (at, before), (end, after) in pairwise(evidence.curve(name)):
        if after < before and not any(at < begin <= end for begin in begins):
            return untested(f"{name} went backwards from {before:g} to {after:g}: {RESET}")
    return None


@TABLE.check("throttle.thermal")
def _throttle_thermal(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Judge the thermal slowdowns of a driver without a counter of its own ones."""
    if evidence.now.software_thermal_throttled_s is not None:
        return not_applicable("software_thermal_throttled_s says more")
    return _share(evidence, limits, "thermal_throttled_s")
