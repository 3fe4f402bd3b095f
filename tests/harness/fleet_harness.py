"""``sentinel fleet`` on nodes with simulated GPUs: its command line, its folder and its output."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sentinel.host.simulation import Registry
from tests.harness.burnin_run import CHECKED, plan_of
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: A file of thresholds with one limit of a node, and one of the fleet.
LIMITS = """spec = "dcgm-error-thresholds-v1"
[common_thresholds."memory.retired_pages.fail".GTE]
value = 30
[common_thresholds."fleet.temperature.warn".GT]
value = 30
"""
#: The limit of a node, in its report.
NODE_LIMIT = {"memory.retired_pages.fail": ">= 30"}


def plan(*seconds: float) -> str:
    """Build a plan of phases, each with so many seconds of checked work."""
    phases = [
        (f"phase{number}", CHECKED, f"seconds = {second}")
        for number, second in enumerate(seconds, start=1)
    ]
    return plan_of("short", *phases)


class Starter(Protocol):
    """Starts a command on the host where an operator works."""

    def __call__(
        self, *words: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start it with more variables; its output can be read."""
        ...


@contextlib.contextmanager
def on_this_host(environment: Mapping[str, str] = {}) -> Iterator[Starter]:
    """Start commands on this host, with more variables; what still runs is killed at the end."""
    given, started = environment, list[subprocess.Popen[str]]()

    def start(
        *words: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = piped_program(
            *words,
            env={**os.environ, **(environment or {}), **given},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class FleetProcess:
    """A command whose output is collected while it runs.

    Args:
        process: The command.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        eventually(lambda: text in self.output or self.process.poll() is not None)
        if text not in self.output:  # what it has printed last may still be read
            self._reader.join(TIMEOUT_S)
        assert text in self.output, self.output

    def exit_code(self) -> int:
        """Wait for its end."""
        try:
            code = self.process.wait(8 * TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended: {self.output}") from None
        self._reader.join(TIMEOUT_S)
        return code

    def ends_with(self, code: int) -> str:
        """Wait for its end, which must have this exit code; return its output."""
        found = self.exit_code()
        assert found == code, f"exit code {found}: {self.output}"
        return self.output


class Fleet:
    """A fleet run with its folder.

    Args:
        start: Starts a command where the operator works.
        folder: A folder that all nodes share.
        text: The plan.
        gpus: How many simulated GPUs each node has.
    """

    def __init__(self, start: Starter, folder: Path, text: str, gpus: int = 1) -> None:
        self._start = start
        self.path = folder / "run"
        self._plan = folder / "plan.toml"
        self._plan.write_text(text)
        self._simulation = folder / "simulated"
        self._gpus = gpus
        torch = folder / "fake_torch"
        torch.mkdir()
        (torch / "torch.py").symlink_to(TESTS / "fake_torch.py")
        self.environment = {
            "PYTHONPATH": f"{torch}:{TESTS}:{ROOT}",
            "SENTINEL_SIM_DIR": str(self._simulation),
            "SENTINEL_CONFIG": "/dev/null",
            "SENTINEL_REARM": "200ms",
            "SENTINEL_POLL": "200ms",
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def command(self, *words: str) -> FleetProcess:
        """Start a command of ``sentinel fleet``."""
        full = (sys.executable, "-P", "-m", "sentinel", "fleet", *words)
        return FleetProcess(self._start(*full, environment=self.environment))

    def burnin(self, *flags: str) -> FleetProcess:
        """Start a run."""
        return self.command(
            *("burnin", "--plan", str(self._plan), "--report", str(self.path)),
            *("--simulate", str(self._gpus), *flags),
        )

    def watch(self, *flags: str) -> FleetProcess:
        """Watch the run again."""
        return self.command("report", "--watch", str(self.path), *flags)

    def break_gpu(self, node: str) -> str:
        """Let the only GPU of a node have a row that could not be remapped; return its UUID."""
        registry = Registry.create(self._simulation / node, self._gpus)
        (registry.folder / "namespace").unlink()  # that of the node, not of this process
        uuid = registry.gpus()[0].uuid
        registry.inject_figures(uuid, {"remap_failed": True})
        return uuid

    def run_file(self) -> Any:
        """Read what is run."""
        return json.loads((self.path / "fleet.json").read_text())

    def report(self, node: str) -> Any:
        """Read the report of a node; None if there is none."""
        path = self.path / f"{node}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def verdicts(self, nodes: Sequence[str]) -> list[str]:
        """Read the verdicts of nodes; empty for one without a report."""
        reports = [self.report(node) for node in nodes]
        return [report["verdict"] if report is not None else "" for report in reports]

    def progress(self, node: str) -> Any:
        """Read the live state of a node; an empty one if there is none yet."""
        path = self.path / "progress" / f"{node}.json"
        return json.loads(path.read_text()) if path.exists() else {"number": 0, "state": None}

    def wait_for_phase(self, node: str, number: int) -> None:
        """Wait until a node is in a phase of the plan."""
        eventually(lambda: self.progress(node)["number"] >= number)
