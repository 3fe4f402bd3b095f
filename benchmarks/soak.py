"""Occupy and yield GPUs thousands of times, and measure whether anything grows; see README.md.

On simulated GPUs, or with ``--real`` on those of this host. The exit code is 1 if a measure grew,
a newcomer did not get its memory, or the daemon did not do all cycles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.growth import PER, Measure, Sample, Trend, distribution, trend
from benchmarks.host_gpus import Card
from benchmarks.measuring import host_of
from benchmarks.processes import Program, Rig, TooLateError
from benchmarks.results import Results
from benchmarks.watched_daemon import (
    HISTORY_BYTES,
    LASTING,
    MAX_LOG_BYTES,
    Event,
    WatchedDaemon,
    cpu_shares,
    is_failure,
)
from sentinel.host.log_file import MAX_OLD_FILES

#: A cycle that takes longer than this, on all GPUs, ends the run.
_CYCLE_S = 120.0
#: A newcomer requests this share of the GPU.
_SHARE = 0.97
#: The longest stay of a newcomer on a simulated GPU, in seconds.
_STAY_S = 0.2

#: The flags of the daemon: the shortest pauses that it allows.
_FLAGS = ("--rearm=100ms", "--rearm-longest=100ms", "--workload=hold")
#: On a simulated GPU, reads take the processor that other processes need.
_SIMULATED = ("--poll=200ms", "--watch-interval=40ms", "--unwatched-after=5s", "--status-every=1s")
#: On a real GPU: few chunks, so that a start is short.
_REAL = ("--poll=100ms", "--memory=16GiB", "--chunk=4GiB", "--status-every=10s")

#: The series of latencies, with one sample per cycle.
HANDOVER = "hand-over"

_KIB = 1024.0
#: Memory may grow by 100 bytes per cycle: the times of the newcomers of the last hour are kept. At
#: 1,000 hand-overs a day that would be 36 MB in a year.
_MEMORY_RATE = 100 * PER / _KIB
#: Over a whole run it may grow by two of Python's arenas of 1 MiB.
_MEMORY_STEP = 2048.0
#: The API process grows with its first 30,000 views and events, for a quarter of an hour; SQLite's
#: cache is 2 MiB of that. So half of a run is its warm-up, and a short run may grow by 4 MiB.
_SERVICE_STEP, _SERVICE_WARM_UP = 4096.0, 0.5
#: Any count may differ by two between the ends of a run.
_COUNT_STEP = 2.0

MEASURES = (
    *(
        Measure(name=f"{kind}: USS", unit="KiB", rate=_MEMORY_RATE, step=_MEMORY_STEP)
        for kind in LASTING
        if kind != "service"
    ),
    Measure(
        name="service: USS",
        unit="KiB",
        rate=_MEMORY_RATE,
        step=_SERVICE_STEP,
        warm_up=_SERVICE_WARM_UP,
    ),
    *(
        Measure(name=name, unit="", step=_COUNT_STEP)
        for name in (
            *(f"{kind}: {what}" for what in ("descriptors", "threads") for kind in LASTING),
            *("children", "zombies", "files"),
        )
    ),
    Measure(name="bytes", unit="KiB", step=64.0),
    # By design these grow up to their limits. SQLite's journal comes on top of the history.
    Measure(name="log: files", unit="", limit=MAX_OLD_FILES + 1),
    Measure(name="log: bytes", unit="KiB", limit=MAX_LOG_BYTES / _KIB),
    Measure(name="history: bytes", unit="KiB", limit=1.5 * HISTORY_BYTES / _KIB),
)


def latency_measure(values: Sequence[Sample]) -> Measure:
    """Return the measure of hand-over latencies, which may grow by a tenth of their median.

    Other programs on the machine change the latency by more than that for a while.
    """
    median = distribution([value for _, value in values]).get("p50", 0.0)
    return Measure(name=HANDOVER, unit="ms", step=median / 10)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a newcomer got, and how long it waited."""

    gpu: str
    got: bool
    #: From its first byte until the memory was free; on a real GPU, from its start to its memory.
    wait_s: float | None


class Newcomers(Protocol):
    """Foreign processes, one at a time on a GPU."""

    def arrive(self, card: Card) -> None:
        """Let a newcomer take the GPU, and leave it soon."""

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what newcomers have got since the last call."""


class SimulatedNewcomers:
    """Newcomers on simulated GPUs, forked by one program."""

    def __init__(self, rig: Rig, limit_s: float) -> None:
        self._jobs = rig.start(
            *("benchmarks.foreign_jobs", "--limit", str(limit_s)), *rig.simulation_arguments()
        )
        self._jobs.ready()
        self._gpus: list[str] = []

    def arrive(self, card: Card) -> None:
        """Let a newcomer take the GPU, and leave it soon."""
        self._gpus.append(card.uuid)
        order = {"job": len(self._gpus) - 1, "gpus": [card.uuid], "size": int(card.total * _SHARE)}
        self._jobs.send_line(json.dumps({**order, "stay": random.uniform(0, _STAY_S)}))

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what newcomers have got since the last call."""
        for line in self._jobs.take_lines():
            if line.get("event") == "got":
                gpu = self._gpus[line["job"]]
                yield Outcome(gpu=gpu, got=line["got"], wait_s=line["wait_s"])


class Programs:
    """Bare CUDA programs, or sentinel's test jobs; the next one is always loaded."""

    def __init__(self, rig: Rig, cards: Sequence[Card]) -> None:
        self._rig = rig
        self._running: dict[str, Program] = {}
        for card in cards:
            rig.expect("bare", card, int(card.total * _SHARE), 1)

    def arrive(self, card: Card) -> None:
        """Let a newcomer take the GPU, and leave it soon."""
        program = self._rig.next_newcomer("bare", card, int(card.total * _SHARE))
        program.send_line("go")
        self._running[card.uuid] = program
        self._rig.expect("bare", card, int(card.total * _SHARE), 1)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what newcomers have got since the last call."""
        for uuid, program in list(self._running.items()):
            results = [line for line in program.lines if "got" in line]
            if results:
                del self._running[uuid]
                program.process.wait()
                self._rig.end(program)
                (result,) = results
                yield Outcome(gpu=uuid, got=result["got"], wait_s=result.get("memory_s"))


@dataclass
class Soak:
    """The cycles so far, and what was measured meanwhile.

    Attributes:
        daemon: The daemon under test.
        newcomers: The foreign processes.
        cards: The GPUs, all of which take part.
    """

    daemon: WatchedDaemon
    newcomers: Newcomers
    cards: Sequence[Card]
    cycles: int = 0
    events: Counter[str] = field(default_factory=Counter)
    failed: list[Event] = field(default_factory=list)
    refused: int = 0
    series: dict[str, list[Sample]] = field(default_factory=dict)
    stopped: bool = False

    def stop(self, *_: object) -> None:
        """End the run after this cycle: what was measured until then is recorded."""
        self.stopped = True

    def run(self, cycles: int, seconds: float, every_s: float) -> None:
        """Do so many cycles, or as many as the time allows; sample ``every_s`` seconds.

        Raises:
            TooLateError: No cycle was completed for a long time.
        """
        by_uuid = {card.uuid: card for card in self.cards}
        began = last = sampled = time.monotonic()
        until = began + seconds
        while self.cycles < cycles and time.monotonic() < until and not self.stopped:
            for event in self.daemon.events(0.05):
                self.events[event["event"]] += 1
                if is_failure(event):
                    self.failed.append(event)
                if event["event"] == "stressor.ready":
                    self.newcomers.arrive(by_uuid[event["gpu"]])
                elif event["event"] == "gpu.handed_over":
                    self.cycles += 1
                    last = time.monotonic()
                    if self.cycles % 500 == 0:
                        print(f"{self.cycles} cycles, {last - began:.0f} s", flush=True)
            self._collect()
            if time.monotonic() - sampled >= every_s:
                sampled = time.monotonic()
                self._sample()
            if time.monotonic() - last > _CYCLE_S:
                raise TooLateError(f"no cycle for {_CYCLE_S:.0f} s: {dict(self.events)}")

    def _collect(self) -> None:
        for outcome in self.newcomers.outcomes():
            self.refused += not outcome.got
            if outcome.wait_s is not None:
                waits = self.series.setdefault(HANDOVER, [])
                waits.append((self.cycles, outcome.wait_s * 1000))

    def _sample(self) -> None:
        for name, value in self.daemon.sample().items():
            is_bytes = name.endswith(("USS", "bytes"))
            scaled = value / _KIB if is_bytes else value
            self.series.setdefault(name, []).append((self.cycles, scaled))


def judge(series: dict[str, list[Sample]]) -> list[Trend]:
    """Judge every series of a run."""
    trends = [trend(measure, series.get(measure.name, [])) for measure in MEASURES]
    latencies = series.get(HANDOVER, [])
    return [*trends, trend(latency_measure(latencies), latencies)]


def judge_recorded(results: Results) -> list[Trend]:
    """Judge the series of the run in a results file."""
    start = "series "
    return judge(
        {
            record["cell"].removeprefix(start): [(x, y) for x, y in record["samples"]]
            for record in results.records
            if record["cell"].startswith(start)
        }
    )


def table(trends: Sequence[Trend]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| measure | at first | at last | highest | per 1,000 cycles | allowed | verdict |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in trends:
        unit = f" {one.measure.unit}" if one.measure.unit else ""
        values = (f"{value:,.1f}{unit}" for value in (one.first, one.last, one.highest))
        slope = f"{one.slope:+,.2f} ± {one.error:,.2f}{unit}"
        limit = one.measure.limit
        allowed = f"{one.allowed:,.2f}{unit}" if limit is None else f"at most {limit:,.0f}{unit}"
        verdict = f"**{one.verdict}**" if one.failed else one.verdict
        yield f"| {one.measure.name} | {' | '.join(values)} | {slope} | {allowed} | {verdict} |"


def failures(soak: Soak, trends: Sequence[Trend], wanted: int) -> list[str]:
    """List everything that makes the run fail."""
    found = [f"{one.measure.name}: {one.verdict}" for one in trends if one.failed]
    if soak.cycles < wanted:
        found.append(f"{soak.cycles} cycles of {wanted}")
    if soak.refused:
        found.append(f"{soak.refused} newcomers did not get their memory")
    return [*found, *(f"{event['event']}: {event.get('reason')}" for event in soak.failed[:20])]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("soak.jsonl"), metavar="FILE")
    parser.add_argument("--table", action="store_true", help="only print the results as a table")
    parser.add_argument("--cycles", type=int, default=10_000, metavar="N")
    parser.add_argument("--simulate", type=int, default=10, metavar="N", help="simulated GPUs")
    parser.add_argument("--real", action="store_true", help="use the GPUs of this host")
    parser.add_argument(
        "--programs", action="store_true", help="each newcomer is a program, as on real GPUs"
    )
    parser.add_argument("--gpus", type=int, nargs="*", default=(), metavar="INDEX")
    parser.add_argument(
        "--seconds", type=float, help="end after this time [default: 600 with --real]"
    )
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples")
    parser.add_argument(
        "--limit", type=float, default=5.0, help="seconds that a newcomer waits for its memory"
    )
    given = parser.parse_args(arguments)
    if given.real:
        given.simulate, given.programs = 0, True
        given.seconds = given.seconds or 600.0
    return given


def measure(given: argparse.Namespace, results: Results) -> None:
    """Do the cycles, and record what was measured."""
    with ExitStack() as stack:
        host = stack.enter_context(host_of(given.simulate, given.gpus))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-soak-")))
        rig = Rig(host, given.results.with_suffix(".log"), "100ms")
        stack.callback(rig.reset)
        newcomers: Newcomers = (
            Programs(rig, host.cards) if given.programs else SimulatedNewcomers(rig, given.limit)
        )
        flags = (*_FLAGS, *(_REAL if given.real else _SIMULATED))
        daemon = WatchedDaemon(rig, folder, host.cards, *flags)
        soak = Soak(daemon=daemon, newcomers=newcomers, cards=host.cards)
        began, cpu = time.monotonic(), psutil.cpu_times()
        error = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, soak.stop)
        try:
            soak.run(given.cycles, given.seconds or float("inf"), given.every)
        except TooLateError as late:
            error = str(late)
        seconds, shares = time.monotonic() - began, cpu_shares(cpu)
        machine = {**host.describe(), "date": time.strftime("%Y-%m-%d")}
    wanted = 1 if given.seconds else given.cycles
    failed = [*([error] if error else []), *failures(soak, judge(soak.series), wanted)]
    results.add({"cell": "machine", "round": 0, **machine})
    for name, series in soak.series.items():
        rows = [[round(x), round(y, 1)] for x, y in series]
        results.add({"cell": f"series {name}", "round": 0, "samples": rows})
    waits = distribution([value for _, value in soak.series.get(HANDOVER, [])])
    summary = {"cycles": soak.cycles, "seconds": round(seconds), "latency_ms": waits}
    summary |= {"refused": soak.refused, "events": dict(soak.events), "cpu": shares}
    results.add({"cell": "soak", "round": 0, **summary, "failed": failed})


def report(results: Results) -> int:
    """Print the outcome of a recorded run; return 1 if something failed."""
    print("\n".join(table(judge_recorded(results))))
    (summary,) = results.of("soak")
    waits = ", ".join(f"{name} {value:.0f}" for name, value in summary["latency_ms"].items())
    print(f"\n{summary['cycles']} cycles in {summary['seconds']} s, hand-over in ms: {waits}")
    print(f"{summary['refused']} newcomers did not get their memory; processor: {summary['cpu']}")
    for reason in summary["failed"]:
        print(f"FAIL: {reason}")
    return int(bool(summary["failed"]))


def main() -> int:
    """Run the soak, or print the outcome of one."""
    given = parse()
    if not given.table:
        with contextlib.suppress(FileNotFoundError):
            given.results.unlink()
        measure(given, Results(given.results))
    return report(Results(given.results))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
