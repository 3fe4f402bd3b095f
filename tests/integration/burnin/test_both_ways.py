"""One plan without a daemon and beside one: the same record, the same checks, the same verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import ExitCode
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import ROOT
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S
from tests.integration.burnin.test_burnin_command import CHECKED

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = f"""
spec = "sentinel-plan-v1"
name = "both"
[[phase]]
name = "first"
workload = "{CHECKED}"
seconds = 4
[[phase]]
name = "second"
workload = "{CHECKED}:rest=0.01"
seconds = 4
"""
SETTINGS = ("--rearm", "300ms", "--poll", "100ms", "--unwatched-after", "5s")
#: What a busy host decides.
BY_THE_HOST = {"load.power", "gpu.hang", "stressor.failures", "burnin.interruptions"}


class Situation:
    """A host in which the plan is run.

    Args:
        daemon: The daemon of the host, running or not.
        name: The name of the folder of the run.
        flags: The settings of the command.
    """

    def __init__(self, daemon: Daemon, name: str, *flags: str) -> None:
        self._daemon = daemon
        self._flags = flags
        self.folder = daemon.host.folder / name
        self._plan = daemon.host.folder / "plan.toml"
        self._plan.write_text(PLAN)

    def burn_in(self, code: ExitCode, *, xid: int | None = None, cut: bool = False) -> None:
        """Run the plan; throw an XID at the first phase, or end it in the second one."""
        where: tuple[str, ...] = ("--plan", str(self._plan), "--report", str(self.folder))
        if self.folder.exists():
            where = ("--resume", str(self.folder))
        words = ("burnin", "--simulate", "2", *where, *self._flags)
        with subprocess.Popen(
            [sys.executable, "-m", "sentinel", *words],
            env={**self._daemon.host.environment(), "PYTHONPATH": os.environ["PYTHONPATH"]},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                if xid is not None:
                    eventually(lambda: self._count("stressor.ready") == 2)
                    registry = self._daemon.host.registry
                    registry.throw_xids(self._daemon.host.uuid(0), xid)
                if cut:
                    eventually(lambda: self._count("stressor.ready") == 4)
                    process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=3 * TIMEOUT_S)
            finally:
                process.kill()
        assert process.returncode == code, output

    def _count(self, name: str) -> int:
        path = self.folder / "events.jsonl"
        return path.read_text().count(f'"event": "{name}"') if path.exists() else 0

    def report(self) -> dict[str, Any]:
        """Read the report."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found


def shape(value: Any) -> Any:
    """Replace values by their kinds."""
    if isinstance(value, Mapping):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(one), sort_keys=True) for one in value})
    return "number" if isinstance(value, int | float) else type(value).__name__


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
    alone = Situation(daemon, "alone", *SETTINGS)
    beside = Situation(daemon, "beside")
    for situation in (alone, beside):
        if situation is beside:
            daemon.start(2, *SETTINGS)
            daemon.wait_until_occupied(0, 1)
        if case == "xid":
            situation.burn_in(ExitCode.FAIL, xid=79)
        else:
            situation.burn_in(ExitCode.INCOMPLETE, cut=True)
            situation.burn_in(ExitCode.OK)
    reports = alone.report(), beside.report()
    assert judged(reports[0]) == judged(reports[1])
    for report in reports:
        statuses = [
            one["status"] for gpu in report["gpus"] for one in gpu["checks"] if one["id"] == "xid"
        ]
        assert statuses == (["fail", "pass"] if case == "xid" else ["pass", "pass"])
        report["run"]["settings"] = []  # those of the daemon differ
        for one in report["run"]["resumed"]:
            one["settings"] = []
    assert shape(reports[0]) == shape(reports[1])
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
