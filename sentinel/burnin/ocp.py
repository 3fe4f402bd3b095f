"""Format a report as messages of the OCP Test & Validation Specification 2.0, one a line. Pure.

https://github.com/opencomputeproject/ocp-diag-core: a test run, with one step for each phase of
each GPU, one for the checks of each GPU, and one for those of the node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sentinel.burnin.checks.measures import format_value, unit_of
from sentinel.burnin.detection_power import describe_bound
from sentinel.burnin.timeline import PhaseOutcome, describe_phase, of_phase, of_run
from sentinel.burnin.verdict import judged_by

Message = dict[str, Any]
#: The time of a message in seconds since the run began, and the message.
Timed = tuple[float, Message]

_STATUS = {
    PhaseOutcome.DONE: "COMPLETE",
    PhaseOutcome.SKIPPED: "SKIP",
    PhaseOutcome.BROKEN: "ERROR",
}
_DIAGNOSIS = {"pass": "PASS", "warn": "PASS", "fail": "FAIL", "not tested": "UNKNOWN"}
_VERDICT = {"PASS": "PASS", "WARN": "PASS", "FAIL": "FAIL"}
_SOFTWARE, _DRIVER = "sentinel", "driver"


def ocp_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the messages as JSON, each with its number and its time."""
    started = datetime.fromisoformat(report["run"]["started"]).astimezone(UTC)
    last = float(report["run"]["duration_s"])
    steps = sorted(_steps(report), key=lambda step: step[0])  # those of all GPUs are concurrent
    messages: list[Timed] = [
        (0.0, {"schemaVersion": {"major": 2, "minor": 0}}),
        (0.0, _of_run("testRunStart", _start(report))),
        *steps,
        *((last, _of_run("log", note)) for note in _notes(report)),
        (last, _of_run("testRunEnd", _end(report))),
    ]
    for number, (at, message) in enumerate(messages):
        time = started + timedelta(seconds=min(max(at, 0.0), last))
        stamp = time.isoformat(timespec="milliseconds")
        yield json.dumps({**message, "sequenceNumber": number, "timestamp": stamp})


# --- the run ---------------------------------------------------------------------------------


def _of_run(name: str, content: Message) -> Message:
    return {"testRunArtifact": {name: content}}


def _start(report: Mapping[str, Any]) -> Message:
    """Describe the run, the node and its GPUs."""
    run, node, plan = report["run"], report["node"], report["run"]["plan"]
    software = [
        _without_none(
            softwareInfoId=_SOFTWARE,
            name=run["tool"],
            version=run["version"],
            softwareType="APPLICATION",
        )
    ]
    if node["driver"]:
        software.append(
            _without_none(
                softwareInfoId=_DRIVER,
                name="NVIDIA driver",
                version=node["driver"],
                softwareType="SYSTEM",
            )
        )
    return {
        "name": f"burnin {plan['name']}",
        "version": run["version"],
        "commandLine": f"sentinel burnin (plan {plan['name']}, hash {plan['hash']})",
        "parameters": {"plan": plan, "mode": run["mode"], "run": run["id"]},
        "metadata": {"judged_by": judged_by(report)},
        "dutInfo": {
            "dutInfoId": node["machine_id"] or node["hostname"],
            "name": node["hostname"],
            "platformInfos": [{"info": f"Linux {node['kernel']}"}],
            "softwareInfos": software,
            "hardwareInfos": [
                _without_none(
                    hardwareInfoId=gpu["uuid"],
                    name=gpu["model"] or "GPU",
                    revision=gpu["vbios"],
                    location=gpu["pci_bus_id"],
                    serialNumber=gpu["serial"],
                    partType="GPU",
                    manufacturer="NVIDIA",
                )
                for gpu in report["gpus"]
            ],
        },
    }


def _without_none(**fields: Any) -> Message:
    return {name: value for name, value in fields.items() if value is not None}


def _notes(report: Mapping[str, Any]) -> Iterator[Message]:
    """Yield what a reader must not miss."""
    if report["run"]["simulated"]:
        yield {"severity": "WARNING", "message": "The GPUs are simulated."}
    if report["judged_again_by"] is not None:
        yield {"severity": "WARNING", "message": f"Judged again by {report['judged_again_by']}"}
    excused = report["correctness_overridden"]
    for name, limit in report["thresholds_overridden"].items():
        severity = "WARNING" if name in excused else "INFO"
        yield {"severity": severity, "message": f"Threshold {name} was replaced: {limit}"}


def _end(report: Mapping[str, Any]) -> Message:
    """Build the end: only COMPLETE has a result, since the specification allows no other pair."""
    outcome = of_run(report)
    result = _VERDICT[report["verdict"]] if outcome is PhaseOutcome.DONE else "NOT_APPLICABLE"
    return {"status": _STATUS[outcome], "result": result}


# --- the steps -------------------------------------------------------------------------------


def _steps(report: Mapping[str, Any]) -> Iterator[Timed]:
    """Yield the messages of all steps, those of each step in their order."""
    last = float(report["run"]["duration_s"])
    # A run's first phase begins with it.
    starts = [
        phase["began"]
        for gpu in report["gpus"]
        for phase in gpu["coverage"]
        if phase["began"] is not None
    ]
    first = min(starts, default=0.0)

    def since(moment: float | None) -> float:
        return last if moment is None else moment - first

    for gpu in report["gpus"]:
        for number, phase in enumerate(gpu["coverage"], start=1):
            yield from _phase(gpu, phase, f"gpu{gpu['index']}-phase{number}", since)
        step = f"gpu{gpu['index']}-checks"
        name = f"GPU {gpu['index']}: checks"
        messages = [*_diagnoses(gpu["checks"], gpu["uuid"]), _verdict(gpu)]
        yield from _step(step, name, last, last, messages, "COMPLETE")
    messages = list(_diagnoses(report["checks"], None))
    yield from _step("node-checks", "Node: checks", last, last, messages, "COMPLETE")


def _step(
    step: str, name: str, begin: float, end: float, messages: Sequence[Message], status: str
) -> Iterator[Timed]:
    """Yield a step: its start, its messages and its end."""
    yield begin, _of_step(step, "testStepStart", {"name": name})
    for message in messages:
        yield end, {"testStepArtifact": {"testStepId": step, **message}}
    yield end, _of_step(step, "testStepEnd", {"status": status})


def _of_step(step: str, name: str, content: Message) -> Message:
    return {"testStepArtifact": {"testStepId": step, name: content}}


def _phase(
    gpu: Mapping[str, Any],
    phase: Mapping[str, Any],
    step: str,
    since: Callable[[float | None], float],
) -> Iterator[Timed]:
    """Yield the step of one phase of one GPU: its measurements, its work, and why it ended."""
    outcome = of_phase(phase)
    messages: list[Message] = []
    for row in gpu["measurements"]:
        if row["phase"] == phase["phase"]:
            unit = unit_of(row["name"])
            messages.append(_measurement(gpu, f"{row['name']}_median", row["median"], unit))
    messages.append(_measurement(gpu, "results_checked", phase["checks"], ""))
    messages.append(_measurement(gpu, "results_wrong", phase["errors"], "", most=0))
    text = describe_phase(phase)
    if outcome is PhaseOutcome.BROKEN:
        symptom = {"symptom": "phase-not-possible", "message": text, "softwareInfoIds": [_SOFTWARE]}
        messages.append({"error": symptom})
    else:
        severity = "INFO" if outcome is PhaseOutcome.DONE else "WARNING"
        messages.append({"log": {"severity": severity, "message": text}})
    for interruption in gpu["interruptions"]:
        if interruption["phase"] == phase["phase"]:
            message = f"interrupted by {interruption['cause']} for {interruption['away_s']:.1f} s"
            messages.append({"log": {"severity": "INFO", "message": message}})
    name = f"GPU {gpu['index']}: {phase['phase']} ({phase['workload']})"
    begin, end = since(phase["began"]), since(phase["ended"])
    yield from _step(step, name, begin, end, messages, _STATUS[outcome])


def _measurement(
    gpu: Mapping[str, Any], name: str, value: float, unit: str, most: float | None = None
) -> Message:
    content = {"name": name, "value": value, "hardwareInfoId": gpu["uuid"]}
    if unit:
        content["unit"] = unit
    if most is not None:
        content["validators"] = [{"type": "LESS_THAN_OR_EQUAL", "value": most}]
    return {"measurement": content}


def _diagnoses(checks: Sequence[Mapping[str, Any]], uuid: str | None) -> Iterator[Message]:
    """Yield a diagnosis for each check that applies; a warning is PASS with a log beside it."""
    for check in checks:
        status = check["status"]
        if status not in _DIAGNOSIS:
            continue
        value = check["value"]
        value = "" if value is None else f"{format_value(value, check['unit'])}; "
        message = f"{value}{check['threshold']} ({check['source']})"
        for part in (check["evidence"], check["action"]):
            message += f"; {part}" if part else ""
        word = status.replace(" ", "-")
        yield _diagnosis(f"{check['id']}-{word}", _DIAGNOSIS[status], message, uuid)
        if status == "warn":
            yield {"log": {"severity": "WARNING", "message": f"{check['id']}: {message}"}}


def _verdict(gpu: Mapping[str, Any]) -> Message:
    """Build the diagnosis of a whole GPU."""
    word = gpu["verdict"]
    message = "; ".join(gpu["reasons"]) or describe_bound(gpu)
    return _diagnosis(f"burnin-{word.lower()}", _VERDICT.get(word, "UNKNOWN"), message, gpu["uuid"])


def _diagnosis(verdict: str, kind: str, message: str, uuid: str | None) -> Message:
    content = {"verdict": verdict, "type": kind, "message": message}
    if uuid is not None:
        content["hardwareInfoId"] = uuid
    return {"diagnosis": content}
