"""The hand-over benchmark: ``python -m benchmarks.handover``; see README.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.costs import Costs
from benchmarks.faults import FAULTS, HUNG, ON_EVERY_GPU, Faults
from benchmarks.handover_race import Races
from benchmarks.handover_starts import STARTS, Starts
from benchmarks.lanes import run_lanes
from benchmarks.measuring import add_machine, add_options, add_selection, rig_of, selected
from benchmarks.processes import HAS_MPS, HOST, PLACES, Rig
from benchmarks.report import WORKLOADS, Report
from benchmarks.results import Record, Results
from benchmarks.several_gpus import SeveralGpus

#: The other built-in workloads, and gemm in other dtypes, by the names of their cells.
OTHERS = {
    "memtest": "memtest",
    "mixed": "mixed:seconds=1",
    "pulse": "pulse",
    "gemm-fp8": "gemm:dtype=fp8",
    "gemm-int8": "gemm:dtype=int8",
    "gemm-fp64": "gemm:dtype=fp64",
}

_FORKING = Path(__file__).with_name("forking_workload")
#: Workloads that have forked many processes, by the names of their cells.
FORKS = {
    f"{way}-forks-{count}": f"{_FORKING}:by_{way}:count={count}"
    for way in ("python", "c")
    for count in (60, 500)
}

#: Newcomers that are loaded at the same time.
AHEAD = 4
QUICK = 3
#: The rounds of starts: most for those that take longest.
LONGEST_STARTS, START_ROUNDS, OTHER_START_ROUNDS = ("units-starting", "memtest-starting"), 200, 40
#: The failed rounds after which a cell is skipped: each may cost a minute and a half.
MAX_FAILURES = 2


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One repeated measurement.

    ``run`` does one round, given the number of newcomers to have loaded. ``seconds`` is the typical
    duration: a round is started only if the budget has so much left.
    """

    name: str
    rounds: int
    seconds: float
    run: Callable[[int], list[Record]]
    #: The rounds of other code do not count.
    code: str | None = None


def cells(rig: Rig, *, quick: bool) -> Iterator[Cell]:
    """List all measurements, grouped by sentinel, since it starts slowly."""
    races = Races(rig, {})
    stretch = 20.0 if quick else 60.0
    costs = Costs(rig, stretch)
    yield Cell(name="alone-bare", rounds=10, seconds=3, run=partial(races.alone, "bare"))
    yield Cell(name="alone-torch", rounds=5, seconds=6, run=partial(races.alone, "torch"))
    for workload in WORKLOADS:
        yield from race_cells(races, workload)
    for name, workload in OTHERS.items():
        race = partial(races.against_sentinel, "bare", workload)
        yield Cell(name=f"{name}-bare", rounds=5, seconds=15, run=race)
    for place in PLACES:
        for workload in WORKLOADS:
            race = partial(races.elsewhere, place, workload)
            yield Cell(name=f"{workload}-{place}", rounds=10, seconds=15, run=race)
    for name in ("memtest", "mixed"):  # these take most memory besides their chunks before Ready
        race = partial(races.elsewhere, "in-namespace", OTHERS[name])
        yield Cell(name=f"{name}-in-namespace", rounds=5, seconds=15, run=race)
    for name, workload in FORKS.items():
        race = partial(races.against_sentinel, "bare", workload)
        yield Cell(name=name, rounds=20, seconds=15, run=race)
    yield from start_cells(rig, races)
    stopping = partial(races.while_it_stops, "hold")
    yield Cell(name="hold-stopping", rounds=20, seconds=12, run=stopping)
    yield from mps_cells(rig, races)
    yield from fault_cells(rig, races)
    yield Cell(name="polling", rounds=5, seconds=15, run=partial(races.against_polling, "bare"))
    if len(rig.host.cards) > 1:
        yield from several_gpu_cells(rig, races)
    held = partial(costs.all_held, "gemm")  # the default
    for name, run in (
        ("cost-held", held),
        ("cost-held-nvidia-smi", partial(held, nvidia_smi=True)),
        ("cost-held-page", partial(held, pages=1)),
        ("cost-held-onlookers", partial(held, pages=1, scrapers=1)),
        ("cost-idle", costs.nothing_held),
    ):
        yield Cell(name=name, rounds=1, seconds=stretch + 15, run=measured(rig, run))


def race_cells(races: Races, workload: str) -> Iterator[Cell]:
    """List the races of one workload."""
    for kind, rounds in (("bare", 20), ("torch", 10)):
        run = partial(races.against_sentinel, kind, workload)
        yield Cell(name=f"{workload}-{kind}", rounds=rounds, seconds=12, run=run)
    if workload == "hold":  # the one with the least time to react
        run = partial(races.on_a_busy_host, "bare", workload)
        yield Cell(name="hold-bare-busy-host", rounds=10, seconds=20, run=run)
        run = partial(races.with_clients, "bare", workload)
        yield Cell(name="hold-bare-clients", rounds=10, seconds=15, run=run)
        run = partial(races.with_monitoring, "bare", workload)
        yield Cell(name="hold-bare-onlookers", rounds=10, seconds=15, run=run)
        run = partial(races.beside_nvidia_smi, "bare", workload)
        yield Cell(name="hold-bare-nvidia-smi", rounds=10, seconds=12, run=run)
    run = partial(races.against_floor, "bare", workload)
    yield Cell(name=f"floor-{workload}", rounds=7, seconds=12, run=run)


def start_cells(rig: Rig, races: Races) -> Iterator[Cell]:
    """List the races in starts of stressors."""
    starts = Starts(rig, races)
    places = [("", HOST, cell) for cell in STARTS]
    places += [("-in-namespace", PLACES["in-namespace"], cell) for cell in ("hold", "gemm")]
    for suffix, place, cell in places:
        name, race = f"{cell}-starting{suffix}", partial(starts.race, cell, place)
        rounds = START_ROUNDS if name in LONGEST_STARTS else OTHER_START_ROUNDS
        yield Cell(name=name, rounds=rounds, seconds=12, run=race, code=starts.code)


def mps_cells(rig: Rig, races: Races) -> Iterator[Cell]:
    """List the races of clients of an MPS server, where there can be one."""
    if HAS_MPS and rig.host.simulation is None:
        clients = partial(races.as_mps_clients, "hold")
        yield Cell(name="hold-mps-client", rounds=2, seconds=60, run=clients)


def fault_cells(rig: Rig, races: Races) -> Iterator[Cell]:
    """List the races after the death or the stop of one of sentinel's processes."""
    faults = Faults(rig, races)
    for fault in (*FAULTS, HUNG):
        for workload in WORKLOADS:
            race = partial(faults.race, fault, workload)
            yield Cell(name=f"{workload}-{fault}", rounds=20, seconds=18, run=race)


def several_gpu_cells(rig: Rig, races: Races) -> Iterator[Cell]:
    """List the measurements on all GPUs of a host that has several."""
    several, faults = SeveralGpus(rig, races), Faults(rig, races)
    at_once = unprepared(partial(races.on_every_gpu, "bare", "elementwise"))
    yield Cell(name="every-gpu-at-once", rounds=5, seconds=30, run=at_once)
    for fault in ON_EVERY_GPU:
        race = partial(faults.on_every_gpu, fault, "hold")
        yield Cell(name=f"every-gpu-{fault}", rounds=5, seconds=40, run=unprepared(race))
    if rig.host.simulation is None:
        for name, run in (("in-turn", several.in_turn), ("nccl", several.nccl)):
            race = partial(run, "hold")
            yield Cell(name=f"every-gpu-{name}", rounds=5, seconds=60, run=unprepared(race))
    onlooker = partial(several.onlooker, "hold")
    yield Cell(name="every-gpu-onlooker", rounds=3, seconds=60, run=unprepared(onlooker))


def unprepared(run: Callable[[], list[Record]]) -> Callable[[int], list[Record]]:
    """Wrap ``run`` as a round that has no newcomers loaded for the next ones."""
    return lambda _: run()


def measured(rig: Rig, run: Callable[[], list[Record]]) -> Callable[[int], list[Record]]:
    """Wrap ``run`` as a round without the memory watches, which would add their own cost."""

    def alone(_: int) -> list[Record]:
        rig.no_readers()
        return run()

    return alone


def measure(given: argparse.Namespace, results: Results) -> None:
    """Run the missing rounds of the selected cells, or list all cells."""
    deadline = time.monotonic() + given.budget
    with rig_of(given, given.rearm) as rig:
        every = list(cells(rig, quick=given.quick))
        if given.list:
            print("\n".join(f"{cell.name}: {cell.rounds}" for cell in every))
            return
        plan = selected(every, given.only)
        if given.lane is None:
            add_machine(results, rig.host)
        if given.lanes and given.lane is None:
            run_lanes(rig.host, "benchmarks.handover", sys.argv[1:])
            results.refresh()
            return
        for cell in plan:
            rounds = min(QUICK, cell.rounds) if given.quick else cell.rounds
            if given.rounds and cell.rounds > 1:
                rounds = given.rounds
            run_cell(rig, cell, results, rounds, deadline)


def run_cell(rig: Rig, cell: Cell, results: Results, rounds: int, deadline: float) -> None:
    """Run the missing rounds of a cell while there is time."""
    failures = 0
    while (done := results.rounds(cell.name, cell.code)) < rounds and failures < MAX_FAILURES:
        if time.monotonic() + cell.seconds > deadline:
            print(f"{cell.name}: no time left for round {done + 1}", flush=True)
            return
        began = time.monotonic()
        try:
            records = cell.run(min(AHEAD, rounds - done))
        except Exception as error:  # noqa: BLE001 - the other cells must still be measured
            print(f"{cell.name}: {type(error).__name__}: {error}", flush=True)
            results.add({"cell": f"{cell.name}: failed", "round": done, "error": repr(error)})
            failures += 1
            rig.reset()
            continue
        for record in records:
            results.add({"cell": cell.name, "round": done, **record})
        seconds = time.monotonic() - began
        print(f"{cell.name} {done + 1}/{rounds} {seconds:.1f} s: {_brief(records)}", flush=True)


def _brief(records: list[Record]) -> str:
    """Summarize the outcome of a round."""
    parts = []
    for record in records:
        if "got" not in record:
            parts.append(str(record))
            continue
        got = "got it" if record["got"] else f"REFUSED {record.get('error', '')}"
        kill = f", killed {record['margin_s'] * 1e3:.0f} ms after" if "margin_s" in record else ""
        parts.append(f"{got} after {record.get('memory_s', 0) * 1e3:.0f} ms{kill}")
    return "; ".join(parts)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handover", description=__doc__)
    add_options(parser, results="handover.jsonl")
    add_selection(parser, what="cell")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rounds of each race")
    parser.add_argument("--rounds", type=int, metavar="N", help="N rounds of each race")
    parser.add_argument("--lanes", action="store_true", help="a process for each GPU, side by side")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--code", help="count the starts of this code; default: the last one")
    return parser.parse_args()


def main() -> int:
    """Run the missing rounds and print the tables; return 1 if a bar was missed."""
    given = parse()
    results = Results(given.results, lane=given.lane)
    if not given.table:
        measure(given, results)
    if given.list or given.lane is not None:
        return 0
    report = Report(results, given.code)
    print(report.render())
    for bar in report.failed:
        print(f"missed: {bar}")
    return int(bool(report.failed))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
