"""The commands of README, documents and examples run on simulated GPUs, as they are written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sentinel
from sentinel.host.daemon_lookup import find_shared, locate
from tests.harness.daemon_harness import QUICK, daemon_environment
from tests.harness.documented_commands import HERE, ROOT, Command, commands, proof_of
from tests.harness.example_run import RUNS, report_of
from tests.harness.gpu_environment import TESTS, SimulatedHost
from tests.harness.programs import piped_program
from tests.harness.prometheus import free_port
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long

#: Commands that need no daemon, and some of which would not run beside one.
ALONE = re.compile(
    r"sentinel (?:--help|demo|workloads|check|doctor|config|report|run|start)\b.*"
    r"|sentinel --(?:once|config).*|python -m sentinel .*"
)
#: Of these, the ones that find simulated GPUs by an option alone, which the document leaves out.
REAL = re.compile(r"sentinel (?:start|run|--once|--config|check|doctor)\b.*")
#: Commands that run until they are interrupted, and what they print first.
ENDLESS = re.compile(r"sentinel --config .*|python -m sentinel --simulate 2 --rearm 2s|curl -sN .*")
#: The exit codes of commands that show a failure; all others must succeed.
CODES = {
    r"sentinel status --color sometimes --json": {2},
    r"sentinel doctor.*|sentinel status && sentinel doctor": {0, 1},
    r"sentinel config check .*": {2},  # no such file on this host
    r"sentinel check --gpus 0,3": {0},
    r"sentinel check --expect-gpus 8": {1},  # there are four
    # The run that the report is of has the verdict FAIL.
    r"sentinel report(?! --compare).*": {1},
}
#: The modules of examples/workloads that commands of the documents name.
MODULES = ("retention", "traffic")


def of_here() -> list[Command]:
    found = {command.text: command for command in commands() if proof_of(command.text) == HERE}
    return list(found.values())


def adapted(text: str) -> str:
    """Add what stands for the GPUs of a host."""
    if REAL.fullmatch(text) and "--simulate" not in text:
        return f"{text} --simulate 4"
    return text


class Desk:
    """A folder with what the commands of the documents name.

    Args:
        folder: The folder.
        patch: Sets the variables by which this process finds the daemon.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host = SimulatedHost(folder)
        self.host.registry.create(folder, 4)
        self.folder = folder
        self.port = free_port()
        for name in list(os.environ):
            if name.startswith(("SENTINEL_", "STATE_", "LOGS_", "CUDA_")):
                patch.delenv(name)
        runtime = folder / "runtime"
        for name, value in daemon_environment(folder).items():
            patch.setenv(name, value)
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS), os.environ["PYTHONPATH"]]),
            "S": locate(simulated=folder).socket,
            "XDG_RUNTIME_DIR": str(runtime),
        }
        self._write_files()

    def _write_files(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name, words in (("sentinel", "-m sentinel"), ("python", "")):
            file = programs / name
            file.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            file.chmod(0o755)
        for name in ("train.py", "prepare.py"):
            (self.folder / name).write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        (self.folder / "site.toml").write_text('poll = "500ms"\n')
        (self.folder / "FILE").write_text('spec = "dcgm-error-thresholds-v1"\n')
        (self.folder / "node.toml").write_text("gpus = 4\n")
        (self.folder / "FILE...").write_text("")
        state = find_shared(self.folder)
        for place in (
            *(self.folder / name for name in ("DIR", "A", "B")),
            *(state / "runs" / f"{day}-080000-standard" for day in (20261122, 20261123)),
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            report = report_of(RUNS["FAIL"], place)
            (place / "report.json").write_text(json.dumps(report))
        for name in MODULES:
            shutil.copy(ROOT / f"examples/workloads/{name}.py", self.folder)

    def run(self, text: str, *, endless: bool = False) -> tuple[int, str]:
        """Run a command by a shell; return its exit code and its output."""
        process = piped_program(
            "bash",
            "-c",
            f"exec {text}" if endless else text,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        with process:
            if endless:
                assert process.stdout is not None
                first = process.stdout.readline()
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=TIMEOUT_S)
                return process.returncode, first + output
            output, _ = process.communicate(timeout=3 * TIMEOUT_S)
        return process.returncode, output


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def beside_a_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Provide a folder whose daemon runs on four simulated GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        desk = Desk(tmp_path_factory.mktemp("desk"), patch)
        flags = shlex.join(QUICK)
        tcp = free_port()
        words = f"--simulate 4 --metrics {desk.port} --tcp 127.0.0.1:{tcp} {flags}"
        code, output = desk.run(f"sentinel start {words}")
        assert code == 0, output
        desk.environment["TCP"] = str(tcp)
        try:
            yield desk
        finally:
            desk.run("sentinel stop")


def check(desk: Desk, command: Command, text: str) -> None:
    """Run a command, which must end as the document says."""
    if "curl" in text and shutil.which("curl") is None:
        pytest.skip("needs curl")
    endless = ENDLESS.fullmatch(command.text) is not None
    code, output = desk.run(text, endless=endless)
    allowed = next((CODES[one] for one in CODES if re.fullmatch(one, command.text)), {0})
    if endless and "curl" in text:
        allowed = {-signal.SIGINT, 130}
    assert code in allowed, (text, code, output)
    assert "Traceback" not in output, output
    assert output or re.match(r"S=|.* --output ", text), "it prints nothing"


@pytest.mark.parametrize(
    "command", [one for one in of_here() if ALONE.fullmatch(one.text)], ids=str
)
def test_it_runs_as_documented(desk: Desk, command: Command) -> None:
    text = adapted(command.text)
    try:
        check(desk, command, text)
    finally:
        if text.startswith("sentinel start"):
            desk.run("sentinel stop")


@pytest.mark.parametrize(
    "command", [one for one in of_here() if not ALONE.fullmatch(one.text)], ids=str
)
def test_it_runs_as_documented_beside_a_daemon(beside_a_daemon: Desk, command: Command) -> None:
    desk, text = beside_a_daemon, command.text
    for here in (("8766", str(desk.port)), ("8765", desk.environment["TCP"])):
        text = text.replace(*here)
    text = text.replace("~/.local/state/sentinel", str(find_shared(desk.folder)))
    text = text.replace("/run/sentinel/sentinel.sock", desk.environment["S"])
    text = text.replace("sentinel doctor", "sentinel doctor --simulate 4")
    if "--cancel fd3d4c97" in text:
        reserved = json.loads(desk.run("sentinel reserve --count 1 --for 1h --json")[1])
        text = text.replace("fd3d4c97", reserved["reservation"]["id"])
    if "session stop" in text:
        desk.run("sentinel session start train --gpus 0,2 --workload hold")
    if "$$" in text:  # a process that lives as long as the allocation is needed
        text = text.replace("$$", str(os.getpid()))
    try:
        check(desk, command, text)
    finally:
        undo(desk)


def undo(desk: Desk) -> None:
    """Take back what a command may have done; by the client, without a process for each step."""
    client = sentinel.connect(desk.environment["S"])
    client.resume()
    for allocation in client.allocations():
        client.cancel_allocation(allocation.id)
    for session in client.sessions():
        client.stop_session(session.name)
    client.set({"memory.target": None}, save=True)
    client.set({"workload": None}, [1])
    for reservation in client.reservations():
        client.cancel_reservation(reservation.id)
    eventually(client.health)


def test_a_script_of_the_recipes_runs(beside_a_daemon: Desk) -> None:
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    text = (ROOT / "docs" / "guides/daemon.md").read_text()
    (script,) = re.findall(r"^```\n(set -e\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code, output = beside_a_daemon.run(script)
    assert code == 0, output
    prepared, trained = (line for line in output.splitlines() if line.startswith("GPU-"))
    assert prepared == trained
    assert len(prepared.split(",")) == 2
    left = json.loads(beside_a_daemon.run("sentinel reserve --list --json")[1])
    assert left["reservations"] == []
