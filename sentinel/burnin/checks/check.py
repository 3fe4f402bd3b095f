"""The types of all checks: limits, what is judged by them, the result, and what to do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Generic, TypeVar

#: A value of a check; None if there is none.
Value = float | int | str | None
E = TypeVar("E")

# --- limits ----------------------------------------------------------------------------------


class Comparison(StrEnum):
    """How a value breaks a limit, in DCGM's words."""

    GT = "GT"
    GTE = "GTE"
    LT = "LT"
    LTE = "LTE"

    @property
    def sign(self) -> str:
        """The sign of the comparison: ``>=``."""
        return _OPERATORS[self][0]

    @property
    def breaks(self) -> Callable[[float, float], bool]:
        """Compares a value with the number of a limit."""
        return _OPERATORS[self][1]


#: The sign of each comparison, and its function.
_OPERATORS: Mapping[Comparison, tuple[str, Callable[[float, float], bool]]] = {
    Comparison.GT: (">", operator.gt),
    Comparison.GTE: (">=", operator.ge),
    Comparison.LT: ("<", operator.lt),
    Comparison.LTE: ("<=", operator.le),
}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A number, and how a value breaks it."""

    comparison: Comparison
    value: float
    #: The file that replaced the default, or empty.
    origin: str = ""

    def broken_by(self, value: float) -> bool:
        """Compare a value with the limit."""
        return self.comparison.breaks(value, self.value)

    def __str__(self) -> str:
        return f"{self.comparison.sign} {self.value:g}"


def above(value: float) -> Limit:
    """Build a limit that greater values break."""
    return Limit(comparison=Comparison.GT, value=value)


def at_least(value: float) -> Limit:
    """Build a limit that equal and greater values break."""
    return Limit(comparison=Comparison.GTE, value=value)


def below(value: float) -> Limit:
    """Build a limit that smaller values break."""
    return Limit(comparison=Comparison.LT, value=value)


def at_most(value: float) -> Limit:
    """Build a limit that equal and smaller values break."""
    return Limit(comparison=Comparison.LTE, value=value)


#: The limits of one check by name: ``fail`` and ``warn``, which ``by_limits`` applies, and others.
Limits = Mapping[str, Limit]


def describe(limits: Limits) -> str:
    """Describe limits in one line: ``fail > 80, warn > 8``."""
    return ", ".join(f"{name} {limit}" for name, limit in limits.items())


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a file replaces; nothing by default."""

    #: By the id of the check and the name of the limit.
    replaced: Mapping[str, Limits] = field(default_factory=dict)
    #: The verdicts of XIDs by number.
    xids: Mapping[int, str] = field(default_factory=dict)
    #: Where they are from, such as the path of the file.
    origin: str = ""
    #: What hides that a result was wrong or a card is broken, by the name of the limit or the XID.
    excused: Mapping[str, str] = field(default_factory=dict)

    @property
    def why_unproved(self) -> str | None:
        """Why nothing that is judged by them proves a GPU correct, or None."""
        found = ", ".join(f"{name} is {text}" for name, text in self.excused.items())
        return f"judged without a limit of correctness: {found} ({self.origin})" if found else None

    def of(self, check: str, defaults: Limits) -> Limits:
        """Build the limits in force for a check."""
        return {**defaults, **self.replaced[check]} if check in self.replaced else defaults

    def source_of(self, check: str, default: str) -> str:
        """Name the source of a check's limits: the file if it replaced one of them."""
        return self.origin if check in self.replaced else default

    def only(self, checks: Collection[str], *, xids: bool) -> Thresholds:
        """Keep what concerns these checks, and the XIDs or not."""
        kept = {check: limits for check, limits in self.replaced.items() if check in checks}
        excused = {
            name: text
            for name, text in self.excused.items()
            if name.rpartition(".")[0] in {*checks, *(("xid",) if xids else ())}
        }
        return replace(self, replaced=kept, xids=self.xids if xids else {}, excused=excused)

    def overridden(self) -> dict[str, str]:
        """List the replaced limits and XIDs, for a report."""
        found = {
            f"{check}.{name}": str(limit)
            for check, limits in self.replaced.items()
            for name, limit in limits.items()
        }
        return found | {f"xid.{number}": verdict for number, verdict in self.xids.items()}


# --- checks and their results ----------------------------------------------------------------


class Status(StrEnum):
    """The result of a check, the worst first."""

    FAIL = "fail"
    WARN = "warn"
    #: The value could not be read or compared, which proves nothing.
    NOT_TESTED = "not tested"
    PASS = "pass"  # noqa: S105 - not a password
    #: The GPU, its driver or the binding does not have what is checked.
    NOT_APPLICABLE = "n/a"

    @property
    def rank(self) -> int:
        """The place of the status, the worst first."""
        return list(Status).index(self)

    @property
    def has_judged(self) -> bool:
        """Whether a value was judged."""
        return self not in {Status.NOT_TESTED, Status.NOT_APPLICABLE}


class Severity(StrEnum):
    """What a fault means for the use of the GPU, in DCGM's words (dcgm_errors.h)."""

    NONE = "none"
    MONITOR = "monitor"
    ISOLATE = "isolate"
    UNKNOWN = "unknown"
    TRIAGE = "triage"
    CONFIG = "config"
    RESET = "reset"


@dataclass(frozen=True)
class Action:
    """What to do about a fault, and what the fault means for the use of the GPU."""

    severity: Severity
    #: NVIDIA's bucket and a sentence.
    text: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the function of a check found; the check adds what is constant."""

    status: Status
    value: Value = None
    #: What the value was computed from, or why it could not be judged.
    evidence: str = ""
    #: The limit that was applied, for people; None for all limits of the check.
    threshold: str | None = None
    #: What to do, its severity and the source, if they depend on the value; None for the check's.
    action: str | None = None
    severity: Severity | None = None
    source: str | None = None
    #: Why a warning may be more than that; empty if everything was known.
    unread: str = ""


class Unjudged(Exception):  # noqa: N818 - no error: the judgement is the result
    """Ends the function of a check that cannot judge."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.evidence)
        self.judgement = judgement


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check of one GPU."""

    id: str
    status: Status
    value: Value
    unit: str
    threshold: str
    #: Where the threshold is from.
    source: str
    severity: Severity
    #: NVIDIA's bucket and a sentence.
    action: str
    evidence: str = ""
    #: Why a warning may be more than that; empty if everything was known.
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[E]):
    """One check as data.

    ``E`` is what it judges: the evidence of a GPU, or that of a node.
    """

    id: str
    title: str
    #: The call of NVML, or another origin of the value.
    reads: str
    source: str
    severity: Severity
    #: NVIDIA's bucket and a sentence.
    action: str
    #: Judges the evidence by the limits of this check that are in force.
    judge: Callable[[E, Limits], Judgement]
    limits: Limits = field(default_factory=dict)
    #: The rule in words, for a check whose limits do not say it all; ``{limits}`` stands for them.
    rule: str = ""
    unit: str = ""

    def threshold(self, limits: Limits) -> str:
        """Describe the rule with these limits."""
        if "{limits}" in self.rule:
            return self.rule.replace("{limits}", describe(limits))
        return "; ".join(text for text in (self.rule, describe(limits)) if text)

    @cached_property
    def default_threshold(self) -> str:
        """The rule with the default limits."""
        return self.threshold(self.limits)

    def run(self, evidence: E, thresholds: Thresholds) -> CheckResult:
        """Judge the evidence."""
        limits = thresholds.of(self.id, self.limits)
        try:
            found = self.judge(evidence, limits)
        except Unjudged as unjudged:
            found = unjudged.judgement
        return self.result(found, thresholds)

    def result(self, found: Judgement, thresholds: Thresholds = Thresholds()) -> CheckResult:
        """Add to a judgement what is constant."""
        limits = thresholds.of(self.id, self.limits)
        bad = found.status in {Status.FAIL, Status.WARN}
        same = limits is self.limits
        threshold = self.default_threshold if same else self.threshold(limits)
        return CheckResult(
            id=self.id,
            status=found.status,
            value=found.value,
            unit=self.unit,
            threshold=threshold if found.threshold is None else found.threshold,
            source=found.source or thresholds.source_of(self.id, self.source),
            severity=(found.severity or self.severity) if bad else Severity.NONE,
            action=(self.action if found.action is None else found.action) if bad else "",
            evidence=found.evidence,
            unread=found.unread,
        )


def by_limits(value: float, limits: Limits, evidence: str = "") -> Judgement:
    """Judge a number by the limits ``fail`` and ``warn``, as far as there are such."""
    status = Status.PASS
    for name, bad in (("warn", Status.WARN), ("fail", Status.FAIL)):
        if name in limits and limits[name].broken_by(value):
            status = bad
    return Judgement(status=status, value=value, evidence=evidence)


def by_action(found: Judgement, do: Action) -> Judgement:
    """Replace what to do about a fault, and its severity."""
    return replace(found, action=do.text, severity=do.severity)


def untested(why: str) -> Judgement:
    """Build the judgement of a value that could not be read or compared."""
    return Judgement(status=Status.NOT_TESTED, evidence=why)


def not_applicable(why: str = "not supported by this GPU, its driver or the binding") -> Judgement:
    """Build the judgement of a value that does not exist."""
    return Judgement(status=Status.NOT_APPLICABLE, evidence=why)


def unless_more(found: Judgement, unknown: Judgement | None) -> Judgement:
    """Return what was found, unless it may be more: then it is no PASS, and a warning says so."""
    if unknown is None or found.status is Status.FAIL:
        return found
    return unknown if found.status is Status.PASS else replace(found, unread=unknown.evidence)


def judged_checks(results: Iterable[CheckResult]) -> frozenset[str]:
    """Select the checks that have judged."""
    return frozenset(result.id for result in results if result.status.has_judged)


def worst_first(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Select the results that failed or warned, the failed ones first."""
    found = list(results)
    return tuple(
        result
        for status in (Status.FAIL, Status.WARN)
        for result in found
        if result.status is status
    )


def worst(results: Iterable[CheckResult]) -> Status:
    """Find the status of all results together: NOT_TESTED if nothing was judged.

    A single check that was not tested does not spoil a PASS; the report lists it.
    """
    found = {result.status for result in results}
    for status in (Status.FAIL, Status.WARN, Status.PASS):
        if status in found:
            return status
    return Status.NOT_TESTED
