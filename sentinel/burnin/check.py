"""The types of all checks of a GPU: what is judged, by which limits, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from sentinel.burnin.thresholds import Thresholds
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

    @property
    def now(self) -> Counters:
        """The newest reading."""
        return self.before if self.after is None else self.after


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the function of a check found; the check adds what is constant."""

    status: Status
    value: Value = None
    #: The limit that was applied, for people.
    threshold: str = ""
    #: What the value was computed from, or why it could not be judged.
    evidence: str = ""


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
    #: The default limits, for people.
    limits: str
    source: str
    severity: Severity
    action: str
    judge: Callable[[E, Thresholds], Judgement]
    unit: str = ""

    def run(self, evidence: E, thresholds: Thresholds) -> CheckResult:
        """Judge the evidence."""
        found = self.judge(evidence, thresholds)
        bad = found.status in {Status.FAIL, Status.WARN}
        return CheckResult(
            id=self.id,
            status=found.status,
            value=found.value,
            unit=self.unit,
            threshold=found.threshold,
            source=thresholds.source_of(self.id, self.source),
            severity=self.severity if bad else Severity.NONE,
            action=self.action if bad else "",
            evidence=found.evidence,
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
