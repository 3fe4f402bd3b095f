"""Compare a GPU with its own past: earlier runs of the same plan. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from sentinel.burnin.checks.catalogue import ACTIONS, Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Unjudged,
    by_action,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import NO_STEADY, LoadEvidence, steady_phases
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.operator_limits import explained_share, limited_by
from sentinel.burnin.checks.peer_checks import IN_MEMORY, is_compared, rates_of
from sentinel.burnin.former_runs import Former
from sentinel.burnin.record import GpuRecord, PhaseRecord

TABLE = Table()

#: A card is compared with so many earlier runs of its own or more, at a temperature that differs by
#: at most so many degrees Celsius.
MIN_RUNS = 3
SIMILAR_C = 5.0

_ON_THIS_CARD = " on this card, at this limit"


def comparable_runs(evidence: LoadEvidence) -> list[Former]:
    """Select the earlier runs at the same power limit and with the same VBIOS."""
    before = evidence.record.before
    state = before and (before.power_limit_w, before.vbios)
    return [run for run in evidence.former if (run.power_limit_w, run.vbios) == state]


def must_be_enough(runs: Sequence[object], like: str = "") -> None:
    """Check that there are earlier runs to compare with.

    Args:
        runs: The earlier runs, or one figure of each.
        like: What they have in common, for the reason.

    Raises:
        Unjudged: They are too few.
    """
    if len(runs) < MIN_RUNS:
        text = f"{len(runs)} earlier runs of this plan{like}; {MIN_RUNS} are needed"
        raise Unjudged(not_applicable(text))


def against_runs(measure: str, own: float, earlier: Sequence[float]) -> tuple[float, str]:
    """Divide a figure by the median of earlier runs; return the text of both as well."""
    usual = statistics.median(earlier)
    figures = (format_measure(measure, value) for value in (own, usual))
    return own / usual, f"; the median of {len(earlier)} runs is ".join(figures)


@TABLE.rule("history")
def _judge_history(evidence: LoadEvidence, limits: Limits, unit: str) -> Judgement:
    """Compare the rate of each phase with earlier runs: the worst decides."""
    measure, runs = f"{unit}_per_s", comparable_runs(evidence)
    known = [
        (phase, [run for run in runs if (phase.phase.name, measure) in run.medians])
        for phase in evidence.record.phases
        if is_compared(phase.phase, unit)
    ]
    must_be_enough(max((earlier for _, earlier in known), key=len, default=[]), _ON_THIS_CARD)
    if unit == "bytes" and evidence.now.is_simulated:
        return not_applicable(IN_MEMORY)
    found = [
        _judge_phase(evidence, phase, measure, earlier, limits)
        for phase, earlier in known
        if len(earlier) >= MIN_RUNS and phase.rates(unit)
    ]
    if not found:
        return untested(NO_STEADY if unit == "flops" else "no bandwidth counts")
    return min(found, key=lambda one: (one.status.rank, one.value or 0.0))


def _judge_phase(
    evidence: LoadEvidence, phase: PhaseRecord, measure: str, runs: list[Former], limits: Limits
) -> Judgement:
    """Compare the rate of a phase with earlier runs; products, if possible, with equally warm."""
    own, name = evidence.record, phase.phase.name
    if "fail_hotter" in limits:
        alike = [run for run in runs if _is_as_warm(own, run)]
        if len(alike) < MIN_RUNS:
            limits = {"fail": limits["fail_hotter"], "warn": limits["fail"]}
        else:
            runs = alike
    (rate,) = rates_of([phase], measure.removesuffix("_per_s"))
    share, text = against_runs(measure, rate, [run.medians[name, measure] for run in runs])
    judged = by_limits(round(share, 4), limits, f"{name}: {text}")
    clocks = [clock for run in runs if (clock := run.medians.get((name, "sm_clock_mhz")))]
    clock = statistics.median(clocks) if clocks else None
    limit = own.before.power_limit_w if own.before is not None else None
    left, lowest = explained_share(own, phase, clock, limit), limits.get("fail", limits["warn"])
    if judged.status is Status.PASS or left == 1.0 or share < left * lowest.value:
        return judged
    text = f"{judged.evidence}; {limited_by(own, phase)} explains it"
    return by_action(replace(judged, status=Status.WARN, evidence=text), ACTIONS["limited"])


def _is_as_warm(own: GpuRecord, run: Former) -> bool:
    """Check whether a GPU was about as warm in an earlier run, as far as it is known."""
    phases = steady_phases(own)
    warm = phases[-1].median("temperature_c") if phases else None
    return warm is None or run.temperature_c is None or abs(run.temperature_c - warm) <= SIMILAR_C


@TABLE.check("temperature.history")
def _temperature_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the temperature with earlier runs."""
    known = [run.temperature_c for run in comparable_runs(evidence)]
    earlier = [temperature for temperature in known if temperature is not None]
    must_be_enough(earlier)
    phases = steady_phases(evidence.record)
    own = phases[-1].median("temperature_c") if phases else None
    if own is None:
        return untested(NO_STEADY)
    usual = statistics.median(earlier)
    text = f"{own:g} C; the median of {len(earlier)} runs is {usual:g} C"
    return by_limits(round(own - usual, 4), limits, text)
