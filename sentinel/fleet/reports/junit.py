"""Format the report of a fleet as JUnit XML: a suite for each node, a case for each GPU. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement

from sentinel.burnin.reports.junit import add_case, add_result, clean, count_cases, document
from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.checks.verdict import FleetNode, FleetVerdict


def junit_xml(fleet: FleetVerdict) -> str:
    """Build the document."""
    name = "sentinel fleet" if fleet.run is None else f"sentinel fleet {fleet.run.id}"
    root = Element("testsuites", name=clean(name))
    began = [node.result.started for node in fleet.nodes if node.result is not None]
    # The format wants a time of each suite: that of a missing node is the run's.
    started = fleet.run.started if fleet.run is not None else min(began, default=None)
    for number, node in enumerate(fleet.nodes):
        root.append(_suite(node, number, started))
    return document(root, _span_s(fleet))


def _span_s(fleet: FleetVerdict) -> float:
    """Compute the time from the first start of a node to the last end."""
    found = [node.result for node in fleet.nodes if node.result is not None]
    if not found:
        return 0.0
    last = max(one.started.timestamp() + one.duration_s for one in found)
    return last - min(one.started.timestamp() for one in found)


def _suite(node: FleetNode, number: int, started: datetime | None) -> Element:
    """Build the suite of a node; its first case is the node itself."""
    suite = Element(
        "testsuite",
        name=clean(node.name),
        id=str(number),
        package="sentinel.fleet",
        hostname=clean(node.name if node.result is None else node.result.hostname),
    )
    time = started if node.result is None else node.result.started
    if time is not None:
        suite.set("timestamp", time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    group = f"fleet.{node.name}"
    seconds = node.result.duration_s if node.result is not None else 0.0
    case = add_case(suite, group, "node", seconds)
    own = [one for one in node.bad if one.status.value == "fail"]
    if node.missing:
        add_result(case, "error", f"missing: {node.missing}", "Missing")
    elif own:
        add_result(case, "failure", "; ".join(node.reasons), own[0].severity.value)
    elif not node.gpus:
        add_result(case, "error", "; ".join(node.reasons), "NotTested")
    else:
        SubElement(case, "system-out").text = clean("; ".join((node.word, *node.reasons)))
    for gpu in node.gpus:
        case = add_case(suite, group, f"GPU {gpu.gpu.index} {gpu.gpu.uuid}", gpu.gpu.duration_s)
        text = "; ".join((gpu.verdict.value, *gpu.reasons))
        match gpu.verdict:
            case Verdict.FAIL:
                severity = gpu.bad[0].severity.value if gpu.bad else "unknown"
                add_result(case, "failure", text, severity)
            case Verdict.INCOMPLETE | Verdict.NOT_APPLICABLE:
                add_result(case, "skipped", text)
            case _:
                SubElement(case, "system-out").text = clean(text)
    count_cases(suite, seconds)  # its GPUs work at the same time
    return suite
