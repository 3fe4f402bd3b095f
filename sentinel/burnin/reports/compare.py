"""Compare the reports of two runs: rates, power, temperature and counters of each GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.burnin.checks.measures import format_measure, format_value, title
from sentinel.burnin.reports.moved import Moved, moved

#: A smaller difference of two medians is not worth a look, in percent.
NOTABLE_PERCENT = 1.0

SCHEMA_VERSION = "1.0"

_NAMES = ("flops_per_s", "bytes_per_s", "power_w", "temperature_c")


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two reports, and return the differences as JSON values."""
    old = {gpu["uuid"]: gpu for gpu in first["gpus"]}
    new = {gpu["uuid"]: gpu for gpu in second["gpus"]}
    both = [uuid for uuid in old if uuid in new]
    gpus = [_gpu(old[uuid], new[uuid]) for uuid in both]
    return {
        "schema_version": SCHEMA_VERSION,
        "first": _run(first),
        "second": _run(second),
        "same_plan": first["run"]["plan"]["hash"] == second["run"]["plan"]["hash"],
        "same_driver": first["node"]["driver"] == second["node"]["driver"],
        "gpus": gpus,
        "only_in_first": [uuid for uuid in old if uuid not in new],
        "only_in_second": [uuid for uuid in new if uuid not in old],
        "notable_percent": NOTABLE_PERCENT,
        "notable": any(gpu["notable"] for gpu in gpus),
    }


def _run(report: Mapping[str, Any]) -> dict[str, Any]:
    run = report["run"]
    return {
        "id": run["id"],
        "started": run["started"],
        "hostname": report["node"]["hostname"],
        "driver": report["node"]["driver"],
        "version": run["version"],
        "plan": run["plan"]["name"],
        "mode": run["mode"],
        "verdict": report["verdict"],
    }


def _gpu(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Compare one GPU in both runs."""
    phases = list(_phases(old, new))
    counters = [
        {"name": counter.name, "first": counter.before, "second": counter.after}
        for counter in _counters(old, new)
    ]
    notable = any(
        phase["difference_percent"] is not None
        and abs(phase["difference_percent"]) > NOTABLE_PERCENT
        for phase in phases
    )
    return {
        "uuid": new["uuid"],
        "index": new["index"],
        "model": new["model"],
        "serial": new["serial"],
        "verdicts": [old["verdict"], new["verdict"]],
        "phases": phases,
        "counters": counters,
        "notable": notable or bool(counters) or old["verdict"] != new["verdict"],
    }


def _phases(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the medians that both runs have, with their difference."""
    before = {(one["phase"], one["name"]): one["median"] for one in old["measurements"]}
    for one in new["measurements"]:
        key = one["phase"], one["name"]
        if one["name"] in _NAMES and key in before:
            first, second = before[key], one["median"]
            yield {
                "phase": one["phase"],
                "name": one["name"],
                "first": first,
                "second": second,
                "difference_percent": round(100 * (second / first - 1), 3) if first else None,
            }


def _counters(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Moved]:
    """List the counters and modes that moved between the ends of both runs."""
    ends = [one["counters"]["after"] or one["counters"]["before"] for one in (old, new)]
    if not all(ends):
        return []
    return [one for one in moved(*ends) if one.lasting]


def compare_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the comparison for people."""
    for name, letter in (("first", "A"), ("second", "B")):
        run = found[name]
        yield (
            f"{letter}  {run['verdict']:<10}  {run['id']}  {run['hostname']}, plan {run['plan']},"
            f" driver {run['driver']}, {run['started']}"
        )
    if not found["same_plan"]:
        yield "The plans differ: phases of the same name may ask for other work."
    for gpu in found["gpus"]:
        yield from _gpu_lines(gpu)
    for key, letter in (("only_in_first", "A"), ("only_in_second", "B")):
        if found[key]:
            yield f"only in {letter}: {', '.join(found[key])}"
    if not found["gpus"]:
        yield "The runs have no GPU in common."
    elif not found["notable"] and all(gpu["phases"] for gpu in found["gpus"]):
        yield ""
        percent = f"{found['notable_percent']:g} %"
        yield f"No median differs by more than {percent}; no counter moved, and no verdict changed."


def _gpu_lines(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield the comparison of one GPU."""
    yield ""
    first, second = gpu["verdicts"]
    word = first if first == second else f"{first}, then {second}"
    yield f"GPU {gpu['index']}  {gpu['model'] or ''}  {gpu['uuid']}  {word}"
    if not gpu["phases"]:
        yield "    no phase was measured in both runs"
    for one in gpu["phases"]:
        yield f"    {one['phase']:<12} {title(one['name']):<12} {_difference(one)}"
    for one in gpu["counters"]:
        values = f"{format_value(one['first'])}, then {format_value(one['second'])}"
        yield f"    {one['name']}: {values}"


def _difference(one: Mapping[str, Any]) -> str:
    """Format two medians and their difference."""
    first, second = (format_measure(one["name"], one[key]) for key in ("first", "second"))
    percent = one["difference_percent"]
    if percent is None:
        return f"{first:>16}  {second:>16}"
    mark = "  !" if abs(percent) > NOTABLE_PERCENT else ""
    return f"{first:>16}  {second:>16}  {percent:+7.2f} %{mark}"
