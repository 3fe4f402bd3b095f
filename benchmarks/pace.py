"""How well sentinel keeps a target utilization and power: ``python -m benchmarks.pace``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.host_gpus import Card
from benchmarks.measuring import add_machine, add_options, rig_of
from benchmarks.processes import Rig, Sentinel
from benchmarks.results import Record, Results

WORKLOAD = "gemm"
#: The duration of each target in seconds; its first third is for reaching the target.
STRETCH, QUICK_STRETCH = 60.0, 20.0
_SAMPLE_EVERY = 0.2
#: How long a workload runs at full load in seconds, and the last part of it that is measured.
_WARM_UP, _FULL = 4.0, 2.0
#: The bars: points of utilization, and a share of the power.
_POINTS, _SHARE = 0.03, 0.05


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target: ``kind`` is util or power, ``value`` a share or watts."""

    kind: str
    value: float

    @property
    def name(self) -> str:
        """The name of its measurement."""
        return f"pace-{self.kind}-{self.value:g}"

    @property
    def flags(self) -> tuple[str, str]:
        """The flags of sentinel for it."""
        text = f"{self.value:g}W" if self.kind == "power" else f"{self.value:.0%}"
        return f"--{self.kind}", text


TARGETS = (
    *(Target(kind="util", value=share) for share in (0.2, 0.5, 0.8)),
    *(Target(kind="power", value=watts) for watts in (400.0, 550.0)),
)


class Pace:
    """Measures on the first GPU.

    Args:
        rig: The processes.
        seconds: The duration of each target.
    """

    def __init__(self, rig: Rig, seconds: float) -> None:
        self._rig = rig
        self._card: Card = rig.host.cards[0]
        self._seconds = seconds

    def full_load(self) -> Record:
        """Measure power and utilization without a target, the upper limit of any target."""
        self._hold()
        time.sleep(_WARM_UP)
        samples = self._sample(_FULL)
        return {"utilization": _mean(samples, "utilization"), "watts": _mean(samples, "watts")}

    def reach(self, target: Target) -> Record:
        """Measure the mean reached with a target, and the curve by seconds."""
        sentinel = self._hold(*target.flags)
        first = len(sentinel.lines)
        samples = self._sample(self._seconds)
        settled = [sample for sample in samples if sample["s"] >= self._seconds / 3]
        shares = [line["share"] for line in sentinel.lines[first:] if "running_s" in line]
        figure = "utilization" if target.kind == "util" else "watts"
        return {
            "kind": target.kind,
            "target": target.value,
            "reached": _mean(settled, figure),
            "watts": _mean(settled, "watts"),
            "utilization": _mean(settled, "utilization"),
            "seconds": self._seconds,
            "shares": [round(share, 4) for share in shares],
            "curve": _by_second(samples),
        }

    def _hold(self, *flags: str) -> Sentinel:
        """Return a sentinel that has just started to hold the GPU."""
        self._rig.no_sentinel()
        sentinel = self._rig.sentinel(WORKLOAD, [self._card], *flags)
        sentinel.wait_held([self._card.uuid])
        return sentinel

    def _sample(self, seconds: float) -> list[Record]:
        """Sample utilization and power."""
        samples: list[Record] = []
        self._rig.host.telemetry(self._card.uuid)  # resets the period of the means
        time.sleep(_SAMPLE_EVERY)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            seen = self._rig.host.telemetry(self._card.uuid)
            samples.append({"s": now, "utilization": seen.utilization, "watts": seen.power})
            time.sleep(_SAMPLE_EVERY)
        return samples


def _mean(samples: Sequence[Record], figure: str) -> float | None:
    known = [sample[figure] for sample in samples if sample[figure] is not None]
    return fmean(known) if known else None


def _by_second(samples: Sequence[Record]) -> list[Record]:
    """Return the means of each second."""
    curve = []
    for second in range(int(samples[-1]["s"]) + 1):
        part = [sample for sample in samples if int(sample["s"]) == second]
        means = {figure: _mean(part, figure) for figure in ("utilization", "watts")}
        rounded = {name: None if mean is None else round(mean, 3) for name, mean in means.items()}
        curve.append({"s": second, **rounded})
    return curve


class PaceTable:
    """The results as a table for docs/internals/benchmarks.md; ``failed`` lists the missed bars."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self.failed: list[str] = []

    def render(self) -> str:
        """Return the last result of each target, each beside its bar."""
        lines = [
            "| target | reached | deviation | bar | verdict | power | utilization | seconds |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        full = self._results.of("pace-full")
        most = full[-1]["watts"] if full else None
        for target in TARGETS:
            records = self._results.of(target.name)
            if records:
                lines.append(self._row(target, records[-1], most))
        return "\n".join(lines)

    def _row(self, target: Target, found: Record, most: float | None) -> str:
        reached = found["reached"]
        if target.kind == "util":
            shown, bar, allowed = f"{target.value:.0%} busy", "3 points", _POINTS
        else:
            shown, bar, allowed = f"{target.value:.0f} W", "5 %", _SHARE * target.value
        if reached is None:
            cells = ["-", "-", bar, self._verdict(target, good=False)]
        elif target.kind == "util":
            off = reached - target.value
            good = self._verdict(target, good=abs(off) <= allowed)
            cells = [f"{reached:.1%}", f"{100 * off:+.1f} points", bar, good]
        else:
            off = reached - target.value
            if most is not None and most < target.value:
                good = f"draws {most:.0f} W at most"
            else:
                good = self._verdict(target, good=abs(off) <= allowed)
            cells = [f"{reached:.0f} W", f"{off / target.value:+.1%}", bar, good]
        watts, share = found["watts"], found["utilization"]
        cells.append("-" if watts is None else f"{watts:.0f} W")
        cells.append("-" if share is None else f"{share:.1%}")
        return f"| {shown} | {' | '.join(cells)} | {found['seconds']:.0f} |"

    def _verdict(self, target: Target, *, good: bool) -> str:
        if not good:
            self.failed.append(target.name)
        return "pass" if good else "**FAIL**"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pace", description=__doc__)
    add_options(parser, results="pace.jsonl")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the results, an .svg or .png"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STRETCH:.0f} s for each")
    parser.add_argument("--rearm", default="300ms", help="how long sentinel leaves a GPU alone")
    return parser.parse_args()


def measure(given: argparse.Namespace, results: Results) -> None:
    """Measure every target, and store each result when it is done."""
    with rig_of(given, given.rearm) as rig:
        pace = Pace(rig, QUICK_STRETCH if given.quick else STRETCH)
        add_machine(results, rig.host)
        results.add({"cell": "pace-full", "round": results.rounds("pace-full"), **pace.full_load()})
        for target in TARGETS:
            found = pace.reach(target)
            results.add({"cell": target.name, "round": results.rounds(target.name), **found})
            print(f"{target.name}: {found['reached']}", flush=True)


def main() -> int:
    """Measure and print the table; return 1 if a bar was missed."""
    given = parse()
    results = Results(given.results)
    if given.plot:
        from benchmarks.pace_plot import draw_pace  # matplotlib is slow to import

        draw_pace([results.of(t.name)[-1] for t in TARGETS if results.of(t.name)], given.plot)
        return 0
    if not given.table:
        measure(given, results)
    table = PaceTable(results)
    print(table.render())
    return int(bool(table.failed))


if __name__ == "__main__":
    sys.exit(main())
