"""A burn-in on all GPUs, of which newcomers take the first one in some phases; see README.md."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.handover_race import SHARE
from benchmarks.host_gpus import Card
from benchmarks.measuring import add_machine, add_options, rig_of
from benchmarks.processes import STAGES, TIMEOUT_S, Program, Rig
from benchmarks.results import Record, Results

#: How long after the phase's stressor is ready a newcomer comes, and how long it stays.
_MOMENTS = (0.5, 3.0)
_STAY_S = 4.0
#: How often the events are read.
_READ_EVERY_S = 0.01


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interrupted_burnin", description=__doc__
    )
    add_options(parser, results="interrupted-burnin.jsonl")
    parser.add_argument("--level", default="standard")
    parser.add_argument("--plan", type=Path, help="a plan instead of a level")
    parser.add_argument(
        "--phases", default="memory,units,pulse", help="a newcomer in each of these phases"
    )
    parser.add_argument("--report", type=Path, help="folder of the reports")
    return parser.parse_args()


def run(rig: Rig, command: Sequence[str], phases: list[str], report: Path) -> Iterator[Record]:
    """Run a burn-in; yield the outcome of each newcomer, and that of the burn-in."""
    card = rig.host.cards[0]
    newcomers = Newcomers(rig, card)
    burnin = rig.start(*command, "--report", str(report), "--json", cards=rig.host.cards)
    events = (one for one in events_of(report, burnin) if one.get("gpu") == card.uuid)
    waiting = list(phases)
    yield from interrupt(events, waiting, newcomers.take)
    burnin.process.wait(TIMEOUT_S)
    yield {"exit_code": burnin.process.returncode, "no newcomer in": waiting, **verdict(report)}


def interrupt(
    events: Iterable[Record], waiting: list[str], take: Callable[[], Record]
) -> Iterator[Record]:
    """Yield the outcome of each newcomer, with the phase and the state that it met.

    One that met a start, or no stressor, does not count for its phase: another one comes.

    Args:
        events: Those of the GPU.
        waiting: The phases that are to have a newcomer; those that had one are removed.
        take: Lets a newcomer take the GPU.
    """
    phase, ready = "", False
    came: Record | None = None
    for event in events:
        if event["event"] == "burnin.phase_started":
            phase = event["phase"]
        if event["event"] in STAGES:
            ready = event["event"] == "stressor.ready"
        if came is not None:
            yielding = event["event"] == "gpu.yielding" and event["at"] >= came["came_at"]
            if not yielding and event["at"] <= came["left_at"]:
                continue
            state = event["stressor"] if yielding else None
            yield {"phase": phase, "stressor": state, "stage": event.get("stage"), **came}
            came = None
            if state == "RUNNING" and phase in waiting:
                waiting.remove(phase)
        if ready and phase in waiting:
            came = take()
    if came is not None:
        yield {"phase": phase, "stressor": None, **came}


class Newcomers:
    """Newcomers that request nearly all that one finds free on the empty GPU; one is loaded.

    Args:
        rig: The processes.
        card: The GPU.
    """

    def __init__(self, rig: Rig, card: Card) -> None:
        self._rig, self._card = rig, card
        first = rig.newcomer("bare", card, 0)
        first.ready()
        first.send_line("go")
        seen = first.wait(lambda line: "got" in line, TIMEOUT_S)
        rig.end(first)
        self._ask = int((seen.get("free") or card.total * 0.95) * SHARE)
        self._loaded = self._load()

    def _load(self) -> Program:
        return self._rig.newcomer("bare", self._card, self._ask, stay=_STAY_S)

    def take(self) -> Record:
        """Let a newcomer take the GPU in a while; return its outcome once it has left."""
        newcomer, self._loaded = self._loaded, self._load()
        newcomer.ready()
        time.sleep(random.uniform(*_MOMENTS))
        came_at = time.monotonic()
        newcomer.send_line("go")
        outcome = newcomer.wait(lambda line: "got" in line, TIMEOUT_S)
        newcomer.process.wait(TIMEOUT_S)
        self._rig.end(newcomer)
        return {**outcome, "came_at": came_at, "left_at": time.monotonic()}


def events_of(report: Path, burnin: Program) -> Iterator[Record]:
    """Follow the events of a run until it has ended."""
    path = report / "events.jsonl"
    while not path.exists():
        if burnin.process.poll() is not None:
            sys.exit(f"the burn-in ended with {burnin.process.returncode}: {burnin.lines}")
        time.sleep(_READ_EVERY_S)
    rest = ""
    with path.open() as file:
        while True:
            ended = burnin.process.poll() is not None  # before the read, so that none is missed
            rest += file.read()
            *lines, rest = rest.split("\n")
            yield from map(json.loads, lines)
            if ended:
                return
            time.sleep(_READ_EVERY_S)


def verdict(report: Path) -> Record:
    """Summarize the report."""
    found = json.loads((report / "report.json").read_text())
    gpus = [
        {
            "gpu": gpu["index"],
            "verdict": gpu["verdict"],
            "reasons": gpu["reasons"],
            "phases": sum(phase["complete"] for phase in gpu["coverage"]),
            "of": len(gpu["coverage"]),
            "checks": gpu["detection_power"]["checks"],
            "errors": gpu["detection_power"]["errors"],
            "interruptions": len(gpu["interruptions"]),
        }
        for gpu in found["gpus"]
    ]
    node = {"verdict": found["verdict"], "duration_s": found["run"]["duration_s"]}
    return {**node, "gpus": gpus}


def main() -> int:
    """Run the burn-in; return 1 if a newcomer got nothing or came too late for its phase."""
    given = parse()
    results = Results(given.results)
    report = given.report or Path(tempfile.mkdtemp(prefix="sentinel-benchmark-")) / "report"
    command = [sys.executable, "-m", "sentinel", "burnin"]
    command += ["--plan", str(given.plan)] if given.plan else ["--level", given.level]
    command += ["--simulate", str(given.simulate)] if given.simulate else []
    phases = [phase for phase in given.phases.split(",") if phase]
    good, cell = True, f"burnin-{given.plan.stem if given.plan else given.level}"
    with rig_of(given, "300ms") as rig:
        add_machine(results, rig.host)
        number = results.rounds(cell)
        for record in run(rig, command, phases, report):
            results.add({"cell": cell, "round": number, **record})
            print(json.dumps(record), flush=True)
            good = good and record.get("got", True) and not record.get("no newcomer in")
    print(f"reports: {report}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
