"""What the fleet takes from the report of one node, with every field checked. Pure.

The names are those of docs/report.schema.json; fields that are not here are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sentinel.burnin.checks.check import (
    CheckResult,
    Judgement,
    Status,
    judged_checks,
    untested,
    worst_first,
)
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.required_evidence import REQUIRED, missing_evidence
from sentinel.burnin.record import Checksum
from sentinel.burnin.verdict import Verdict
from sentinel.protocol.codec import DecodeError, from_json

#: The first number of the versions of reports that can be read.
MAJOR_VERSION = "1"
#: The measurements of a steady phase that are compared.
FIGURES = RATE, HEAT, POWER = "flops_per_s", "temperature_c", "power_w"
#: Beyond these bounds a reading is none of a GPU, and no basis of a comparison.
_PLAUSIBLE = {RATE: (1.0, 1e21), HEAT: (-100.0, 500.0), POWER: (0.0, 1e6)}

#: By the UUID of each GPU of a node, the checks that have judged it.
_Judged = Mapping[str, frozenset[str]]
#: The judgement of a check that a report does not have.
_LACKING = untested("its report does not have it")
#: How the run of a node is judged by the rules of the version that is installed there.
_JUDGE_AGAIN = "to judge its run again, on its node: sentinel report DIR --json --output NODE.json"


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
    #: The wrong results that were counted.
    errors: int = 0
    #: The time of the phase, in seconds of a clock of the node's run; None if it was not so far.
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCounters:
    """The counters, modes and limits of a GPU that are judged; None is unknown."""

    vbios: str | None = None
    memory_total: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None
    pcie_generation_maximum: int | None = None
    pcie_width_maximum: int | None = None
    #: As the report has them: a fleet has a million.
    nvlinks: Any = None
    lost: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    power_limit_w: float | None = None
    sm_clock_maximum_mhz: int | None = None
    ecc_corrected_total: int | None = None
    ecc_corrected_lifetime_total: int | None = None
    pcie_replays_total: int | None = None


_UNKNOWN = GpuCounters()


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """The counters of a GPU before and after its run, as far as they are known."""

    before: GpuCounters | None
    after: GpuCounters | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The median of a reading over one phase."""

    phase: str
    steady: bool
    name: str
    median: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuResult:
    """What is known of one GPU."""

    uuid: str
    index: int
    model: str | None
    #: Of the board, or None if it is unknown.
    serial: str | None
    #: The verdict of its node.
    verdict: Verdict
    #: What is missing of the plan.
    incomplete: tuple[str, ...]
    coverage: tuple[Coverage, ...]
    #: The checks that failed or warned, the failed ones first.
    checks: tuple[CheckResult, ...]
    #: Those of the last steady phase that has a rate.
    measurements: tuple[Measurement, ...]
    counters: Readings
    golden_checksums: tuple[Checksum, ...] = ()
    #: Why too little was done for a PASS, also beside a WARN; None if enough was.
    too_short: str | None = None

    @property
    def before(self) -> GpuCounters:
        """The counters before the run."""
        return self.counters.before or _UNKNOWN

    @property
    def newest(self) -> GpuCounters:
        """The counters after the run, or before it if those are not known."""
        return self.counters.after or self.before

    def steady(self, name: str) -> float | None:
        """Find the median of a reading over the last steady phase; None if it does not count."""
        return next((row.median for row in self.measurements if row.name == name), None)

    @property
    def duration_s(self) -> float:
        """The time from the begin of its first phase to the end of its last one.

        A phase that was cut off lasts as long as its work.
        """
        spans = [
            (phase.began, phase.began + phase.done_s if phase.ended is None else phase.ended)
            for phase in self.coverage
            if phase.began is not None
        ]
        first = min((began for began, _ in spans), default=0.0)
        seconds = max((ended for _, ended in spans), default=0.0) - first
        return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPhase:
    """What is known of one phase of a plan."""

    steady: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """The plan of a run."""

    name: str
    hash: str
    phases: tuple[PlanPhase, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmedFaulty:
    """How many GPUs of a node have a confirmed fault, and how many of them Sentinel found first."""

    known: int = 0
    found_first: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedExpectation:
    """What a node had to be."""

    source: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The run of a node, by its own name."""

    id: str
    plan: NodePlan
    #: Of the tool.
    version: str
    started: datetime
    duration_s: float
    simulated: bool
    #: The hash of each file that the report was built from.
    sha256: Mapping[str, str]
    #: None are known of a report before version 1.5.
    confirmed_faulty: ConfirmedFaulty = ConfirmedFaulty()
    expectation: RecordedExpectation | None = None

    @property
    def record(self) -> str | None:
        """The hash of its events, which no other run has; None if it has none."""
        return self.sha256.get("events.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHost:
    """The host of a node."""

    hostname: str
    machine_id: str | None
    driver: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """What is known of one node."""

    #: Of the report.
    schema_version: str
    run: Run
    node: NodeHost
    verdict: Verdict
    #: The checks of the node itself that failed or warned, the failed ones first.
    checks: tuple[CheckResult, ...]
    #: By index.
    gpus: tuple[GpuResult, ...]
    #: The limits of checks that a file replaced.
    thresholds_overridden: Mapping[str, Any]
    #: The number of GPUs by verdict.
    summary: Mapping[str, int]
    #: Whether the number of its GPUs was judged.
    is_counted: bool = False
    #: What of the node itself its run could not judge, such as a GPU that was held elsewhere.
    unproved: tuple[str, ...] = ()
    #: The file of other thresholds than those of its run; None if it was judged by its own.
    judged_again_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """The report of one node, or why there is none."""

    name: str
    result: NodeResult | None = None
    #: Why it is missing; empty if it is not.
    missing: str = ""
    #: How far a missing node was when it wrote last; empty if it is unknown.
    last_seen: str = ""
    #: How many wrong results a missing node had proved by then.
    findings: int = 0
    #: Whether the node's own page is in the folder.
    has_page: bool = False
    #: Whether it is not among the nodes that were expected.
    unlisted: bool = False

    @property
    def names_itself(self) -> bool:
        """Whether the host in its report has the name of the node."""
        return self.result is not None and short(self.name) == short(self.result.node.hostname)


def short(hostname: str) -> str:
    """Cut a host name at its first dot: some hosts report their domain, and some do not."""
    return hostname.partition(".")[0].lower()


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
    found = from_json(NodeResult, report)
    uuids = [gpu.uuid for gpu in found.gpus if gpu.uuid]
    if len(set(uuids)) < len(uuids):
        raise DecodeError("every GPU once", "gpus")
    if sum(found.summary.values()) != len(found.gpus):
        raise DecodeError(f"as many GPUs as in its list, {len(found.gpus)}", "summary")
    gpus = sorted(found.gpus, key=lambda gpu: gpu.index)
    counts = {check.status for check in found.checks if check.id == "node.gpus"}
    judged = {gpu.uuid: judged_checks(gpu.checks) for gpu in gpus}
    return replace(
        found,
        checks=worst_first(found.checks),
        unproved=tuple(unproved(found.checks)),
        gpus=tuple(_used(_consistent(gpu, found, judged)) for gpu in gpus),
        is_counted=bool(counts & {Status.PASS, Status.FAIL}),
    )


def _consistent(gpu: GpuResult, node: NodeResult, judged: _Judged) -> GpuResult:
    """Let the verdict of a GPU be no better than what its report has of it."""
    wrong = sum(phase.errors for phase in gpu.coverage)
    statuses = {check.id: check.status for check in gpu.checks}
    if wrong > 0 and statuses.get("results.wrong") is not Status.FAIL:
        found = tuple(check for check in gpu.checks if check.id != "results.wrong")
        failed = CHECKS["results.wrong"].result(
            Judgement(
                status=Status.FAIL, value=wrong, evidence="counted in the phases of its report"
            )
        )
        return replace(gpu, verdict=Verdict.FAIL, checks=(failed, *found))
    if gpu.verdict in {Verdict.FAIL, Verdict.INCOMPLETE}:
        return gpu
    missing = tuple(_unjudged(gpu, node, judged))
    if not missing and (gpu.verdict is not Verdict.PASS or not gpu.incomplete):
        return gpu
    incomplete = (*gpu.incomplete, *missing)
    return replace(gpu, verdict=Verdict.INCOMPLETE, incomplete=incomplete)


def _unjudged(gpu: GpuResult, node: NodeResult, judged: _Judged) -> Iterator[str]:
    """Yield what a report does not have as judged, of what a burn-in must."""
    phases = node.run.plan.phases
    if len(gpu.coverage) < len(phases):
        yield f"{len(gpu.coverage)} of {len(phases)} phases are in its report"
    for phase in gpu.coverage:
        if phase.mandatory and not phase.complete:
            yield f"phase {phase.phase} not complete"
    results = {check.id: check for check in gpu.checks}
    lacking = [name for one in REQUIRED for name in one.checks if name not in results]
    has_memory_test = any(phase.quota_passes for phase in gpu.coverage)
    covered = results.get("memory.covered")
    if has_memory_test and covered is not None and covered.status is Status.NOT_APPLICABLE:
        lacking.append(covered.id)
    results |= {name: CHECKS[name].result(_LACKING) for name in lacking}
    twins = (other for other in node.gpus if other.uuid != gpu.uuid and other.model == gpu.model)
    missing = tuple(
        missing_evidence(
            results.values(),
            has_steady=not phases or any(phase.steady for phase in phases),
            name=gpu.model or "",
            ecc=gpu.before.ecc,
            twins=frozenset().union(*(judged[twin.uuid] for twin in twins)),
            alone=len(node.gpus) == 1,  # or its own report says that it is not
        )
    )
    if any(_LACKING.evidence in text for text in missing):
        version = node.schema_version
        yield f"its report, of version {version}, lacks checks of this version; {_JUDGE_AGAIN}"
    yield from missing


def _used(gpu: GpuResult) -> GpuResult:
    """Keep what is used of one GPU: a report has a hundred times more."""
    return replace(
        gpu,
        model=gpu.model or "unknown model",
        checks=worst_first(gpu.checks),
        measurements=_steady(gpu.measurements),
    )


def _steady(measurements: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Select the plausible medians of the last steady phase that has a rate."""
    phases = [row.phase for row in measurements if row.steady and row.name == RATE]
    return tuple(
        row
        for row in measurements
        if row.phase in phases[-1:]
        and row.name in _PLAUSIBLE
        and _PLAUSIBLE[row.name][0] <= row.median <= _PLAUSIBLE[row.name][1]
    )
