"""The folder of an invented fleet: one node's report, varied for each node, with faults to find."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.levels import find_plan
from sentinel.fleet.node_files import FleetFiles, read_fleet
from sentinel.fleet.run_folder import FleetFolder, FleetRun
from sentinel.fleet.verdict import FleetVerdict, judge_fleet
from tests.harness.example_run import ExampleRun, report_of

#: The key and the value of the golden checksum of a good GPU.
KEY, GOOD, WRONG = "NVIDIA H200/torch 2.11/gemm bf16/1", "0x5eed", "0xbad"
#: When runs are submitted.
SUBMITTED = datetime(2026, 11, 23, tzinfo=UTC)
#: The measurements that differ between GPUs by so many of the median, as on real cards.
_SPREADS = {"flops_per_s": 0.004, "power_w": 0.003, "temperature_c": 0.03}


def node_report(folder: Path, run: ExampleRun | None = None, *, gpus: int = 8) -> dict[str, Any]:
    """Build the report of one node whose GPUs pass, from the folder of a run."""
    node = ExampleRun(gpus=gpus, every=6.0, expectation=f"gpus = {gpus}")
    return report_of(run or node, folder / "template")


@dataclass(kw_only=True)
class ExampleFleet:
    """Nodes of equal hardware; GPUs are named by the node and their index."""

    nodes: int = 6
    #: The report of one node; see ``tests/harness/example_run.py`` for one.
    template: Mapping[str, Any]
    #: Of the factors by which figures vary.
    seed: int = 1
    #: The factor of the rate of single GPUs, and of all GPUs of a node.
    rates: Mapping[tuple[int, int], float] = field(default_factory=dict)
    node_rates: Mapping[int, float] = field(default_factory=dict)
    #: What is added to the temperature of single GPUs, in degrees.
    heat: Mapping[tuple[int, int], float] = field(default_factory=dict)
    #: GPUs with a wrong golden checksum.
    wrong: frozenset[tuple[int, int]] = frozenset()
    #: By GPU: what its counters are after the run.
    moved: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    #: Nodes without a file, with half of it, and with fewer GPUs.
    absent: frozenset[int] = frozenset()
    half: frozenset[int] = frozenset()
    short: frozenset[int] = frozenset()
    #: By node: the verdict of its GPU 0, for reports that are judged already.
    verdicts: Mapping[int, str] = field(default_factory=dict)
    #: By node: the enforced power limit.
    limits: Mapping[int, float] = field(default_factory=dict)
    #: By node: its GPUs whose fault is confirmed, and those that Sentinel found first.
    confirmed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: Whether the nodes have pages of their own.
    pages: bool = False
    #: By node: another report, or the text of its file.
    reports: Mapping[int, Mapping[str, Any] | str] = field(default_factory=dict)

    def name(self, number: int) -> str:
        """Return the name of a node."""
        return f"node-{number:04}"

    @property
    def run(self) -> FleetRun:
        """What was run."""
        run = self.template["run"]
        return FleetRun(
            id="fleet-1",
            engine="slurm",
            level="standard",
            plan=run["plan"]["name"],
            plan_hash=run["plan"]["hash"],
            nodes=tuple(self.name(number) for number in range(self.nodes)),
            started=datetime.fromisoformat(run["started"]) - timedelta(minutes=1),
            jobs=("1234",),
            simulate=8 if run["simulated"] else None,
        )

    def write(self, path: Path, *, run_file: bool = True) -> FleetFolder:
        """Write the folder, with or without ``fleet.json``."""
        folder = FleetFolder(path=path)
        folder.create()
        if run_file:
            folder.write(self.run)
        for number in range(self.nodes):
            if number not in self.absent:
                report = self.reports.get(number) or self.report(number)
                text = report if isinstance(report, str) else json.dumps(report)
                cut = len(text) // 2 if number in self.half else len(text)
                folder.report(self.name(number)).write_text(text[:cut])
            if self.pages:
                page = folder.node(self.name(number)) / "report.html"
                page.parent.mkdir()
                page.write_text("<!doctype html><title>The page of a node</title>")
        return folder

    def report(self, number: int) -> dict[str, Any]:
        """Build the report of one node."""
        chance = random.Random(f"{self.seed}/{number}")
        report: dict[str, Any] = pickle.loads(pickle.dumps(dict(self.template)))  # noqa: S301
        report["node"] |= {"hostname": self.name(number), "machine_id": f"{number:032x}"}
        report["run"]["id"] = self.name(number)
        report["run"]["sha256"]["events.jsonl"] = f"{number:064x}"
        del report["run"]["confirmed_faulty"]
        if number in self.confirmed:
            known, first = self.confirmed[number]
            report["run"]["confirmed_faulty"] = {"known": known, "found_first": first}
        if number in self.short:
            report["gpus"].pop()
        for gpu in report["gpus"]:
            self._vary(gpu, number, chance)
        if (verdict := self.verdicts.get(number)) is not None:
            gpu = report["gpus"][0]
            gpu["verdict"] = report["verdict"] = verdict
            left = "phase copy not complete: 0 s of 15 s: SIGTERM"
            gpu["incomplete"] = [left] if verdict == "INCOMPLETE" else [f"it is {verdict}"]
        report["summary"] = dict(Counter(gpu["verdict"] for gpu in report["gpus"]))
        return report

    def _vary(self, gpu: dict[str, Any], number: int, chance: random.Random) -> None:
        """Give a GPU its own identity and figures."""
        place = number, int(gpu["index"])
        gpu["uuid"] = f"GPU-{UUID(int=chance.getrandbits(128), version=4)}"
        gpu["serial"] = f"{1650000000000 + number * 16 + place[1]}"
        gpu["golden_checksums"] = [
            {"key": KEY, "checksum": WRONG if place in self.wrong else GOOD, "stored": None}
        ]
        for reading in gpu["counters"].values():
            reading |= {"uuid": gpu["uuid"], "serial": gpu["serial"]}
            if number in self.limits:
                reading["power_limit_w"] = self.limits[number]
        gpu["counters"]["after"] |= self.moved.get(place, {})
        shared = {name: chance.gauss(1, spread) for name, spread in _SPREADS.items()}
        for one in gpu["measurements"]:
            factor = shared.get(one["name"], 1.0)
            if one["name"] == "flops_per_s":
                factor *= self.rates.get(place, 1.0) * self.node_rates.get(number, 1.0)
            more = self.heat.get(place, 0.0) if one["name"] == "temperature_c" else 0.0
            for key in ("median", "p5", "p95", "lowest", "highest"):
                one[key] = one[key] * factor + more


def just_accepted(template: Mapping[str, Any]) -> dict[str, Any]:
    """Change a report into one of the level standard, of two hours ago on real GPUs."""
    plan = find_plan("standard")
    done = {**template["run"]["plan"], "name": plan.name, "hash": plan.hash}
    started = (datetime.now().astimezone() - timedelta(hours=2)).isoformat()
    run = {**template["run"], "plan": done, "simulated": False, "started": started}
    return {**template, "run": run}


def fleet_run(*nodes: str, **changed: Any) -> FleetRun:
    """Build what ``fleet.json`` has of a run that was not submitted."""
    given: dict[str, Any] = {"id": "x", "engine": "slurm", "plan": "x", "plan_hash": "0" * 16}
    return FleetRun(**{**given, "nodes": nodes, "started": SUBMITTED, **changed})


class Fleets:
    """Invented fleets of one template, each in a folder of its own.

    Args:
        template: The report of one node.
        folder: Has the folders.
    """

    def __init__(self, template: dict[str, Any], folder: Path) -> None:
        self.template = template
        self._folder = folder
        self._count = 0

    def example(self, **given: Any) -> ExampleFleet:
        """Describe a fleet; see ``ExampleFleet``."""
        return ExampleFleet(**{"template": self.template, **given})

    def report(self, number: int, **given: Any) -> dict[str, Any]:
        """Build the report of a node."""
        return self.example(**given).report(number)

    def write(self, *, run_file: bool = True, **given: Any) -> FleetFolder:
        """Write the folder of a fleet."""
        self._count += 1
        return self.example(**given).write(self._folder / f"run{self._count}", run_file=run_file)

    def read(self, *, run_file: bool = True, **given: Any) -> FleetFiles:
        """Write the folder of a fleet, and read it."""
        return read_fleet(self.write(run_file=run_file, **given).path)

    def judged(self, *, run_file: bool = True, **given: Any) -> FleetVerdict:
        """Write the folder of a fleet, read it, and judge it."""
        return judge_fleet(self.read(run_file=run_file, **given), Thresholds())
