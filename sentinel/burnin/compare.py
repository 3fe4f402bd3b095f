"""Compare the readings of a GPU, and the reports of two runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.burnin.checks.measures import format_measure, format_value, title

#: When a reading was made, and the errors of its calls, are no counters.
_NOT_COMPARED = {"at", "failed"}

#: Readings of the moment, and counters that grow with time itself.
_OF_THE_MOMENT = {
    "reasons",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "temperature_margin_c",
    "pcie_generation",
    "pcie_width",
    "energy_j",
}
_GROWING = ("_throttled_s", ".speed_mbps", ".effective_ber")

#: Counters have this ending; everything else is a mode, a limit or a reading of the moment.
_COUNTER = "_total"

#: A smaller difference of two medians is not worth a look, in percent.
NOTABLE_PERCENT = 1.0

SCHEMA_VERSION = "1.0"

_NAMES = ("flops_per_s", "bytes_per_s", "power_w", "temperature_c")


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One value that differs."""

    name: str
    before: Any
    after: Any

    @property
    def growth(self) -> str:
        """The difference of two numbers, with its sign."""
        numbers = (int, float)
        for value in (self.before, self.after):
            if isinstance(value, bool) or not isinstance(value, numbers):
                return ""
        difference = self.after - self.before
        return f"{'+' if difference > 0 else ''}{format_value(difference)}"

    @property
    def counts(self) -> bool:
        """Whether it is a counter."""
        return self.name.endswith(_COUNTER)

    @property
    def lasting(self) -> bool:
        """Whether it is a counter or a mode, and not a reading that differs at any two times."""
        return self.name not in _OF_THE_MOMENT and not self.name.endswith(_GROWING)


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Moved]:
    """List the values that differ: counters first."""
    old, new = dict(_flat(before)), dict(_flat(after))
    found = [
        Moved(name=name, before=old.get(name), after=new.get(name))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return sorted(found, key=lambda value: not value.counts)


def _flat(counters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; those of the NVLinks with the number of the link."""
    for name, value in counters.items():
        if name in _NOT_COMPARED:
            continue
        if name == "nvlinks":
            for link in value or ():
                for key, reading in link.items():
                    if key != "link":
                        yield f"nvlink{link['link']}.{key}", reading
        else:
            yield name, tuple(value) if isinstance(value, list) else value


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
    before = {(row["phase"], row["name"]): row["median"] for row in old["measurements"]}
    for row in new["measurements"]:
        key = row["phase"], row["name"]
        if row["name"] in _NAMES and key in before:
            first, second = before[key], row["median"]
            yield {
                "phase": row["phase"],
                "name": row["name"],
                "first": first,
                "second": second,
                "difference_percent": round(100 * (second / first - 1), 3) if first else None,
            }


def _counters(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Moved]:
    """List the counters and modes that moved between the ends of both runs."""
    ends = [gpu["counters"]["after"] or gpu["counters"]["before"] for gpu in (old, new)]
    if not all(ends):
        return []
    return [value for value in moved(*ends) if value.lasting]


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
    for row in gpu["phases"]:
        yield f"    {row['phase']:<12} {title(row['name']):<12} {_difference(row)}"
    for row in gpu["counters"]:
        values = f"{format_value(row['first'])}, then {format_value(row['second'])}"
        yield f"    {row['name']}: {values}"


def _difference(row: Mapping[str, Any]) -> str:
    """Format two medians and their difference."""
    first, second = (format_measure(row["name"], row[key]) for key in ("first", "second"))
    percent = row["difference_percent"]
    if percent is None:
        return f"{first:>16}  {second:>16}"
    mark = "  !" if abs(percent) > NOTABLE_PERCENT else ""
    return f"{first:>16}  {second:>16}  {percent:+7.2f} %{mark}"
