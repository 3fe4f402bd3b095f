"""What the verdict of a GPU is worth: what comparisons find, and what a run has exercised. Pure.

Four statements that are never one number: what the comparison finds, what rounding hides, what was
exercised, and what was not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_UP, Context
from typing import Any

from sentinel.burnin.checks.load_checks import wrong_results
from sentinel.burnin.checks.measures import format_seconds
from sentinel.burnin.record import GpuRecord
from sentinel.config.options import DTYPES
from sentinel.config.specs import parse_workload
from sentinel.host.golden_store import dtype_of, sms_of
from sentinel.protocol.shipped_tables import shipped_table

#: A GPU is hot while it is at most this much cooler than its steady temperature.
_HOT_C = 5.0
#: The quantile of the normal distribution for intervals of 95 %.
_Z = 1.96

#: The kind of the faults that rounding may hide; ``sentinel.stressor.injection`` names them all.
_PARTIAL = "partial sum"

_NO_PHASE = "no phase exercised it"
_NO_WORKLOAD = "no workload exercises it"

_TABLES = shipped_table("sentinel.burnin", "parts.toml")
#: The parts that nothing exercises.
_BEYOND = _TABLES["beyond"]
#: Every part that a fault may be in, by the name in a report; those of ``units`` are its own.
PARTS: Mapping[str, str] = {
    **{dtype: f"products in {dtype}" for dtype in DTYPES},
    **_TABLES["exercised"],
    **_BEYOND,
}

Report = Mapping[str, Any]


def detection_power(record: GpuRecord, coverage: Sequence[Report]) -> dict[str, Any]:
    """Return the statements of one GPU.

    Args:
        record: The record of the GPU.
        coverage: Its phases, as the report has them.
    """
    checks = sum(int(phase["checks"]) for phase in coverage)
    errors = wrong_results(record)
    names, reasons = _exercised(record, coverage)
    return {
        "checks": checks,
        "errors": errors,
        # The rule of three: no error in n checks bounds the rate of errors by 3/n at 95 %.
        "error_rate_below": 3 / checks if checks and not errors else None,
        "confidence": 0.95,
        "bounds": _bounds(coverage),
        "comparison": _comparison(record),
        "rounding": _rounding(record),
        "exercised": {
            "parts": [name for name in PARTS if name in names],
            "memory_share": max((phase["memory_share"] or 0.0 for phase in coverage), default=0.0),
            "sms": max((sms_of(checksum.key) for checksum in record.checksums), default=0) or None,
            **_heat(record),
        },
        "not_exercised": [
            {
                "part": name,
                "title": title,
                "why": _NO_WORKLOAD if name in _BEYOND else reasons.get(name) or _NO_PHASE,
            }
            for name, title in PARTS.items()
            if name not in names
        ],
    }


def _bounds(coverage: Sequence[Report]) -> list[dict[str, Any]]:
    """Bound the rate of errors of each kind of result by its own checks; those without an error.

    A bound over all kinds is that of none: most results may be of one.
    """
    checks, errors = Counter[str](), Counter[str]()
    for phase in coverage:
        name, options = parse_workload(phase["workload"])
        kind = " ".join([name, options["dtype"]] if "dtype" in options else [name])
        checks[kind] += int(phase["checks"])
        errors[kind] += int(phase["errors"])
    return [
        {"kind": kind, "checks": count, "error_rate_below": 3 / count}
        for kind, count in checks.items()
        if count and not errors[kind]
    ]


def wilson(found: int, tried: int) -> list[float]:
    """Compute the interval of a share at 95 % (Wilson), from 0 to 1."""
    if not tried:
        return [0.0, 1.0]
    share, square = found / tried, _Z**2
    middle = (share + square / (2 * tried)) / (1 + square / tried)
    spread = share * (1 - share) / tried + square / (4 * tried**2)
    half = _Z * math.sqrt(spread) / (1 + square / tried)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _share(found: int, tried: int) -> dict[str, Any]:
    return {"injected": tried, "found": found, "interval": wilson(found, tried)}


def _comparison(record: GpuRecord) -> dict[str, Any] | None:
    """Sum what the stressors of this run have found of faults in results; None without any."""
    tried, found = Counter[str](), Counter[str]()
    for sample in record.selftests:
        tried.update(sample.values["tried_by_kind"])
        found.update(sample.values["found_by_kind"])
    kinds = [kind for kind in sorted(tried) if kind != _PARTIAL]
    if not kinds:
        return None
    return {
        **_share(sum(found[kind] for kind in kinds), sum(tried[kind] for kind in kinds)),
        "kinds": [{"kind": kind, **_share(found[kind], tried[kind])} for kind in kinds],
    }


def _rounding(record: GpuRecord) -> list[dict[str, Any]]:
    """Sum, for each format, how many faults of partial sums have changed a result."""
    tried, found = Counter[str](), Counter[str]()
    for sample in record.selftests:
        dtype = sample.values["dtype"]
        tried[dtype] += sample.values["tried_by_kind"].get(_PARTIAL, 0)
        found[dtype] += sample.values["found_by_kind"].get(_PARTIAL, 0)
    return [{"format": name, **_share(found[name], tried[name])} for name in +tried]


def _exercised(record: GpuRecord, coverage: Sequence[Report]) -> tuple[set[str], dict[str, str]]:
    """Return the parts that work of this run has compared, and why other parts were not."""
    names, reasons = _formats(record), dict[str, str]()
    if any(phase["memory_share"] for phase in coverage):
        names.add("memory")
    for sample in record.links:
        if sample.values["checked"]:
            part = str(sample.values["part"])
            names.add("gpu-links" if part.startswith(("peer", "all_reduce")) else "host-link")
    for phase in coverage:
        for unit in phase["units"]:
            if unit["checks"]:
                names.add(unit["unit"])
            elif unit["not_exercised"]:
                reasons[unit["unit"]] = unit["not_exercised"]
    return names, reasons


def _formats(record: GpuRecord) -> set[str]:
    """Return the formats whose products were compared.

    A stressor of ``mixed`` prepares all formats, and computes a checksum again at the start of the
    time of each.
    """
    prepared, begun = Counter[str](), Counter(dtype_of(found.key) for found in record.checksums)
    names = set()
    for sample in record.selftests:
        dtype = sample.values["dtype"]
        prepared[dtype] += 1
        for phase in record.phases:
            has_one_format = phase.phase.workload.partition(":")[0] not in {"mixed", "units"}
            if has_one_format and phase.work.checks and phase.has(sample.at):
                names.add(dtype)
    return {name for name in DTYPES if name in names or begun[name] > prepared[name] > 0}


def _heat(record: GpuRecord) -> dict[str, float | None]:
    """Return the steady temperature, and how long the GPU was at most _HOT_C cooler under load."""
    steady = [phase.median("temperature_c") for phase in record.phases if phase.phase.steady]
    temperature = max((value for value in steady if value is not None), default=None)
    if temperature is None:
        return {"steady_c": None, "hot_s": None}
    hot = sum(
        last.at - first.at
        for _, first, last in record.under_load("temperature_c")
        if min(first.values["temperature_c"], last.values["temperature_c"]) >= temperature - _HOT_C
    )
    return {"steady_c": temperature, "hot_s": hot}


# --- text ------------------------------------------------------------------------------------


def describe_confirmed(run: Report) -> str:
    """Describe how many faulty GPUs are known, by which a share of those found could be named."""
    found = run.get("confirmed_faulty") or {"known": 0, "found_first": 0}
    return (
        f"confirmed faulty cards of this host first found by Sentinel: {found['found_first']} of"
        f" {found['known']}; which share of faulty cards is found is not known"
    )


def describe_bound(gpu: Report) -> str:
    """Describe what rate of errors the checked results exclude, or that none can be named."""
    power = gpu["detection_power"]
    if power["error_rate_below"] is None:
        return "" if power["checks"] else "no result was checked"
    text = (
        f"no error in {power['checks']:,} checked results: fewer than"
        f" {_rounded_up(power['error_rate_below'])} per result, at {power['confidence'] * 100:g} %"
    )
    bounds = power.get("bounds", ())
    if len(bounds) > 1:
        shown = (f"{row['kind']} {_rounded_up(row['error_rate_below'])}" for row in bounds)
        text += f"; of each kind: {', '.join(shown)}"
    return text


def _rounded_up(bound: float) -> str:
    """Format a bound; one that is rounded down is none."""
    return f"{float(Context(prec=2, rounding=ROUND_UP).create_decimal(str(bound))):.1e}"


def statements(gpu: Report) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each statement; a report before version 1.5 has one."""
    power = gpu["detection_power"]
    if bound := describe_bound(gpu):
        yield "Checked", bound
    if "exercised" not in power:
        return
    yield "Comparison", _describe_comparison(power["comparison"])
    if power["rounding"]:
        shares = [f"{row['format']} {_percent(row)}" for row in power["rounding"]]
        yield "Rounding", f"faults that occur once in a partial sum and show: {', '.join(shares)}"
    done, parts = power["exercised"], []
    if done["memory_share"]:
        parts.append(f"{done['memory_share']:.0%} of the memory")
    if done["hot_s"] is not None:
        hot = format_seconds(done["hot_s"])
        parts.append(f"{hot} hot (at least {done['steady_c'] - _HOT_C:g} C)")
    if done["sms"]:
        parts.append(f"a GPU of {done['sms']} SMs")
    parts += [PARTS.get(name, name) for name in done["parts"] if name != "memory"]
    yield "Exercised", ", ".join(parts) or "nothing"
    yield "Not exercised", ", ".join(row["title"] for row in power["not_exercised"])


def _describe_comparison(found: Report | None) -> str:
    if found is None:
        return "no fault was injected, so its sensitivity is not known"
    kinds = [f"{row['kind']} {row['found']} of {row['injected']}" for row in found["kinds"]]
    return (
        f"{found['found']:,} of {found['injected']:,} injected faults were found,"
        f" {_interval(found)} ({', '.join(kinds)})"
    )


def _percent(row: Report) -> str:
    return f"{row['found'] / row['injected']:.0%} ({_interval(row)})"


def _interval(row: Report) -> str:
    low, high = (100 * value for value in row["interval"])
    return f"{low:.3g} to {high:.3g} %"
