"""``sentinel burnin`` on simulated GPUs: its plan, its command line, and what it records."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sentinel.errors import ExitCode
from sentinel.host.simulation import Registry
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.programs import output_of, started_program

#: A workload that checks its results.
CHECKED = "bad_workloads:checks_results"
#: The verdicts of a run without a fault: the plans of most tests are too short for a PASS.
FAULTLESS = frozenset({"PASS", "WARN", "N/A"})


def plan_of(name: str, *phases: tuple[str, ...]) -> str:
    """Build the text of a plan; a phase is its name, its workload and its other lines."""
    lines = ['spec = "sentinel-plan-v1"', f'name = "{name}"']
    for phase, workload, *more in phases:
        lines += ["[[phase]]", f'name = "{phase}"', f'workload = "{workload}"', *more]
    return "\n".join([*lines, ""])


def check_passed(report: dict[str, Any]) -> None:
    """Check that nothing was found but a low power: on a busy host, a stressor works less."""
    assert report["verdict"] in FAULTLESS, report
    for gpu in report["gpus"]:
        bad = {one["id"] for one in gpu["checks"] if one["status"] in {"fail", "warn"}}
        assert bad <= {"load.power", "gpu.hang", "stressor.failures"}, gpu["reasons"]


@contextmanager
def stray_on(host: SimulatedHost, index: int, count: int = 2) -> Iterator[int]:
    """Have a process keep the lock of a simulated GPU; yield its PID."""
    gpu = Registry.create(host.folder, count).gpus()[index]
    folder = host.folder / "locks"
    folder.mkdir()
    with (folder / f"{gpu.uuid}.{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen(["sleep", "1000"], pass_fds=[file.fileno()])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


class BurninRun:
    """One run of the command.

    Args:
        host: The simulated GPUs.
        plan: The text of the plan.
        gpus: How many GPUs.
        name: The name of the folder of the run.
        settings: Flags for a private daemon.
    """

    def __init__(
        self,
        host: SimulatedHost,
        plan: str,
        gpus: int = 1,
        *,
        name: str = "report",
        settings: tuple[str, ...] = ("--rearm", "200ms", "--poll", "200ms"),
    ) -> None:
        self.host = host
        self.folder = host.folder / name
        self.plan = host.folder / "plan.toml"
        self.plan.write_text(plan)
        self._gpus = gpus
        self._settings = settings

    def command(self, *flags: str, resume: bool = False) -> list[str]:
        """Build the command line."""
        where = ("--resume", str(self.folder)) if resume else ("--report", str(self.folder))
        plan = () if resume else ("--plan", str(self.plan))
        base = [sys.executable, "-m", "sentinel", "burnin", "--simulate", str(self._gpus)]
        return [*base, *plan, *where, *self._settings, *flags]

    def started(
        self, *flags: str, resume: bool = False
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start it; kill it at the end."""
        command = self.command(*flags, resume=resume)
        return started_program(*command, env=self.host.environment(), cwd=ROOT)

    def run(self, *flags: str, code: int = ExitCode.OK, resume: bool = False) -> str:
        """Run it to its end, which must have this exit code; return the output."""
        with self.started(*flags, resume=resume) as process:
            return output_of(process, code)

    def report(self) -> dict[str, Any]:
        """Read the report."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """Read the events of a name that were recorded so far."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == name]
