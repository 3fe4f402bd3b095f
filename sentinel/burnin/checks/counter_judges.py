"""Functions that judge the counters of a GPU: one value, its growth, or its growth over time.

A value that the GPU does not have makes a check not applicable, and one that could not be read or
compared leaves it not tested. Neither is ever a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sentinel.burnin.checks.check import (
    Evidence,
    Judgement,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.thresholds import Limits
from sentinel.protocol.counters import Counters

Judge = Callable[[Evidence, Limits], Judgement]

_BACKWARDS = "the driver was reloaded or the GPU was reset"


# --- one reading -----------------------------------------------------------------------------


def read(counters: Counters, field: str) -> Any:
    """Look up one value, or build the judgement of a check that lacks it."""
    if counters.lost is not None:
        return untested("the GPU could not be read")
    if field in counters.failed:
        return untested(f"{field} could not be read: {counters.failed[field]}")
    value = getattr(counters, field)
    return not_applicable() if value is None else value


def first_missing(values: Iterable[Any]) -> Judgement | None:
    """Find a judgement among values: one that was not tested before one that does not apply."""
    missing = [value for value in values if isinstance(value, Judgement)]
    return min(missing, key=lambda one: one.status is not Status.NOT_TESTED, default=None)


def total(*fields: str) -> Judge:
    """Judge the sum of numbers and flags by the limits; those that are missing are left out."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        values = {field: read(evidence.now, field) for field in fields}
        known = {field: one for field, one in values.items() if not isinstance(one, Judgement)}
        found = by_limits(sum(known.values()), limits, _nonzero(known))
        missing = first_missing(values.values())
        if missing is None or found.status in {Status.FAIL, Status.WARN}:
            return found
        if known and missing.status is Status.NOT_APPLICABLE:
            return found
        return missing

    return judge


def _nonzero(known: dict[str, Any]) -> str:
    return ", ".join(f"{field} = {int(value)}" for field, value in known.items() if value)


def distance(field: str, limit: str) -> Judge:
    """Judge by the limits how far a value is below another one."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        value, end = read(evidence.now, field), read(evidence.now, limit)
        missing = first_missing((value, end))
        if missing is not None:
            return missing
        return by_limits(end - value, limits, f"{field} = {value}, {limit} = {end}")

    return judge


def information(field: str, describe: Callable[[Any, Counters], str]) -> Judge:
    """Report a value that is no fault, with an explanation."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        del limits
        value = read(evidence.now, field)
        if isinstance(value, Judgement):
            return value
        text = describe(value, evidence.now)
        shown = int(value) if isinstance(value, bool) else value
        return Judgement(status=Status.PASS, value=shown, evidence=text)

    return judge


# --- the difference of two readings ----------------------------------------------------------


def growth(evidence: Evidence, field: str) -> Any:
    """Compute the growth of a counter, or build the judgement of a check that lacks it."""
    if evidence.after is None:
        return untested("it needs two readings")
    before, after = read(evidence.before, field), read(evidence.after, field)
    missing = first_missing((before, after))
    if missing is not None:
        return missing
    if after < before:
        return untested(f"{field} went backwards from {before:g} to {after:g}: {_BACKWARDS}")
    if "lifetime" not in field and _was_reset(evidence.before, evidence.after):
        return untested(_BACKWARDS)
    return after - before


def _was_reset(before: Counters, after: Counters) -> bool:
    """Check whether the counters began again between two readings."""
    if before.driver != after.driver:
        return True
    energies = before.energy_j, after.energy_j
    return None not in energies and energies[1] < energies[0]  # type: ignore[operator]


def grown(field: str) -> Judge:
    """Judge the growth of a counter by the limits."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        new = growth(evidence, field)
        return new if isinstance(new, Judgement) else by_limits(new, limits, _from(evidence, field))

    return judge


def _from(evidence: Evidence, field: str) -> str:
    before, after = getattr(evidence.before, field), getattr(evidence.after, field)
    return f"{field} from {before:g} to {after:g}"


def share(field: str, unless: str | None = None) -> Judge:
    """Judge by the limits the share of the time by which a counter of seconds grew.

    Args:
        field: The counter.
        unless: A more exact counter, which makes this one not applicable.
    """

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        if unless is not None and getattr(evidence.now, unless) is not None:
            return not_applicable(f"{unless} says more")
        new = growth(evidence, field)
        if isinstance(new, Judgement):
            return new
        if not evidence.seconds or evidence.seconds <= 0:
            return untested("the time between the readings is unknown")
        text = f"{new:g} s in {evidence.seconds:g} s"
        return by_limits(new / evidence.seconds, limits, text)

    return judge


def newly_set(*fields: str) -> Judge:
    """Judge by the limits how many flags were set between the readings."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        new = {field: growth(evidence, field) for field in fields}
        known = {field: one for field, one in new.items() if not isinstance(one, Judgement)}
        found = by_limits(sum(known.values()), limits, _nonzero(known))
        missing = first_missing(new.values())
        if missing is None or found.status is Status.FAIL:
            return found
        if known and missing.status is Status.NOT_APPLICABLE:
            return found
        return missing

    return judge
