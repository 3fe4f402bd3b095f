"""Render the results of ``benchmarks.load`` as the table of docs/internals/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from benchmarks.report import machine_line, markdown
from benchmarks.results import Record, Results

#: The bars: shares of the bare loop's rate, of a core, and of the enforced power limit.
RATE = {"gemm bf16": 0.97, "elementwise": 0.95}
STRESSOR_CPU = 0.05
HOTTEST = 0.98

#: gpu-burn (github.com/wilicc/gpu-burn) alone on an H200 with a limit of 700 W, by default (SGEMM)
#: and with -tc (TF32): operations per second, and watts.
GPU_BURN = {"gemm fp32": (48.3e12, 650.0), "gemm tf32": (350e12, 693.0)}


class LoadTable:
    """The table; ``failed`` lists the missed bars.

    Args:
        results: The measurements.
        rows: The names of the rows, in their order.
    """

    def __init__(self, results: Results, rows: Sequence[str]) -> None:
        self._results = results
        self._found = {name: records[-1] for name in rows if (records := results.of(name))}
        machines = results.of("machine")
        self._simulated = bool(machines and machines[-1]["simulated"])
        self.failed: list[str] = []

    def render(self) -> str:
        """Return the machine, the table, and the bar for the hottest workload, as Markdown."""
        head = [
            *("workload", "sentinel", "bare loop, before and after", "ratio", "power"),
            *("of limit", "SM clock", "hottest", "checked", "wrong", "stressor's CPU"),
            *("resident", "gpu-burn", "bars"),
        ]
        table = markdown(head, [self._row(name, loads) for name, loads in self._found.items()])
        parts = [machine_line(self._results), table, self._hottest()]
        return "\n\n".join(part for part in parts if part)

    def _row(self, name: str, record: Record) -> list[str]:
        sentinel, bare = record["sentinel"], record["bare"]
        unit = "TFLOP/s" if record["rate"] == "flops_per_s" else "TB/s"
        ratio = sentinel["rate"] / fmean(loop["rate"] for loop in bare) if bare else None
        burn = GPU_BURN.get(name)
        return [
            name,
            _rate([sentinel["rate"]], unit),
            _rate([loop["rate"] for loop in bare], unit),
            "-" if ratio is None else f"{ratio:.1%}",
            _with_unit(sentinel["watts"], "W"),
            "-"
            if not sentinel["limit"] or sentinel["watts"] is None
            else f"{_share(sentinel):.1%}",
            _with_unit(sentinel["sm_clock"], "MHz"),
            _with_unit(sentinel["temperature"], "°C"),
            str(sentinel["checks"]),
            str(record["wrong"]),
            f"{record['stressor_cpu']:.1%}",
            f"{record['stressor_rss'] / 1e6:.0f} MB",
            f"{burn[0] / 1e12:.4g} TFLOP/s, {burn[1]:.0f} W" if burn else "-",
            self._verdict(name, list(self._missed(name, record, ratio))),
        ]

    def _missed(self, name: str, record: Record, ratio: float | None) -> Iterator[str]:
        """Yield the bars that a row missed."""
        bar = RATE.get(name)
        if bar is not None and ratio is not None and ratio < bar:
            yield f"{ratio:.1%} of the bare loop, bar {bar:.0%}"
        if name.startswith("gemm") and record["stressor_cpu"] > STRESSOR_CPU:
            yield f"{record['stressor_cpu']:.1%} of a core, bar {STRESSOR_CPU:.0%}"
        if record["wrong"]:
            yield f"{record['wrong']} events of wrong results"

    def _verdict(self, name: str, missed: list[str]) -> str:
        if self._simulated:
            return "simulated"
        if missed:
            self.failed.append(f"{name}: {'; '.join(missed)}")
        return "**FAIL**" if missed else "pass"

    def _hottest(self) -> str:
        """Return the row nearest to the power limit, and whether it is near enough."""
        shares = {
            name: _share(record["sentinel"])
            for name, record in self._found.items()
            if record["sentinel"]["limit"] and record["sentinel"]["watts"] is not None
        }
        if not shares:
            return ""
        name = max(shares, key=lambda key: shares[key])
        missed = [f"{shares[name]:.1%}, bar {HOTTEST:.0%}"] if shares[name] < HOTTEST else []
        verdict = self._verdict(f"the hottest, {name}", missed)
        share = f"{shares[name]:.1%} of the limit"
        return f"The hottest is {name}, at {share}; bar {HOTTEST:.0%}: {verdict}."


def _share(found: Record) -> float:
    return float(found["watts"] / found["limit"])


def _rate(rates: Sequence[float], unit: str) -> str:
    if not any(rates):
        return "-"
    return f"{', '.join(f'{rate / 1e12:.4g}' for rate in rates)} {unit}"


def _with_unit(value: Any, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"
