"""What the fleet takes from the report of one node, with every field checked. Pure.

The names are those of docs/report.schema.json; fields that are not here are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Severity, Status
from sentinel.burnin.verdict import Verdict
from sentinel.protocol.codec import DecodeError, from_json

#: The first number of the versions of reports that can be read.
MAJOR_VERSION = "1"


@dataclass(frozen=True, kw_only=True, slots=True)
class _CheckReport:
    """The result of one check in the report of a node."""

    id: str
    status: Status
    #: A number, a text or None.
    value: Any
    unit: str
    threshold: str
    source: str
    severity: Severity
    action: str
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What a GPU did of one phase."""

    phase: str
    mandatory: bool
    complete: bool
    done_s: float
    quota_s: float
    passes: int
    quota_passes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _PhaseReport(Coverage):
    """A phase with its time, in seconds of a clock of the node's run; None if it was not so far."""

    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checksum:
    """A golden checksum that a GPU computed."""

    key: str
    checksum: str
    stored: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCounters:
    """The counters and limits of a GPU that are compared between nodes; None is unknown."""

    name: str
    power_limit_w: float | None = None
    sm_clock_maximum_mhz: int | None = None
    ecc_corrected_total: int | None = None
    ecc_corrected_lifetime_total: int | None = None
    pcie_replays_total: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measurement:
    phase: str
    steady: bool
    name: str
    median: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Readings:
    before: GpuCounters | None
    after: GpuCounters | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _GpuReport:
    """One GPU of a report."""

    uuid: str
    index: int
    model: str | None
    serial: str | None
    verdict: Verdict
    incomplete: tuple[str, ...]
    coverage: tuple[_PhaseReport, ...]
    checks: tuple[_CheckReport, ...]
    measurements: tuple[_Measurement, ...]
    counters: _Readings
    golden_checksums: tuple[Checksum, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    name: str
    hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    id: str
    plan: _Plan
    version: str
    started: datetime
    duration_s: float
    simulated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    hostname: str
    machine_id: str | None
    driver: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Report:
    run: _Run
    node: _Node
    verdict: Verdict
    checks: tuple[_CheckReport, ...]
    gpus: tuple[_GpuReport, ...]
    thresholds_overridden: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """The medians of a GPU over its last steady phase; None if they do not count."""

    rate: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuResult:
    """What is known of one GPU."""

    uuid: str
    index: int
    model: str
    #: Of the board, or None if it is unknown.
    serial: str | None
    #: The verdict of its node.
    verdict: Verdict
    #: What is missing of the plan.
    incomplete: tuple[str, ...]
    coverage: tuple[Coverage, ...]
    #: From the begin of its first phase to the end of its last one; 0 if none has begun.
    duration_s: float
    #: The checks that failed or warned.
    bad: tuple[CheckResult, ...]
    steady: Steady
    before: GpuCounters | None
    after: GpuCounters | None
    checksums: tuple[Checksum, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """What is known of one node."""

    hostname: str
    machine_id: str | None
    driver: str | None
    #: The name of the node's own run.
    run_id: str
    plan: str
    plan_hash: str
    #: The version of the tool.
    version: str
    started: datetime
    duration_s: float
    simulated: bool
    #: How many limits of checks a file replaced.
    overridden: tuple[str, ...]
    verdict: Verdict
    #: The checks of the node itself that failed or warned.
    bad: tuple[CheckResult, ...]
    gpus: tuple[GpuResult, ...]


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """The report of one node, or why there is none."""

    node: str
    result: NodeResult | None = None
    #: Why it is missing; empty if it is not.
    missing: str = ""
    #: How far a missing node was when it wrote last; empty if it is unknown.
    last_seen: str = ""
    #: How many wrong results a missing node had proved by then.
    findings: int = 0
    #: Whether the node's own page is in the folder.
    has_page: bool = False


def node_result(report: Any) -> NodeResult:
    """Build the result of a node from its report.

    Args:
        report: The parsed JSON of its report.json.

    Raises:
        DecodeError: It is no report, or of a version that cannot be read.
    """
    version = report.get("schema_version") if isinstance(report, dict) else None
    if not isinstance(version, str):
        raise DecodeError("a burn-in report with a schema_version")
    if version.partition(".")[0] != MAJOR_VERSION:
        raise DecodeError(f"version {MAJOR_VERSION} of the schema, not {version}", "schema_version")
    one = from_json(_Report, report)
    for check in (*one.checks, *(check for gpu in one.gpus for check in gpu.checks)):
        _check_value(check)
    return NodeResult(
        hostname=one.node.hostname,
        machine_id=one.node.machine_id,
        driver=one.node.driver,
        run_id=one.run.id,
        plan=one.run.plan.name,
        plan_hash=one.run.plan.hash,
        version=one.run.version,
        started=one.run.started,
        duration_s=one.run.duration_s,
        simulated=one.run.simulated,
        overridden=tuple(sorted(one.thresholds_overridden)),
        verdict=one.verdict,
        bad=_bad(one.checks),
        gpus=tuple(_gpu(gpu) for gpu in sorted(one.gpus, key=lambda gpu: gpu.index)),
    )


def _check_value(check: _CheckReport) -> None:
    """Refuse what could not be printed: a list of lists, or a number that is none.

    Raises:
        DecodeError: The value of a check is such.
    """
    value = check.value
    if isinstance(value, float) and not math.isfinite(value):
        raise DecodeError("a finite number", f"checks.{check.id}.value")
    if not isinstance(value, str | int | float | None):
        raise DecodeError("a number, a text or null", f"checks.{check.id}.value")


def _gpu(gpu: _GpuReport) -> GpuResult:
    """Keep what is needed of one GPU: a report has a hundred times more."""
    return GpuResult(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model or "unknown model",
        serial=gpu.serial,
        verdict=gpu.verdict,
        incomplete=gpu.incomplete,
        coverage=tuple(
            Coverage(**{name: getattr(one, name) for name in Coverage.__slots__})
            for one in gpu.coverage
        ),
        duration_s=_duration_s(gpu.coverage),
        bad=_bad(gpu.checks),
        steady=_steady(gpu.measurements),
        before=gpu.counters.before,
        after=gpu.counters.after,
        checksums=gpu.golden_checksums,
    )


def _duration_s(phases: tuple[_PhaseReport, ...]) -> float:
    """Compute how long a GPU took part; a phase that was cut off lasts as long as its work."""
    began = [phase for phase in phases if phase.began is not None]
    ends = [
        one.ended if one.ended is not None else one.began + one.done_s
        for one in began
        if one.began is not None
    ]
    seconds = max(ends, default=0.0) - min((one.began or 0.0 for one in began), default=0.0)
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _bad(checks: tuple[_CheckReport, ...]) -> tuple[CheckResult, ...]:
    """Select the checks that failed or warned, the failed ones first."""
    return tuple(
        CheckResult(**{name: getattr(check, name) for name in _CheckReport.__slots__})
        for status in (Status.FAIL, Status.WARN)
        for check in checks
        if check.status is status
    )


#: Beyond these bounds a reading is none of a GPU, and no basis of a comparison.
_PLAUSIBLE = {
    "flops_per_s": (1.0, 1e21),
    "temperature_c": (-100.0, 500.0),
    "power_w": (0.0, 1e6),
}


def _steady(measurements: tuple[_Measurement, ...]) -> Steady:
    """Take the medians of the last steady phase that has a rate."""
    phases = [
        measurement.phase
        for measurement in measurements
        if measurement.steady and measurement.name == "flops_per_s"
    ]
    if not phases:
        return Steady()
    found = {
        measurement.name: measurement.median
        for measurement in measurements
        if measurement.phase == phases[-1]
        and measurement.name in _PLAUSIBLE
        and _PLAUSIBLE[measurement.name][0] <= measurement.median <= _PLAUSIBLE[measurement.name][1]
    }
    return Steady(
        rate=found.get("flops_per_s"),
        temperature_c=found.get("temperature_c"),
        power_w=found.get("power_w"),
    )
