"""The report of a large fleet, merged and opened: ``python -m benchmarks.fleet_report``."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.browser import Page, browser, chromium
from tests.harness.example_fleet import ExampleFleet

#: The most that a merge may take: CPU time in seconds and resident memory in bytes.
MAX_CPU_S, MAX_BYTES = 60.0, 10**9
#: The page must be shown, and each operation be done, within this time.
MAX_PAGE_S = 2.0
#: GPUs of each node.
GPUS = 8
#: A GPU of a lower rate, by the median, fails; between this and 0.95, by its deviation.
MUST_FAIL = 0.88
#: The page is drawn and its script has run.
_READY = "document.readyState === 'complete' && !!document.querySelector('#map li[tabindex]')"
#: Resolves when what was changed is on the screen.
_DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
#: What a user does on the page.
OPERATIONS = {
    "filter by FAIL": "document.querySelector('[data-word=FAIL]').click()",
    "end the filter": "document.querySelector('[data-word=FAIL]').click()",
    "search a serial": (
        "search.value = '0512'; search.dispatchEvent(new Event('input', {bubbles: true}))"
    ),
    "end the search": "search.value = ''; search.dispatchEvent(new Event('input'))",
    "open a node": "document.querySelector('#n17').click()",
    "point at a GPU in a distribution": (
        "(() => { const svg = document.querySelector('.distribution svg');"
        " svg.scrollIntoView(); const box = svg.getBoundingClientRect();"
        " svg.dispatchEvent(new PointerEvent('pointermove',"
        " {clientX: box.left + box.width * 0.9, clientY: box.top + box.height / 2})); })()"
    ),
    "scroll to the end": "scrollTo(0, document.body.scrollHeight)",
}
#: What a node does, if no report is given.
_PLAN = """
spec = "sentinel-plan-v1"
name = "fleet"
title = "a short plan with a steady phase"
[[phase]]
name = "memory"
workload = "memtest"
passes = 1
[[phase]]
name = "steady"
workload = "gemm"
seconds = 3
steady = true
"""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What one format costs."""

    exit_code: int
    wall_s: float
    cpu_s: float
    resident_bytes: int


def main() -> int:
    """Measure, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument(
        "--template", type=Path, metavar="FILE", help="report.json of a node with a steady phase"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        template = _template(arguments.template or _burn_in(folder / "node"))
        example = _fleet(arguments.nodes, template)
        fleet = example.write(folder / "fleet").path
        size = sum(path.stat().st_size for path in fleet.glob("*.json"))
        print(f"{arguments.nodes:,} nodes of {GPUS} GPUs, {size / 1e6:.0f} MB of reports")
        missed = False
        for form in ("text", "json", "jsonl", "junit", "html"):
            merge = _merge(fleet, form)
            out = fleet.parent / f"out.{form}"
            missed |= merge.cpu_s > MAX_CPU_S or merge.resident_bytes > MAX_BYTES
            print(
                f"{form}: {merge.cpu_s:.1f} s of CPU time, {merge.wall_s:.1f} s,"
                f" {merge.resident_bytes / 1e6:.0f} MB resident, exit code {merge.exit_code},"
                f" {out.stat().st_size / 1e6:.2f} MB"
            )
        wrong = _judged_wrongly(example, json.loads((folder / "out.json").read_bytes()))
        print(f"judged wrongly: {len(wrong)} {' '.join(wrong[:5])}".rstrip())
        missed |= bool(wrong)
        if chromium() is None:
            print("there is no Chromium on this host")
        else:
            missed |= _browse(fleet.parent / "out.html", folder / "profile")
    return int(missed)


def _burn_in(folder: Path) -> Path:
    """Burn two simulated GPUs in, and return the report."""
    folder.mkdir(mode=0o700)
    plan = folder / "plan.toml"
    plan.write_text(_PLAN)
    environment = {
        "XDG_STATE_HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "SENTINEL_SIM_DIR": str(folder / "simulated"),
    }
    command = [sys.executable, "-m", "sentinel", "burnin", "--simulate", "2"]
    subprocess.run(
        [*command, "--plan", str(plan), "--report", str(folder / "run")],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return folder / "run" / "report.json"


def _template(path: Path) -> Mapping[str, Any]:
    """Read the report of a node, with its GPUs repeated until there are eight."""
    report: dict[str, Any] = json.loads(path.read_text())
    found = report["gpus"]
    report["gpus"] = [{**found[index % len(found)], "index": index} for index in range(GPUS)]
    copied: dict[str, Any] = json.loads(json.dumps(report))  # no GPU shares a value with another
    return copied


def _fleet(nodes: int, template: Mapping[str, Any]) -> ExampleFleet:
    """Describe a fleet with faults on one node or GPU of each hundred."""
    chance = random.Random(7)

    def some(share: float) -> list[int]:
        return chance.sample(range(nodes), max(1, int(nodes * share)))

    def gpus(share: float) -> list[tuple[int, int]]:
        return [(number, chance.randrange(GPUS)) for number in some(share)]

    return ExampleFleet(
        nodes=nodes,
        template=template,
        rates={place: chance.uniform(0.8, 0.96) for place in gpus(0.02)},
        heat={place: chance.uniform(12, 25) for place in gpus(0.02)},
        node_rates=dict.fromkeys(some(0.002), 0.93),
        wrong=frozenset(gpus(0.002)),
        moved={place: {"ecc_corrected_total": 8} for place in gpus(0.01)},
        absent=frozenset(some(0.01)),
        half=frozenset(some(0.003)),
        short=frozenset(some(0.002)),
        verdicts=dict.fromkeys(some(0.01), "INCOMPLETE"),
        pages=True,
    )


def _merge(fleet: Path, form: str) -> Merge:
    """Run the command in a process of its own, and measure it."""
    started = time.monotonic()
    command = [sys.executable, "-m", "sentinel", "fleet", "report", str(fleet), f"--{form}"]
    process = subprocess.Popen([*command, "--output", str(fleet.parent / f"out.{form}")])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Merge(
        exit_code=process.returncode,
        wall_s=time.monotonic() - started,
        cpu_s=used.ru_utime + used.ru_stime,
        resident_bytes=used.ru_maxrss * 1024,
    )


def _judged_wrongly(fleet: ExampleFleet, report: Mapping[str, Any]) -> list[str]:
    """List the nodes and GPUs whose verdict is not that of the fault that they were given."""
    nodes = {int(node["node"].rpartition("-")[2]): node for node in report["nodes"]}
    missing = {number for number, node in nodes.items() if node["verdict"] == "MISSING"}
    verdicts = {
        (number, gpu["index"]): gpu["verdict"]
        for number, node in nodes.items()
        for gpu in node["gpus"]
    }
    slow = {place for place, rate in fleet.rates.items() if rate < MUST_FAIL}
    must = (fleet.wrong | slow) & verdicts.keys()
    may = must | fleet.rates.keys() | {(n, i) for n in fleet.node_rates for i in range(GPUS)}
    failed = {place for place, verdict in verdicts.items() if verdict == "FAIL"}
    return [
        *(fleet.name(number) for number in missing ^ (fleet.absent | fleet.half)),
        *(f"{fleet.name(n)} GPU {i}" for n, i in (must - failed) | (failed - may)),
    ]


def _browse(page_file: Path, profile: Path) -> bool:
    """Open the page and operate it; return whether it is too slow."""
    missed = False
    with browser(profile) as chrome, chrome.page(1600, 1000) as page:
        page.evaluate("1")  # the browser itself has started
        started = time.monotonic()
        page.navigate(page_file.as_uri())
        page.wait_until(_READY)
        page.evaluate(_DRAWN)
        missed |= _report("open the page", time.monotonic() - started)
        for name, script in OPERATIONS.items():
            missed |= _report(name, _operate(page, script))
        if page.errors:
            print(page.errors)
    return missed or bool(page.errors)


def _operate(page: Page, script: str) -> float:
    """Do one thing, and measure until it is drawn."""
    started = time.monotonic()
    page.evaluate(f"{script}; {_DRAWN}")
    return time.monotonic() - started


def _report(name: str, seconds: float) -> bool:
    """Print one time; return whether it is too long."""
    print(f"{name}: {seconds:.2f} s")
    return seconds > MAX_PAGE_S


if __name__ == "__main__":
    sys.exit(main())
