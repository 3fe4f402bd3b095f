"""The types of all checks of a GPU: what is judged, by which limits, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Generic, TypeVar

from sentinel.burnin.checks.thresholds import Limits, Thresholds, describe
from sentinel.protocol.counters import Counters

#: A value of a check; None if there is none.
Value = float | int | str | None


class Status(StrEnum):
    """The result of a check, the worst first."""

    FAIL = "fail"
    WARN = "warn"
    #: The value could not be read or compared, which proves nothing.
    NOT_TESTED = "not tested"
    PASS = "pass"  # noqa: S105 - not a password
    #: The GPU, its driver or the binding does not have what is checked.
    NOT_APPLICABLE = "n/a"


class Severity(StrEnum):
    """What a fault means for the use of the GPU, in DCGM's words (dcgm_errors.h)."""

    NONE = "none"
    MONITOR = "monitor"
    ISOLATE = "isolate"
    UNKNOWN = "unknown"
    TRIAGE = "triage"
    CONFIG = "config"
    RESET = "reset"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the checks of one GPU may use."""

    before: Counters
    #: The later reading, or None for a check of one moment.
    after: Counters | None = None
    #: The time between the readings.
    seconds: float | None = None
    #: All GPUs of the node, at the time of ``before``.
    node: tuple[Counters, ...] = ()
    #: The wrong results and the findings of a running daemon and of those before it; None if none
    #: runs.
    findings: int | None = None

    @property
    def now(self) -> Counters:
        """The newest reading."""
        return self.before if self.after is None else self.after


@dataclass(frozen=True, kw_only=True)
class NodeEvidence:
    """All that the checks of a node may use."""

    #: All GPUs that NVML lists.
    gpus: tuple[Counters, ...]
    #: The GPUs on the PCI bus that NVML should list, or None if unknown.
    pci_devices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the function of a check found; the check adds what is constant."""

    status: Status
    value: Value = None
    #: What the value was computed from, or why it could not be judged.
    evidence: str = ""
    #: The limit that was applied, for people; None for all limits of the check.
    threshold: str | None = None
    #: What to do, if it depends on the value; None for the action of the check.
    action: str | None = None


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


E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class Check(Generic[E]):
    """One check as data.

    ``E`` is what it judges: the Evidence of a GPU, or that of a node.
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
        found = self.judge(evidence, limits)
        bad = found.status in {Status.FAIL, Status.WARN}
        same = limits is self.limits
        threshold = self.default_threshold if same else self.threshold(limits)
        return CheckResult(
            id=self.id,
            status=found.status,
            value=found.value,
            unit=self.unit,
            threshold=threshold if found.threshold is None else found.threshold,
            source=thresholds.source_of(self.id, self.source),
            severity=self.severity if bad else Severity.NONE,
            action=(self.action if found.action is None else found.action) if bad else "",
            evidence=found.evidence,
        )


def by_limits(value: float, limits: Limits, evidence: str = "") -> Judgement:
    """Judge a number by the limits ``fail`` and ``warn``, as far as there are such."""
    status = Status.PASS
    for name, bad in (("warn", Status.WARN), ("fail", Status.FAIL)):
        if name in limits and limits[name].broken_by(value):
            status = bad
    return Judgement(status=status, value=value, evidence=evidence)


def untested(why: str) -> Judgement:
    """Build the judgement of a value that could not be read or compared."""
    return Judgement(status=Status.NOT_TESTED, evidence=why)


def not_applicable(why: str = "not supported by this GPU, its driver or the binding") -> Judgement:
    """Build the judgement of a value that does not exist."""
    return Judgement(status=Status.NOT_APPLICABLE, evidence=why)


def worst(results: Iterable[CheckResult]) -> Status:
    """Find the status of all results together: NOT_TESTED if nothing was judged.

    A single check that was not tested does not spoil a PASS; the report lists it.
    """
    found = {result.status for result in results}
    for status in (Status.FAIL, Status.WARN, Status.PASS):
        if status in found:
            return status
    return Status.NOT_TESTED
