"""Format the report of a burn-in for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.units import format_count, format_duration


def text_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines: the verdict first, then each GPU with its reasons and what it did."""
    yield from _head(report)
    for gpu in report["gpus"]:
        yield ""
        serial = f", serial {gpu['serial']}" if gpu["serial"] else ""
        yield f"{gpu['verdict']:<10}  GPU {gpu['index']}  {gpu['model'] or gpu['uuid']}{serial}"
        for reason in gpu["reasons"]:
            yield f"            {reason}"
        for phase in gpu["coverage"]:
            yield f"            {_phase(phase)}"
        if power := detection_power(gpu):
            yield f"            {power}"
        if gpu["interruptions"]:
            causes = ", ".join(sorted({one["cause"] for one in gpu["interruptions"]}))
            yield f"            {format_count(len(gpu['interruptions']), 'interruption')}: {causes}"
        if gpu["not_tested"]:
            names = ", ".join(one.partition(":")[0] for one in gpu["not_tested"])
            yield f"            not tested: {names}"
        for line in _skipped(gpu):
            yield f"            {line}"


def _skipped(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield the checks that have nothing to judge in this run, by the reason."""
    reasons: dict[str, list[str]] = {}
    for one in gpu["checks"]:
        mark, _, reason = one["evidence"].partition(": ")
        if one["status"] == "n/a" and mark == "skipped":
            reasons.setdefault(reason, []).append(one["id"])
    for reason, names in reasons.items():
        yield f"skipped, {reason}: {', '.join(names)}"


def format_setting(setting: Mapping[str, Any]) -> str:
    """Format a setting that differs from the default, with where it came from."""
    gpu = f" of GPU {setting['gpu']}" if setting["gpu"] is not None else ""
    return f"{setting['key']}{gpu} = {setting['value']} ({setting['source']})"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was run with which settings, and what is wrong with the node."""
    run, node = report["run"], report["node"]
    yield f"{report['verdict']}  {node['hostname']}  {run['plan']['name']}: {report['meaning']}"
    yield f"run {run['id']}, {run['mode']}, {run['tool']} {run['version']}, driver {node['driver']}"
    for setting in run["settings"] or ():
        yield f"setting {format_setting(setting)}"
    for resumed in run["resumed"]:
        given = ", ".join(format_setting(one) for one in resumed["settings"] or ())
        yield f"resumed {resumed['started']}" + (f" with {given}" if given else "")
    for check in report["checks"]:
        if check["status"] in {"fail", "warn", "not tested"}:
            yield f"node: {check['status']}: {check['id']}: {check['evidence'] or check['value']}"


def _phase(phase: Mapping[str, Any]) -> str:
    mark = "done" if phase["complete"] else "not done"
    parts = []
    if phase["quota_s"]:
        parts.append(f"{_seconds(phase['done_s'])} of {_seconds(phase['quota_s'])}")
    if phase["quota_passes"]:
        parts.append(f"{phase['passes']} of {phase['quota_passes']} passes")
    if phase["memory_share"]:
        parts.append(f"{phase['memory_share']:.1%} of the memory")
    if phase.get("retained_share"):
        parts.append(f"{phase['retained_share']:.1%} held untouched")
    if phase["checks"]:
        parts.append(f"{phase['checks']:,} results checked, {phase['errors']} wrong")
    if phase["not_tested"]:
        parts.append(phase["not_tested"])
    return f"{phase['phase']:<12} {mark:<8}  {', '.join(parts)}"


def detection_power(gpu: Mapping[str, Any]) -> str:
    """Describe what rate of errors the checked results exclude, or that none can be named."""
    power = gpu["detection_power"]
    if power["error_rate_below"] is None:
        return "" if power["checks"] else "no result was checked"
    return (
        f"no error in {power['checks']:,} checked results: fewer than"
        f" {power['error_rate_below']:.1e} per result, at {power['confidence'] * 100:g} %"
    )


def _seconds(value: float) -> str:
    return format_duration(value) if value else "0 s"
