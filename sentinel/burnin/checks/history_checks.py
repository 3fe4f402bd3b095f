"""Compare a GPU with its own past: earlier runs of the same plan. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Unjudged,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import NO_STEADY, LoadEvidence, steady_phases
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.peer_checks import IN_MEMORY, compared_phases, rates_of
from sentinel.burnin.former_runs import Former

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


@TABLE.check("bandwidth.history")
def _bandwidth_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the bandwidth of the memory with earlier runs."""
    rates = [run.copy * 1e12 for run in comparable_runs(evidence) if run.copy is not None]
    must_be_enough(rates, _ON_THIS_CARD)
    if evidence.now.is_simulated:
        return not_applicable(IN_MEMORY)
    own = rates_of(compared_phases(evidence.record, "bytes"), "bytes")
    if not own:
        return untested("no bandwidth counts")
    share, text = against_runs("bytes_per_s", min(own), rates)
    return by_limits(round(share, 4), limits, text)


@TABLE.check("rate.history")
def _rate_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the rate with earlier runs."""
    phases = steady_phases(evidence.record)
    warm = phases[-1].median("temperature_c") if phases else None
    runs = comparable_runs(evidence)
    alike = [
        run
        for run in runs
        if warm is None or run.temperature_c is None or abs(run.temperature_c - warm) <= SIMILAR_C
    ]
    must_be_enough(runs, _ON_THIS_CARD)
    rates = rates_of(phases, "flops")
    if not rates:
        return untested(NO_STEADY)
    if len(alike) < MIN_RUNS:
        alike, limits = runs, {"fail": limits["fail_hotter"], "warn": limits["fail"]}
    share, text = against_runs("flops_per_s", min(rates), [run.rate * 1e12 for run in alike])
    return by_limits(round(share, 4), limits, text)


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
