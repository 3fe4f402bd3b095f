"""The report of a fleet as values: what is wrong, the worst first, and all of it as JSON. Pure.

What GPUs or nodes share is one entry. docs/fleet-report.schema.json describes the JSON.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Severity, Status
from sentinel.burnin.checks.measures import format_value, scaled_unit
from sentinel.burnin.verdict import MEANING, Verdict
from sentinel.fleet.fleet_checks import CHECKS, NodeGroup
from sentinel.fleet.node_names import fold_names
from sentinel.fleet.node_result import FIGURES, RATE, ConfirmedFaulty
from sentinel.fleet.run_folder import FleetRun
from sentinel.fleet.verdict import MISSING, FleetGpu, FleetNode, FleetVerdict
from sentinel.units import format_count

# --- what is wrong ---------------------------------------------------------------------------

#: The words that are listed, the worst first.
LISTED = (Verdict.FAIL.value, MISSING, Verdict.INCOMPLETE.value, Verdict.WARN.value)

#: The severities, the worst first.
_SEVERITIES = (
    Severity.ISOLATE,
    Severity.RESET,
    Severity.TRIAGE,
    Severity.UNKNOWN,
    Severity.CONFIG,
    Severity.MONITOR,
    Severity.NONE,
)

#: What stops no node is one entry for all nodes if more than so many have it, such as a warning
#: about a setting; what failed is named node by node.
MAX_ALIKE = 5
_JOINED = (Verdict.INCOMPLETE.value, Verdict.WARN.value)
_NUMBER = re.compile(r"[\d.,]*\d")

#: The version of the report: additions raise the second number, other changes the first.
SCHEMA_VERSION = "1.2"
#: What each line of the JSON lines is.
LINE_SCHEMA = f"urn:sentinel:fleet-gpu:{SCHEMA_VERSION}"

#: What is reported of a run, and of a phase.
_OF_RUN = (
    *("id", "engine", "level", "plan", "plan_hash", "thresholds_hash"),
    *("nodes", "started", "jobs", "simulate"),
)
_COVERAGE = ("phase", "mandatory", "complete", "done_s", "quota_s", "passes", "quota_passes")


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """One entry: GPUs, or nodes themselves, with the same fault; or nodes missing alike."""

    #: One of LISTED.
    word: str
    nodes: tuple[FleetNode, ...]
    #: The GPUs that share the reasons; empty if it is about the nodes themselves.
    gpus: tuple[FleetGpu, ...] = ()
    #: In short: without limits and sources.
    reasons: tuple[str, ...]
    severity: Severity = Severity.UNKNOWN
    #: What to do; empty if no check says it.
    action: str = ""


def outliers(fleet: FleetVerdict) -> list[Outlier]:
    """List everything that is not PASS."""
    found = list(_missing(fleet.nodes))
    alike: dict[object, list[_Subject]] = {}
    for node in fleet.nodes:
        for subject in _subjects(node):
            alike.setdefault(subject.kind, []).append(subject)
    for subjects in alike.values():
        by_node: dict[str, list[_Subject]] = {}
        for subject in subjects:
            by_node.setdefault(subject.node.name, []).append(subject)
        joined = subjects[0].word in _JOINED and len(by_node) > MAX_ALIKE
        found += map(_outlier, [subjects] if joined else by_node.values())
    order = list(_SEVERITIES)

    def urgency(outlier: Outlier) -> tuple[int, int, str, bool]:
        name = outlier.nodes[0].name if outlier.word != MISSING else ""
        return LISTED.index(outlier.word), order.index(outlier.severity), name, bool(outlier.gpus)

    return sorted(found, key=urgency)


def _missing(nodes: Iterable[FleetNode]) -> Iterator[Outlier]:
    """Yield an entry for each reason of missing nodes, the most frequent first."""
    reasons: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.missing:  # without numbers: those of jobs differ
            reasons.setdefault(_NUMBER.sub("#", node.missing), []).append(node)
    for _, found in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        reason = found[0].missing
        more = found[0].reasons[1:] if len(found) == 1 else ()
        if len(found) > 1 and (proved := sum(bool(node.findings) for node in found)):
            more = (f"{proved:,} of them had proved wrong results",)
        yield Outlier(word=MISSING, nodes=tuple(found), reasons=(reason, *more))


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A GPU or a node itself with something wrong."""

    node: FleetNode
    gpu: FleetGpu | None
    bad: tuple[CheckResult, ...]
    #: What was not done.
    incomplete: tuple[str, ...]

    @property
    def word(self) -> str:
        """One of LISTED."""
        if self.gpu is not None:
            return self.gpu.verdict.value
        if any(result.status is Status.FAIL for result in self.bad):
            return Verdict.FAIL.value
        return Verdict.INCOMPLETE.value if self.incomplete else Verdict.WARN.value

    @property
    def kind(self) -> object:
        """What it has in common with others; without numbers, since seconds differ."""
        checks = tuple((result.id, result.status) for result in self.bad)
        incomplete = tuple(_NUMBER.sub("#", text) for text in self.incomplete)
        return self.word, self.gpu is not None, checks, incomplete


def _subjects(node: FleetNode) -> Iterator[_Subject]:
    """Yield the node, if something is wrong with it, and its GPUs that are not PASS."""
    if not node.missing and (node.bad or node.incomplete):
        yield _Subject(node=node, gpu=None, bad=node.bad, incomplete=node.incomplete)
    for gpu in node.gpus:
        unproved = (text for text in gpu.unproved if text not in node.refused)
        incomplete = (*gpu.gpu.incomplete, *unproved)
        is_own = gpu.bad or incomplete or not node.refused
        if gpu.verdict.value in LISTED and is_own:
            yield _Subject(node=node, gpu=gpu, bad=gpu.bad, incomplete=incomplete)


def _outlier(subjects: Sequence[_Subject]) -> Outlier:
    """Build the entry of subjects that are alike."""
    first = subjects[0]
    results = zip(*(subject.bad for subject in subjects), strict=True)
    nodes = {subject.node.name: subject.node for subject in subjects}
    return Outlier(
        word=first.word,
        nodes=tuple(nodes.values()),
        gpus=tuple(subject.gpu for subject in subjects if subject.gpu is not None),
        reasons=(*(_brief(result) for result in results), *first.incomplete),
        severity=_severity(first.bad),
        action=first.bad[0].action if first.bad else "",
    )


def _severity(results: Iterable[CheckResult]) -> Severity:
    """Find the worst severity of checks that failed or warned."""
    found = {result.severity for result in results}
    return next((severity for severity in _SEVERITIES if severity in found), Severity.UNKNOWN)


def _brief(results: Sequence[CheckResult]) -> str:
    """Describe the results of one check on one or more GPUs: the evidence of the first."""
    first = results[0]
    if first.value is None:
        text = first.id
    else:
        values = sorted(
            {result.value for result in results if isinstance(result.value, int | float)}
        )
        unit = f" {first.unit}" if first.unit else ""
        if len(values) > 1:
            text = f"{first.id}: {format_value(values[0])} to {format_value(values[-1])}{unit}"
        else:
            text = f"{first.id}: {format_value(first.value, first.unit)}"
    return f"{text}: {first.evidence}" if first.evidence else text


# --- JSON ------------------------------------------------------------------------------------


def fleet_object(fleet: FleetVerdict) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": None if fleet.run is None else _run(fleet.run),
        "verdict": fleet.verdict.value,
        "meaning": meaning(fleet),
        "summary": {"nodes": fleet.node_counts, "gpus": fleet.gpu_counts},
        "confirmed_faulty": asdict(confirmed_faulty(fleet)),
        "notices": list(fleet.notices),
        "groups": [_group(group) for group in fleet.groups],
        "nodes": [_node(node) for node in fleet.nodes],
        "checks": comparisons(fleet),
        "judged_again_by": fleet.judged_again_by,
        "thresholds_overridden": fleet.thresholds.overridden(),
    }


def confirmed_faulty(fleet: FleetVerdict) -> ConfirmedFaulty:
    """Sum the GPUs whose fault is confirmed, over all nodes."""
    found = [result.run.confirmed_faulty for result in fleet.results]
    return ConfirmedFaulty(
        known=sum(one.known for one in found), found_first=sum(one.found_first for one in found)
    )


def describe_confirmed(fleet: FleetVerdict) -> str:
    """Describe them in one line."""
    found = confirmed_faulty(fleet)
    return f"confirmed faulty cards first found by Sentinel: {found.found_first} of {found.known}"


def comparisons(fleet: FleetVerdict) -> list[dict[str, Any]]:
    """Describe the comparisons with the limits in force."""
    return [
        {
            "id": check.id,
            "title": check.title,
            "threshold": check.threshold(fleet.limits_of(check.id)),
            "source": fleet.thresholds.source_of(check.id, check.source),
        }
        for check in CHECKS
    ]


def meaning(fleet: FleetVerdict) -> str:
    """Explain the verdict of the fleet."""
    again = f"judged again by {fleet.judged_again_by}; " if fleet.judged_again_by else ""
    return again + _reason(fleet)


def _reason(fleet: FleetVerdict) -> str:
    unlisted = [node.name for node in fleet.nodes if node.unlisted and node.refused]
    if fleet.verdict is Verdict.INCOMPLETE and unlisted:
        verb = "is" if len(unlisted) == 1 else "are"
        return f"{fold_names(unlisted)} {verb} not on the list"
    missing = sum(bool(node.missing) for node in fleet.nodes)
    if fleet.verdict is Verdict.INCOMPLETE and missing:
        of, verb = format_count(len(fleet.nodes), "node"), "is" if missing == 1 else "are"
        return f"no fault was found, and {missing:,} of {of} {verb} missing"
    return MEANING[fleet.verdict]


def gpu_lines(fleet: FleetVerdict) -> Iterator[dict[str, Any]]:
    """Yield an object for each GPU, and one for each missing node, for JSON lines."""
    run = None if fleet.run is None else fleet.run.id
    for node in fleet.nodes:
        common = {"schema": LINE_SCHEMA, "run_id": run, "node": node.name}
        own = None if node.result is None else node.result.run.id
        for gpu in node.gpus:
            yield {**common, "node_run_id": own, **_gpu(gpu)}
        if not node.gpus:
            yield {
                **common,
                "node_run_id": own,
                "uuid": None,
                "serial": None,
                "verdict": node.word,
                "coverage": [],
                "reasons": list(node.reasons),
            }


def units_of(fleet: FleetVerdict) -> dict[str, tuple[float, str]]:
    """Choose the unit of each figure: what the figure is divided by, and the name of the unit."""
    rates = [rate for gpu in fleet.gpus if (rate := gpu.gpu.steady(RATE)) is not None]
    usual = statistics.median(rates) if rates else 1e12
    return {name: scaled_unit(name, usual) for name in FIGURES}


def page_of(node: FleetNode) -> str | None:
    """Return the path of a node's own page from the fleet's folder, or None if there is none."""
    return f"nodes/{node.name}/report.html" if node.has_page else None


def _run(run: FleetRun) -> dict[str, Any]:
    values = {name: getattr(run, name) for name in _OF_RUN}
    nodes, started = len(run.nodes), run.started.isoformat()
    return values | {"nodes": nodes, "started": started, "jobs": list(run.jobs)}


def _group(group: NodeGroup) -> dict[str, Any]:
    return {
        "number": group.number,
        **asdict(group.hardware),
        "nodes": len(group.nodes),
        "gpus": len(group.members),
        "gpus_of_a_node": group.usual_gpus,
        **{name: peers and asdict(peers) for name, peers in group.usual.items()},
        "counters": {name: asdict(peers) for name, peers in group.counters.items()},
    }


def _node(node: FleetNode) -> dict[str, Any]:
    result = node.result
    return {
        "node": node.name,
        "verdict": node.word,
        "missing": node.missing or None,
        "reasons": list(node.reasons),
        "page": page_of(node),
        "hostname": result and result.node.hostname,
        "machine_id": result and result.node.machine_id,
        "driver": result and result.node.driver,
        "run_id": result and result.run.id,
        "plan_hash": result and result.run.plan.hash,
        "version": result and result.run.version,
        "simulated": result and result.run.simulated,
        "started": result and result.run.started.isoformat(),
        "duration_s": result and result.run.duration_s,
        "checks": [asdict(result) for result in node.bad],
        "gpus": [_gpu(gpu) for gpu in node.gpus],
    }


def _gpu(member: FleetGpu) -> dict[str, Any]:
    gpu = member.gpu
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "serial": gpu.serial,
        "model": gpu.model,
        "group": member.group,
        "verdict": member.verdict.value,
        "node_verdict": gpu.verdict.value,
        "reasons": list(member.reasons),
        "coverage": [{name: getattr(phase, name) for name in _COVERAGE} for phase in gpu.coverage],
        "steady": {name: gpu.steady(name) for name in FIGURES},
        "checks": [asdict(result) for result in member.bad],
        "not_tested": list(member.not_tested),
    }
