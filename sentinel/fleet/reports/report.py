"""The report of a fleet as JSON values; docs/fleet-report.schema.json describes them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from sentinel.burnin.checks.check import CheckResult
from sentinel.burnin.checks.measures import scaled_unit
from sentinel.burnin.checks.peer_checks import Peers
from sentinel.burnin.reports.verdict import MEANING, Verdict
from sentinel.fleet.checks.fleet_checks import CHECKS
from sentinel.fleet.checks.groups import Group
from sentinel.fleet.checks.verdict import FleetGpu, FleetNode, FleetVerdict
from sentinel.fleet.records.run_file import FleetRun
from sentinel.units import format_count

#: The version of the report: additions raise the second number, other changes the first.
SCHEMA_VERSION = "1.0"
#: What each line of the JSON lines is.
LINE_SCHEMA = f"urn:sentinel:fleet-gpu:{SCHEMA_VERSION}"


def fleet_object(fleet: FleetVerdict) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": None if fleet.run is None else _run(fleet.run),
        "verdict": fleet.verdict.value,
        "meaning": meaning(fleet),
        "summary": {"nodes": fleet.node_counts, "gpus": fleet.gpu_counts},
        "notices": list(fleet.notices),
        "groups": [_group(group) for group in fleet.groups],
        "nodes": [_node(node) for node in fleet.nodes],
        "checks": comparisons(fleet),
        "thresholds_overridden": fleet.thresholds.overridden(),
    }


def comparisons(fleet: FleetVerdict) -> list[dict[str, Any]]:
    """Describe the comparisons with the limits in force."""
    return [
        {
            "id": check.id,
            "title": check.title,
            "threshold": check.threshold(fleet.thresholds.of(check.id, check.limits)),
            "source": fleet.thresholds.source_of(check.id, check.source),
        }
        for check in CHECKS
    ]


def meaning(fleet: FleetVerdict) -> str:
    """Explain the verdict of the fleet."""
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
        own = None if node.result is None else node.result.run_id
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


def rate_unit(fleet: FleetVerdict) -> tuple[float, str]:
    """Choose the unit of all rates: what they are divided by, and its name."""
    rates = [gpu.gpu.steady.rate for gpu in fleet.gpus if gpu.gpu.steady.rate is not None]
    return scaled_unit("flops_per_s", statistics.median(rates) if rates else 1e12)


def page_of(node: FleetNode) -> str | None:
    """Return the path of a node's own page from the fleet's folder, or None if there is none."""
    return f"nodes/{node.name}/report.html" if node.has_page else None


def _run(run: FleetRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "engine": run.engine,
        "level": run.level,
        "plan": run.plan,
        "plan_hash": run.plan_hash,
        "thresholds_hash": run.thresholds_hash,
        "nodes": len(run.nodes),
        "started": run.started.isoformat(),
        "jobs": list(run.jobs),
        "simulate": run.simulate,
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "number": group.number,
        **asdict(group.hardware),
        "nodes": len(group.by_node()),
        "gpus": len(group.members),
        "gpus_of_a_node": group.usual_gpus,
        "flops_per_s": _peers(group.rate),
        "node_flops_per_s": _peers(group.node_rate),
        "temperature_c": _peers(group.temperature),
        "power_w": _peers(group.power),
        "counters": {name: _peers(counter) for name, counter in group.counters.items()},
    }


def _peers(peers: Peers | None) -> dict[str, Any] | None:
    return None if peers is None else asdict(peers)


def _node(node: FleetNode) -> dict[str, Any]:
    result = node.result
    return {
        "node": node.name,
        "verdict": node.word,
        "missing": node.missing or None,
        "reasons": list(node.reasons),
        "page": page_of(node),
        "hostname": result and result.hostname,
        "machine_id": result and result.machine_id,
        "driver": result and result.driver,
        "run_id": result and result.run_id,
        "plan_hash": result and result.plan_hash,
        "version": result and result.version,
        "simulated": result and result.simulated,
        "started": result and result.started.isoformat(),
        "duration_s": result and result.duration_s,
        "checks": _results(node.bad),
        "gpus": [_gpu(gpu) for gpu in node.gpus],
    }


def _gpu(one: FleetGpu) -> dict[str, Any]:
    gpu = one.gpu
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "serial": gpu.serial,
        "model": gpu.model,
        "group": one.group,
        "verdict": one.verdict.value,
        "node_verdict": gpu.verdict.value,
        "reasons": list(one.reasons),
        "coverage": [asdict(phase) for phase in gpu.coverage],
        "steady": {
            "flops_per_s": gpu.steady.rate,
            "temperature_c": gpu.steady.temperature_c,
            "power_w": gpu.steady.power_w,
        },
        "checks": _results(one.bad),
        "not_tested": list(one.not_tested),
    }


def _results(results: Iterable[CheckResult]) -> list[dict[str, Any]]:
    return [
        {**asdict(result), "status": result.status.value, "severity": result.severity.value}
        for result in results
    ]
