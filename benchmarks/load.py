"""How hard sentinel loads a GPU, by workload: ``python -m benchmarks.load``; see README.md.

Each workload is compared with a bare torch loop of the same shape, before and after it, since the
card warms up meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.costs import census, spent
from benchmarks.host_gpus import Telemetry
from benchmarks.load_table import LoadTable
from benchmarks.measuring import add_machine, add_options, add_selection, rig_of, selected
from benchmarks.processes import Program, Rig, Sentinel, TooLateError
from benchmarks.results import Record, Results
from sentinel.config.specs import known_workloads

#: How long clocks and power take to settle.
_WARM_UP = 4.0
#: The interval of telemetry.
_EVERY = 0.2
#: How long sentinel is measured in each cell; each bare loop takes half of that.
SECONDS, QUICK_SECONDS = 12.0, 6.0
#: The duration of starts and ends, with and without a bare loop.
_AROUND, _AROUND_BARE = 25.0, 35.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row: a workload with its options, its rate, and the bare loop to compare with."""

    name: str
    workload: str
    rate: str = "flops_per_s"
    bare: str | None = None

    def seconds(self, stretch: float) -> float:
        """Return the typical duration."""
        both = 2 * _WARM_UP + stretch + _AROUND_BARE if self.bare else 0.0
        return _WARM_UP + stretch + _AROUND + both


#: The rows of the table. A workload or an option that does not exist is skipped with a message.
CELLS = (
    *(
        Cell(name=f"gemm {dtype}", workload=f"gemm:dtype={dtype}", bare=dtype)
        for dtype in ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
    ),
    Cell(name="elementwise", workload="elementwise", rate="bytes_per_s", bare="copy"),
    Cell(name="mixed", workload="mixed:seconds=1"),  # so that all of its phases run
    Cell(name="pulse", workload="pulse"),
    Cell(name="memtest", workload="memtest", rate="bytes_per_s"),
    Cell(name="hold", workload="hold"),
)


class NotHereError(Exception):
    """A workload or an option does not exist, or this card does not support it."""


class Load:
    """Measures rates and power on the first GPU.

    Args:
        rig: The processes.
        seconds: How long sentinel is measured; each bare loop takes half of that.
    """

    def __init__(self, rig: Rig, seconds: float) -> None:
        self._rig = rig
        self._card = rig.host.cards[0]
        self._seconds = seconds

    def measure(self, cell: Cell) -> Record:
        """Measure the bare loop, sentinel, and the bare loop again.

        Raises:
            NotHereError: There is nothing to measure.
            TooLateError: An expected event did not happen in time.
        """
        if cell.workload.partition(":")[0] not in known_workloads():
            raise NotHereError("there is no such workload")
        bare = [self._bare(cell)] if cell.bare else []
        measured = self._with_sentinel(cell)
        self._rig.no_sentinel()
        bare += [self._bare(cell)] if cell.bare else []
        return {"workload": cell.workload, "rate": cell.rate, "bare": bare, **measured}

    def _bare(self, cell: Cell) -> Record:
        self._rig.no_sentinel()
        self._rig.wait_empty([self._card])
        arguments = [str(cell.bare), "--gpu", self._card.uuid, *self._rig.simulation_arguments()]
        loop = self._rig.start("benchmarks.torch_loops", *arguments, cards=[self._card])
        try:
            loop.ready()
            return self._sample(loop, cell.rate, self._seconds / 2)
        finally:
            self._rig.end(loop)

    def _with_sentinel(self, cell: Cell) -> Record:
        sentinel = self._rig.sentinel(cell.workload, [self._card])
        try:
            sentinel.wait_held([self._card.uuid])
        except TooLateError as error:
            refusals = [e["reason"] for e in sentinel.lines if e["event"] == "stressor.fatal"]
            if not refusals:
                raise
            raise NotHereError(refusals[0]) from error
        stressors = [process for kind, process in census(sentinel).values() if kind == "stressor"]
        before, began = sum(map(spent, stressors)), time.monotonic()
        found = self._sample(sentinel, cell.rate, self._seconds)
        cpu = (sum(map(spent, stressors)) - before) / (time.monotonic() - began)
        resident = max(process.memory_info().rss for process in stressors)
        wrong = _of(sentinel, "stressor.mismatch") + _of(sentinel, "stressor.finding")
        lost = _of(sentinel, "gpu.yielding") + _of(sentinel, "stressor.failed")
        if lost:
            raise TooLateError(f"the stressor did not stay: {lost[0]}")
        return {
            "sentinel": found,
            "wrong": len(wrong),
            "stressor_cpu": cpu,
            "stressor_rss": resident,
        }

    def _sample(self, program: Program, rate: str, seconds: float) -> Record:
        """Return the means of a period, after a warm-up."""
        time.sleep(_WARM_UP)
        first = len(program.lines)
        began, samples = time.monotonic(), [self._read()]
        while time.monotonic() - began < seconds:
            time.sleep(_EVERY)
            samples.append(self._read())
        took = time.monotonic() - began
        own_lines = [
            line
            for line in program.lines[first:]
            if rate in line and line.get("gpu", self._card.uuid) == self._card.uuid
        ]
        if not own_lines:
            raise TooLateError(f"{' '.join(program.command())} reported no {rate}")
        return {
            "rate": fmean(line[rate] for line in own_lines),
            "checks": sum(line.get("checks", 0) for line in own_lines),
            "watts": _watts(samples, took),
            "limit": samples[-1].limit,
            "sm_clock": _median([sample.sm_clock for sample in samples]),
            "temperature": max((s.temperature or 0 for s in samples), default=0) or None,
        }

    def _read(self) -> Telemetry:
        return self._rig.host.telemetry(self._card.uuid)


def _of(sentinel: Sentinel, name: str) -> list[Record]:
    return [line for line in sentinel.lines if line["event"] == name]


def _watts(samples: Sequence[Telemetry], seconds: float) -> float | None:
    """Return energy over time, or the mean power if the card does not count energy."""
    first, last = samples[0].energy, samples[-1].energy
    if first is not None and last is not None and last > first:
        return (last - first) / seconds
    power = [sample.power for sample in samples if sample.power is not None]
    return fmean(power) if power else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


# --- the command line ------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    add_options(parser, results="load.jsonl")
    add_selection(parser, what="row")
    parser.add_argument(
        "--seconds", type=float, default=None, help=f"for each row [default: {SECONDS:g}]"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS:g} s for each row")
    return parser.parse_args()


def run(given: argparse.Namespace, results: Results, plan: Sequence[Cell]) -> None:
    """Measure the missing rows while there is time."""
    seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    deadline = time.monotonic() + given.budget
    with rig_of(given, given.rearm) as rig:
        load = Load(rig, seconds)
        add_machine(results, rig.host)
        for cell in plan:
            if results.rounds(cell.name):
                continue
            if time.monotonic() + cell.seconds(seconds) > deadline:
                print(f"{cell.name}: no time left", flush=True)
                continue
            try:
                record = load.measure(cell)
            except NotHereError as error:
                print(f"{cell.name}: skipped: {error}", flush=True)
            except Exception as error:  # noqa: BLE001 - the other rows must still be measured
                print(f"{cell.name}: {type(error).__name__}: {error}", flush=True)
                results.add({"cell": f"{cell.name}: failed", "round": 0, "error": repr(error)})
                rig.reset()
            else:
                results.add({"cell": cell.name, "round": 0, "seconds": seconds, **record})
                print(f"{cell.name}: {record['sentinel']}", flush=True)


def main() -> int:
    """Measure and print the table; return 1 if a bar was missed."""
    given = parse()
    if given.list:
        print("\n".join(f"{cell.name}: {cell.workload}" for cell in CELLS))
        return 0
    plan = selected(CELLS, given.only)
    results = Results(given.results)
    if not given.table:
        run(given, results, plan)
    table = LoadTable(results, [cell.name for cell in CELLS])
    print(table.render())
    for bar in table.failed:
        print(f"missed: {bar}")
    return int(bool(table.failed))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
