"""The checks of a GPU's rate: against its peers and against references. Pure."""

from __future__ import annotations

import statistics

from sentinel.burnin.checks.check import (
    Check,
    Judgement,
    Severity,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_checks import (
    MIN_POWER_SHARE,
    NO_STEADY,
    RETEST,
    LoadEvidence,
    at_the_same_time,
    power_share,
    steady_phase,
)
from sentinel.burnin.checks.peers import (
    MIN_DEVIATION,
    MIN_PEERS,
    RATE_LIMITS,
    RATE_SOURCE,
    judge_rate,
    peers_of,
)
from sentinel.burnin.checks.thresholds import Limits, below
from sentinel.burnin.records.record import GpuRecord

#: A card is compared with so many earlier runs of its own or more, at a temperature that differs by
#: at most so many degrees Celsius.
MIN_RUNS = 3
SIMILAR_C = 5.0
#: Below this share of the default power limit, rates are not those of others.
SAME_LIMIT = 0.99


def rate_of(record: GpuRecord, workload: str, unit: str) -> float | None:
    """Compute the median rate of the stretches that count, per second.

    Args:
        record: The GPU.
        workload: That of the phase, with its options; the last phase with it counts.
        unit: ``flops`` or ``bytes``.
    """
    found = None
    for one in record.phases:
        if one.phase.workload == workload and (rates := one.rates(unit)):
            found = statistics.median(rates)
    return found


def _steady_rate(record: GpuRecord) -> float | None:
    """Compute the median rate of the last steady phase that counts."""
    phase = steady_phase(record)
    rates = phase.rates("flops") if phase is not None else []
    return statistics.median(rates) if rates else None


def _not_representative(record: GpuRecord) -> str | None:
    """Explain why the rate of a GPU must not be judged, or return None."""
    before = record.before
    if before is not None and before.power_limit_w and before.power_limit_default_w:
        limit = before.power_limit_w / before.power_limit_default_w
        if limit < SAME_LIMIT:
            return f"its power limit is {limit:.0%} of the default"
    share = power_share(record)
    if share is not None and share < MIN_POWER_SHARE:
        return f"the load reached only {share:.0%} of the power limit"
    return None


def _peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    own = _steady_rate(evidence.record)
    peers = peers_of(map(_steady_rate, at_the_same_time(evidence)), MIN_DEVIATION)
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs of this model ran at the same time")
    unfit = _not_representative(evidence.record)
    if own is None or unfit is not None:
        return untested(unfit or NO_STEADY)
    return judge_rate(own, peers, limits, _explained(evidence))


def _explained(evidence: LoadEvidence) -> str:
    """Name what explains a lower rate: a lower power limit, or a lower maximum clock."""
    own = evidence.record.before
    others = [one.before for one in evidence.peers if one.before is not None]
    if own is None or not others:
        return ""
    for name, text in (
        ("power_limit_w", "its power limit is lower"),
        ("sm_clock_maximum_mhz", "its maximum clock is lower"),
    ):
        value = getattr(own, name)
        known = [figure for one in others if (figure := getattr(one, name)) is not None]
        if value is not None and known and value < statistics.median(known):
            return text
    return ""


def _reference(evidence: LoadEvidence, limits: Limits) -> Judgement:
    if not evidence.references:
        why = f"there is no reference for {evidence.model}"
        return not_applicable(why)
    unfit = _not_representative(evidence.record)
    if unfit is not None:
        return untested(unfit)
    shares, texts = [], []
    for one in evidence.references:
        unit = "flops" if one.unit == "TFLOP/s" else "bytes"
        rate = rate_of(evidence.record, one.workload, unit)
        if rate is not None:
            shares.append(rate / 1e12 / one.median)
            texts.append(
                f"{one.workload}: {rate / 1e12:.1f} of {one.median:g} {one.unit} ({one.source})"
            )
    value = min(shares, default=None)
    if value is None:
        return untested("no rate counts")
    return by_limits(round(value, 4), limits, "; ".join(texts))


# --- the table -------------------------------------------------------------------------------


def _history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    phase = steady_phase(record)
    temperature = phase.median("temperature_c") if phase is not None else None
    comparable = [
        one
        for one in evidence.former
        if (
            temperature is None
            or one.temperature_c is None
            or abs(one.temperature_c - temperature) <= SIMILAR_C
        )
        and record.before is not None
        and (one.power_limit_w, one.vbios) == (record.before.power_limit_w, record.before.vbios)
    ]
    if len(comparable) < MIN_RUNS:
        return not_applicable(
            f"{len(comparable)} earlier runs of this plan on this card, at this limit and a like"
            f" temperature;"
            f" {MIN_RUNS} are needed"
        )
    own, unfit = _steady_rate(record), _not_representative(record)
    if own is None or unfit is not None:
        return untested(unfit or NO_STEADY)
    median = statistics.median(one.rate for one in comparable)
    text = f"{own / 1e12:.1f} TFLOP/s; the median of {len(comparable)} runs is {median:.1f}"
    return by_limits(round(own / 1e12 / median, 4), limits, text)


CHECKS: tuple[Check[LoadEvidence], ...] = (
    Check(
        id="rate.peers",
        limits=RATE_LIMITS,
        title="The GPU is as fast as its peers",
        reads="the median rate of the steady phase",
        unit="of the median",
        source=RATE_SOURCE,
        severity=Severity.TRIAGE,
        action=f"TRIAGE: compare power, temperature and clocks. {RETEST}",
        judge=_peers,
    ),
    Check(
        id="rate.history",
        limits={"fail": below(0.95), "warn": below(0.97)},
        title="The GPU is as fast as it was",
        reads="the median rate of the steady phase against earlier runs",
        unit="of the median",
        source="SuperBench: 5 %; the warning is own",
        severity=Severity.TRIAGE,
        action=f"TRIAGE: compare power, temperature and clocks with the earlier runs. {RETEST}",
        judge=_history,
    ),
    Check(
        id="rate.reference",
        limits={"fail": below(0.75)},
        title="The GPU is as fast as others of its model",
        reads="the median rates against sentinel/burnin/checks/references.toml",
        unit="of the median",
        source="DCGM's rule: 0.75 of the measured rate",
        severity=Severity.TRIAGE,
        action=f"TRIAGE: compare power, temperature and clocks. {RETEST}",
        judge=_reference,
    ),
)
