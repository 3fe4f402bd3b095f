"""One plan without a daemon and beside one: the same record, the same checks, the same verdicts."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.daemon_harness import Daemon
from tests.harness.programs import output_of
from tests.harness.sentinel_process import eventually

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = plan_of(
    "both",
    ("first", CHECKED, "seconds = 4"),
    ("second", f"{CHECKED}:rest=0.01", "seconds = 4"),
)
SETTINGS = ("--rearm", "300ms", "--poll", "100ms", "--unwatched-after", "5s")
#: What a busy host decides.
BY_THE_HOST = {"load.power", "gpu.hang", "stressor.failures", "burnin.interruptions"}


def burn_in(run: BurninRun, code: ExitCode, *, xid: int | None = None, cut: bool = False) -> None:
    """Run the plan; throw an XID at the first phase, or end it in the second one."""
    with run.started(resume=run.folder.exists()) as process:
        if xid is not None:
            eventually(lambda: len(run.events("stressor.ready")) == 2)
            run.host.registry.throw_xids(run.host.uuid(0), xid)
        if cut:
            eventually(lambda: len(run.events("stressor.ready")) == 4)
            process.send_signal(signal.SIGINT)
        output_of(process, code)


def fields(value: Any, at: str = "") -> set[str]:
    """Return the paths of all fields: ``.gpus[].coverage[].phase``."""
    if isinstance(value, Mapping):
        return {f"{at}.{key}" for key in value}.union(
            *(fields(one, f"{at}.{key}") for key, one in value.items())
        )
    if isinstance(value, list):
        return set().union(*(fields(one, f"{at}[]") for one in value))
    return set()


def judged(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report says of the run, but for times, texts and what a busy host decides."""
    checks = [("node", one) for one in report["checks"]]
    checks += [(gpu["uuid"], one) for gpu in report["gpus"] for one in gpu["checks"]]
    return {
        "verdict": report["verdict"],
        "verdicts": [gpu["verdict"] for gpu in report["gpus"]],
        "checks": {
            (of, one["id"]): one["status"] for of, one in checks if one["id"] not in BY_THE_HOST
        },
        "xid": [one["value"] for _, one in checks if one["id"] == "xid"],
        "coverage": [
            [(one["phase"], one["complete"]) for one in gpu["coverage"]] for gpu in report["gpus"]
        ],
        "measured": [
            sorted({(one["phase"], one["name"]) for one in gpu["measurements"]})
            for gpu in report["gpus"]
        ],
        "settings": {
            (one["key"], one["value"], one["source"])
            for one in report["run"]["settings"]
            if one["key"] in {"rearm", "poll", "unwatched_after", "gpus", "fail-fast"}
        },
        "resumed": len(report["run"]["resumed"]),
        "node": report["node"],
    }


def kinds(folder: Path, name: str) -> dict[str, Any]:
    """Return the fields of each kind of event or sample in a file."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return {row["event"]: sorted(row) for row in rows}


@pytest.mark.parametrize("case", ["xid", "resumed"])
def test_both_situations_prove_the_same(daemon: Daemon, case: str) -> None:
    alone = BurninRun(daemon.host, PLAN, gpus=2, name="alone", settings=SETTINGS)
    beside = BurninRun(daemon.host, PLAN, gpus=2, name="beside", settings=())
    for run in (alone, beside):
        if run is beside:
            daemon.start(2, *SETTINGS)
            daemon.wait_until_occupied(0, 1)
        if case == "xid":
            burn_in(run, ExitCode.FAIL, xid=79)
        else:
            burn_in(run, ExitCode.INCOMPLETE, cut=True)
            burn_in(run, ExitCode.OK)
    reports = alone.report(), beside.report()
    assert judged(reports[0]) == judged(reports[1])
    for report in reports:
        statuses = [
            one["status"] for gpu in report["gpus"] for one in gpu["checks"] if one["id"] == "xid"
        ]
        assert statuses == (["fail", "pass"] if case == "xid" else ["pass", "pass"])
        for gpu in report["gpus"]:
            gpu["interruptions"] = []  # a busy host interrupts more often
    assert fields(reports[0]) == fields(reports[1])
    for name in ("samples.jsonl", "run.json", "counters.json"):
        if name.endswith("l"):
            assert kinds(alone.folder, name) == kinds(beside.folder, name)
        else:
            files = (json.loads((one.folder / name).read_text()) for one in (alone, beside))
            assert len({json.dumps(sorted(file)) for file in files}) == 1
    events = [kinds(one.folder, "events.jsonl") for one in (alone, beside)]
    ours = [
        {k: v for k, v in event.items() if k.startswith(("burnin.", "stressor.", "gpu.xid"))}
        for event in events
    ]
    assert ours[0] == ours[1]
