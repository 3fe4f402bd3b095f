"""How soon an idle GPU works at full power: ``python -m benchmarks.startup``; see README.md."""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.faults import titled
from benchmarks.host_gpus import Card
from benchmarks.measuring import add_machine, add_options, rig_of
from benchmarks.power import PowerMeter, full_power
from benchmarks.processes import Rig, Sentinel
from benchmarks.results import Record, Results

#: How long the power is sampled once a GPU is held, and from when the later median is taken.
_WATCH_S, _LATER_S = 7.0, 4.0
#: How long a newcomer keeps a GPU.
_STAY_S = 1.5
#: How long a standby stressor may take to be prepared.
_PATIENCE_S = 60.0
_FIRST, _OFTEN, _EVERY_GPU = "first of a daemon", "often", "every GPU"
#: How long another tool runs.
_RIVAL_S = 20.0

#: The columns of the table, by the fields of a record.
_COLUMNS = {
    "start_after_exit_s": "exit to start",
    "ready_s": "start to ready",
    "from starting": "start to full power",
    "from exit, beyond rearm": "exit to full power, beyond rearm",
    "from launch": "launch to full power",
    "ready, from exit, beyond rearm": "exit to ready, beyond rearm",
    "import_s": "import of torch",
    "first_ready_s": "launch to first ready",
    "last_ready_s": "launch to last ready",
    "last ready, from exit, beyond rearm": "exit to last ready, beyond rearm",
}

#: The maximum medians, in seconds.
BARS = {"from starting": 1.5, "from exit, beyond rearm": 2.0}
#: What nine of ten starts may take while newcomers come without a pause, in seconds.
OFTEN_BAR = 1.3
#: What the first stressor of a daemon may take beyond an import of torch, in seconds.
FIRST_BAR = 1.0


@dataclass(frozen=True, kw_only=True)
class Startup:
    """The measurement, with the processes of one rig."""

    rig: Rig
    workload: str
    rearm_s: float

    def after_a_handover(self, *flags: str) -> Record:
        """Let a newcomer take and leave the GPU, and measure until full power."""
        card = self.rig.host.cards[0]
        newcomer = self.rig.newcomer("bare", card, 2**20, _STAY_S)
        newcomer.ready()
        sentinel = self.rig.sentinel(self.workload, [card], *flags)
        sentinel.wait_held([card.uuid])
        if "--standby=off" not in flags:
            wait_prepared(sentinel)
        before = len(sentinel.lines)
        newcomer.send_line("go")
        sentinel.wait_event("gpu.yielding", card.uuid, 20, before)
        before = len(sentinel.lines)
        newcomer.process.wait(20)
        left = time.monotonic()
        meter = PowerMeter(self.rig.host, card.uuid)
        starting = sentinel.wait_event("stressor.starting", card.uuid, 20, before)
        ready = sentinel.wait_event("stressor.ready", card.uuid, 60, before)
        time.sleep(_WATCH_S)
        at, median = full_power(meter.stop(), ready["at"] + _LATER_S)
        self.rig.end(newcomer)
        return {
            "standby": starting.get("standby"),
            "start_after_exit_s": starting["at"] - left,
            "ready_s": ready["at"] - starting["at"],
            "from starting": None if at is None else at - starting["at"],
            "from exit, beyond rearm": None if at is None else at - left - self.rearm_s,
            "watts": median,
        }

    def among_many(self, every_s: float) -> Record:
        """Let a newcomer take and leave the GPU, and return so long after the last one came."""
        card = self.rig.host.cards[0]
        self.rig.expect("bare", card, 2**20, 2)
        sentinel = self.rig.sentinel(self.workload, [card])
        sentinel.wait_held([card.uuid])
        newcomer = self.rig.next_newcomer("bare", card, 2**20)
        before, came = len(sentinel.lines), time.monotonic()
        newcomer.send_line("go")
        sentinel.wait_event("gpu.yielding", card.uuid, 20, before)
        before = len(sentinel.lines)
        newcomer.process.wait(20)
        left = time.monotonic()
        starting = sentinel.wait_event("stressor.starting", card.uuid, 20, before)
        ready = sentinel.wait_event("stressor.ready", card.uuid, 60, before)
        self.rig.end(newcomer)
        time.sleep(max(0.0, came + every_s - time.monotonic()))
        return {
            "standby": starting.get("standby"),
            "start_after_exit_s": starting["at"] - left,
            "ready_s": ready["at"] - starting["at"],
            "ready, from exit, beyond rearm": ready["at"] - left - self.rearm_s,
        }

    def first(self) -> Record:
        """Import torch alone; then launch a daemon, until its first stressor is ready."""
        card = self.rig.host.cards[0]
        self.rig.no_sentinel()
        self.rig.wait_empty([card])
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        imported = time.monotonic() - began
        began = time.monotonic()
        sentinel = self.rig.sentinel(self.workload, [card])
        ready = sentinel.wait_event("stressor.ready", card.uuid, _PATIENCE_S, 0)
        return {"import_s": imported, "first_ready_s": ready["at"] - began}

    def on_every_gpu(self) -> Record:
        """Launch a daemon for all GPUs, then end a job on all of them; watts are of all."""
        cards = self.rig.host.cards
        self.rig.no_sentinel()
        self.rig.wait_empty(cards)
        newcomers = [self.rig.newcomer("bare", card, 2**20, _STAY_S) for card in cards]
        for newcomer in newcomers:
            newcomer.ready()
        began = time.monotonic()
        sentinel = self.rig.sentinel(self.workload, cards)
        launched = [at - began for at in _all_ready(sentinel, cards, 0)]
        wait_prepared(sentinel)
        before = len(sentinel.lines)
        for newcomer in newcomers:
            newcomer.send_line("go")
        for card in cards:
            sentinel.wait_event("gpu.yielding", card.uuid, 20, before)
        for newcomer in newcomers:
            newcomer.process.wait(20)
        left = time.monotonic()
        again = [at - left - self.rearm_s for at in _all_ready(sentinel, cards, before)]
        for newcomer in newcomers:
            self.rig.end(newcomer)
        time.sleep(_LATER_S)
        watts = [self.rig.host.power_now(card.uuid) for card in cards]
        return {
            "gpus": len(cards),
            "first_ready_s": min(launched),
            "last_ready_s": max(launched),
            "ready, from exit, beyond rearm": min(again),
            "last ready, from exit, beyond rearm": max(again),
            "watts": sum(filter(None, watts)),
        }

    def from_launch(self, command: list[str]) -> Record:
        """Launch another tool on the empty GPU, and measure until full power."""
        card = self.rig.host.cards[0]
        self.rig.no_sentinel()
        self.rig.wait_empty([card])
        meter = PowerMeter(self.rig.host, card.uuid)
        began = time.monotonic()
        tool = self.rig.start(*command, cards=[card])
        time.sleep(_RIVAL_S)
        at, median = full_power(meter.stop(), time.monotonic() - 3.0)
        _end_all(tool.pid)
        with suppress(Exception):
            self.rig.end(tool)
        return {"from launch": None if at is None else at - began, "watts": median}


def _all_ready(sentinel: Sentinel, cards: Sequence[Card], before: int) -> list[float]:
    """Return when the stressor of each GPU was ready after so many lines."""
    return [
        sentinel.wait_event("stressor.ready", card.uuid, _PATIENCE_S, before)["at"]
        for card in cards
    ]


def wait_prepared(sentinel: Sentinel) -> None:
    """Wait until the standby stressor has loaded everything."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with suppress(psutil.Error):
            children = psutil.Process(sentinel.process.pid).children(recursive=True)
            if any(titled(process, "sentinel: standby, becomes") for process in children):
                return
        time.sleep(0.1)
    raise TimeoutError("the standby stressor was not prepared in time")


def _end_all(pid: int) -> None:
    """Kill a tool with everything that it started."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                member.kill()


def table(results: Results) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| | rounds | " + " | ".join(_COLUMNS.values()) + " | W |"
    yield "|---" * (len(_COLUMNS) + 3) + "|"
    for cell in sorted({record["cell"] for record in results.records} - {"machine"}):
        rows = results.of(cell)
        texts = []
        for name in _COLUMNS:
            values = [row[name] for row in rows if row.get(name) is not None]
            text = f"{statistics.median(values):.2f} s" if values else ""
            spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
            texts.append(text + spread)
        watts = [row["watts"] for row in rows if "watts" in row]
        text = f"{statistics.median(watts):.0f}" if watts else ""
        yield f"| {cell} | {len(rows)} | {' | '.join(texts)} | {text} |"


def missed(results: Results) -> Iterator[str]:
    """Yield the bars that the ordinary setting missed."""
    for name, bar in BARS.items():
        values = [row[name] for row in results.of("sentinel")]
        if values and (None in values or statistics.median(values) > bar):
            yield f"{name}: the median is above {bar:g} s"
    often = sorted(row["ready_s"] for row in results.of(_OFTEN))
    if often and often[int(0.9 * (len(often) - 1))] > OFTEN_BAR:
        yield f"{_OFTEN}: more than one in ten starts took longer than {OFTEN_BAR:g} s"
    beyond = [row["first_ready_s"] - row["import_s"] for row in results.of(_FIRST)]
    if beyond and statistics.median(beyond) > FIRST_BAR:
        yield f"{_FIRST}: the median is more than {FIRST_BAR:g} s beyond the import"


def main() -> int:
    """Measure and print the table; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    add_options(parser, results="startup.jsonl")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--workload", default="gemm")
    parser.add_argument("--without-standby", type=int, default=0, metavar="N", help="more rounds")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="launches of a daemon")
    parser.add_argument("--often", type=int, default=0, metavar="N", help="newcomers in a row")
    parser.add_argument("--every-gpu", type=int, default=0, metavar="N", help="all at once")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="of --often")
    parser.add_argument(
        *("--rival", "-r"), action="append", default=[], metavar="NAME=COMMAND", dest="rivals"
    )
    parser.add_argument("--rival-rounds", type=int, default=3, metavar="N")
    given = parser.parse_args()
    results = Results(given.results)
    if not given.table:
        with rig_of(given, "300ms") as rig:
            startup = Startup(rig=rig, workload=given.workload, rearm_s=0.3)
            add_machine(results, rig.host)
            for number in range(given.rounds):
                _add(results, "sentinel", number, startup.after_a_handover())
            for number in range(given.first):
                _add(results, _FIRST, number, startup.first())
            for number in range(given.often):
                _add(results, _OFTEN, number, startup.among_many(given.every))
            for number in range(given.every_gpu):
                _add(results, _EVERY_GPU, number, startup.on_every_gpu())
            for number in range(given.without_standby):
                record = startup.after_a_handover("--standby=off")
                _add(results, "sentinel --standby off", number, record)
            for rival in given.rivals:
                name, _, command = rival.partition("=")
                for number in range(given.rival_rounds):
                    _add(results, name, number, startup.from_launch(shlex.split(command)))
    print("\n".join(table(results)))
    failed = list(missed(results))
    for bar in failed:
        print(f"missed: {bar}")
    return int(bool(failed))


def _add(results: Results, cell: str, number: int, record: Record) -> None:
    results.add({"cell": cell, "round": number, **record})
    print(cell, number, record, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
