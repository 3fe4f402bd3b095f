"""Format a report as JUnit XML: a suite for each GPU, a case for each phase and check. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from sentinel.burnin.checks.expected_checks import EXPECTED
from sentinel.burnin.checks.measures import format_value
from sentinel.burnin.timeline import PhaseOutcome, describe_phase, of_phase
from sentinel.burnin.verdict import judged_by

#: Characters that XML 1.0 does not have, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED = ("failure", "error", "skipped")


def document(root: Element, seconds: float | None = None) -> str:
    """Count the cases of all suites, and write the document; the time is as of a suite."""
    count_cases(root, seconds)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}'


def add_case(suite: Element, group: str, name: str, seconds: float) -> Element:
    """Add a case to a suite."""
    return SubElement(
        suite, "testcase", classname=clean(group), name=clean(name), time=f"{seconds:.3f}"
    )


def add_result(case: Element, name: str, text: str, kind: str | None = None) -> None:
    """Add why a case did not pass; a skipped one has no type."""
    found = SubElement(case, name, message=clean(text))
    if kind is not None:
        found.set("type", clean(kind))
        found.text = clean(text)


def count_cases(parent: Element, seconds: float | None = None) -> None:
    """Set the numbers of cases of a suite, or of all suites, and its time.

    Args:
        parent: The suite.
        seconds: How long it took; None for the sum of its cases, which were one after the other.
    """
    cases = list(parent.iter("testcase"))
    parent.set("tests", str(len(cases)))
    for name, attribute in zip(_COUNTED, ("failures", "errors", "skipped"), strict=True):
        parent.set(attribute, str(sum(case.find(name) is not None for case in cases)))
    total = sum(float(case.get("time", 0)) for case in cases) if seconds is None else seconds
    parent.set("time", f"{total:.3f}")


def clean(text: object) -> str:
    """Replace the characters that XML does not have."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))


def junit_xml(report: Mapping[str, Any]) -> str:
    """Build the document."""
    run = report["run"]
    root = Element("testsuites", name=clean(f"sentinel burnin {run['plan']['name']}"))
    for number, gpu in enumerate(report["gpus"]):
        root.append(_gpu_suite(report, gpu, number))
    root.append(_node_suite(report, len(report["gpus"])))
    return document(root)


def _gpu_suite(report: Mapping[str, Any], gpu: Mapping[str, Any], number: int) -> Element:
    """Build the suite of a GPU."""
    run, node = report["run"], report["node"]
    suite = _suite(report, f"GPU {gpu['index']} {gpu['uuid']}", number)
    properties = SubElement(suite, "properties")
    for name, value in (
        ("verdict", gpu["verdict"]),
        ("model", gpu["model"]),
        ("serial", gpu["serial"]),
        ("pci_bus_id", gpu["pci_bus_id"]),
        ("vbios", gpu["vbios"]),
        ("driver", node["driver"]),
        ("plan_hash", run["plan"]["hash"]),
        ("mode", run["mode"]),
        ("judged_by", judged_by(report)),
        ("judged_again_by", report["judged_again_by"]),
        *((f"correctness_{k}", v) for k, v in report["correctness_overridden"].items()),
    ):
        if value is not None:
            SubElement(properties, "property", name=name, value=clean(value))
    group = f"burnin.gpu{gpu['index']}"
    if gpu["cut_short"] is not None:
        text = f"the run was cut short: {gpu['cut_short']}"
        text += f"; go on with: {run['resume']}" if run["resume"] else ""
        add_result(add_case(suite, group, "run", 0.0), "error", text, "CutShort")
    elif gpu["verdict"] == "INCOMPLETE":
        text = "; ".join(gpu["incomplete"])
        add_result(add_case(suite, group, "evidence", 0.0), "error", text, "Incomplete")
    elif gpu["verdict"] == "N/A" and report["strict"]:
        text = gpu["reasons"][-1]  # what was too little
        add_result(add_case(suite, group, "evidence", 0.0), "error", text, "Incomplete")
    for phase in gpu["coverage"]:
        _add_phase(suite, f"{group}.phase", phase)
    for check in gpu["checks"]:
        _add_check(suite, f"{group}.check", check, strict=report["strict"])
    count_cases(suite)
    return suite


def _node_suite(report: Mapping[str, Any], number: int) -> Element:
    """Build the suite of the node's own checks."""
    suite = _suite(report, "node", number)
    for check in report["checks"]:
        _add_check(suite, "burnin.node.check", check, strict=report["strict"])
    if not report["gpus"]:
        add_result(
            add_case(suite, "burnin.node", "gpus", 0.0), "error", "no GPU was tested", "NotTested"
        )
    count_cases(suite)
    return suite


def _suite(report: Mapping[str, Any], name: str, number: int) -> Element:
    started = datetime.fromisoformat(report["run"]["started"]).astimezone(UTC)
    return Element(
        "testsuite",
        name=clean(name),
        id=str(number),
        package="sentinel.burnin",
        hostname=clean(report["node"]["hostname"]),
        timestamp=started.strftime("%Y-%m-%dT%H:%M:%S"),
    )


def _add_phase(suite: Element, group: str, phase: Mapping[str, Any]) -> None:
    """Add the case of a phase; errors that it found are those of a check."""
    began, ended = phase["began"], phase["ended"]
    seconds = 0.0 if began is None or ended is None else ended - began
    case = add_case(suite, group, phase["phase"], seconds)
    text = describe_phase(phase)
    match of_phase(phase):
        case PhaseOutcome.SKIPPED:
            add_result(case, "skipped", text)
        case PhaseOutcome.BROKEN:
            add_result(case, "error", text, "NotTested")
        case PhaseOutcome.DONE:
            SubElement(case, "system-out").text = clean(text)


def _add_check(suite: Element, group: str, check: Mapping[str, Any], *, strict: bool) -> None:
    """Add the case of a check; a warning passes, and says so, but in a strict run."""
    case = add_case(suite, group, check["id"], 0.0)
    value = format_value(check["value"], check["unit"])
    text = "; ".join(
        part
        for part in (
            f"value: {value}" if check["value"] is not None else "",
            f"threshold: {check['threshold']}",
            f"source: {check['source']}",
            check["evidence"],
            check["action"],
        )
        if part
    )
    match check["status"]:
        case "fail" | "warn" if strict or check["status"] == "fail":
            add_result(case, "failure", text, check["severity"])
        case "not tested" if check["id"] in EXPECTED or (
            check["id"] == "node.tested" and check["value"] is not None  # a GPU was held elsewhere
        ):
            add_result(case, "error", check["evidence"], "NotTested")
        case "not tested" | "n/a":
            add_result(case, "skipped", f"{check['status']}: {check['evidence']}")
        case "warn":
            SubElement(case, "system-out").text = clean(f"WARNING: {text}")
        case _:
            SubElement(case, "system-out").text = clean(text)
