"""How soon an idle GPU works at full power: ``python -m benchmarks.startup``; see README.md."""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.faults import titled
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
#: How long another tool runs.
_RIVAL_S = 20.0

#: The columns of the table, by the fields of a record.
_COLUMNS = {
    "start_after_exit_s": "exit to start",
    "ready_s": "start to ready",
    "from starting": "start to full power",
    "from exit, beyond rearm": "exit to full power, beyond rearm",
    "from launch": "launch to full power",
}

#: The maximum medians, in seconds.
BARS = {"from starting": 1.5, "from exit, beyond rearm": 2.0}


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
            _wait_prepared(sentinel)
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

    def from_launch(self, command: list[str]) -> Record:
        """Launch another tool on the empty GPU, and measure until full power."""
        card = self.rig.host.cards[0]
        self.rig.no_sentinel()
        self.rig.wait_empty([card])
        meter = PowerMeter(self.rig.host, card.uuid)
        began = time.monotonic()
        tool = self.rig.start(*command, card=card)
        time.sleep(_RIVAL_S)
        at, median = full_power(meter.stop(), time.monotonic() - 3.0)
        _end_all(tool.pid)
        with suppress(Exception):
            self.rig.end(tool)
        return {"from launch": None if at is None else at - began, "watts": median}


def _wait_prepared(sentinel: Sentinel) -> None:
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
        watts = statistics.median(row["watts"] for row in rows)
        yield f"| {cell} | {len(rows)} | {' | '.join(texts)} | {watts:.0f} |"


def missed(results: Results) -> Iterator[str]:
    """Yield the bars that the ordinary setting missed."""
    for name, bar in BARS.items():
        values = [row[name] for row in results.of("sentinel")]
        if not values or None in values or statistics.median(values) > bar:
            yield f"{name}: the median is above {bar:g} s"


def main() -> int:
    """Measure and print the table; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    add_options(parser, results="startup.jsonl")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--workload", default="gemm")
    parser.add_argument("--without-standby", type=int, default=0, metavar="N", help="more rounds")
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
