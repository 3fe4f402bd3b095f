"""A node with fewer GPUs than expected, or with others, passes no command that judges."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.host.daemon_lookup import find_shared
from sentinel.host.simulation import Registry
from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.command_line import CommandLine
from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.example_run import RUNS, report_of
from tests.harness.gpu_environment import SimulatedHost

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


@pytest.fixture
def node(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        Registry.create(simulated.folder, 2)
        yield daemon


def expect(node: Daemon, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = node.host.folder / "node.toml"
    file.write_text(text)
    monkeypatch.setenv("SENTINEL_EXPECT", str(file))
    return file


#: A command, its exit code, and what it says of a node with 2 of 3 GPUs.
COMMANDS = [
    ("check --simulate 2", 1),
    ("check --simulate 2 --nagios", 2),
    ("check --simulate 2 --npd", 1),
    ("health --simulated", 1),
    ("health --simulated --require pass", 1),
    ("health --simulated --npd", 1),
]


@pytest.mark.parametrize(("command", "code"), COMMANDS)
def test_a_missing_gpu_fails_the_node(
    cli: CommandLine, node: Daemon, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    runs = find_shared(node.host.folder) / "runs"
    runs.mkdir(parents=True)
    report = report_of(RUNS["PASS"], runs / "run")
    (runs / "run" / "report.json").write_text(json.dumps(report))
    expect(node, "gpus = 3", monkeypatch)
    done = cli(*command.split(), code=code)
    assert "2 of 3 are there" in " ".join(done.out.split())
    expect(node, "gpus = 2", monkeypatch)
    assert "of 3" not in cli(*command.split(), code=None).out


def test_a_daemon_without_all_gpus_fails_prolog_and_health_check(
    cli: CommandLine, node: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    folder = ("--folder", str(node.host.folder / "jobs"))
    node.start(2)
    check, prolog = ("slurm", "healthcheck", *folder), ("slurm", "prolog", *folder)
    assert cli(*check).out.endswith("GPUs; the number of GPUs was not checked\n")
    expect(node, "gpus = 2", monkeypatch)
    assert cli(*check).out == "gpu-sentry: no fault on 2 GPUs\n"
    expect(node, "gpus = 3", monkeypatch)
    for command, code, more in ((check, 0, "; no fault on 2 GPUs"), (prolog, 1, "")):
        expected = f"gpu-sentry: node.gpus: 2 of 3 are there{more}\n"
        assert cli(*command, code=code).out == expected
    expect(node, '[model."Simulated GPU"]\nmemory_mib = 1\necc = true', monkeypatch)
    uuid = node.client.gpu(0).uuid
    found = cli(*prolog, code=1).out
    assert "memory_mib is 16384, expected 1 on GPU 0" in found
    assert found.count(" on GPU ") == 1
    assert uuid in found
    assert cli(*check).out.endswith("; not compared here: ecc\n")
    expect(node, "gpus = 0", monkeypatch)
    assert "node.toml:1: gpus is 0" in cli(*check, code=2).err


def test_a_burn_in_keeps_what_it_expected(
    cli: CommandLine, simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch, node: Daemon
) -> None:
    file = expect(node, "gpus = 3\n", monkeypatch)
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 1")))
    assert "2 of 3 are there" in run.run("--expect", str(file), code=1)
    file.unlink()
    monkeypatch.delenv("SENTINEL_EXPECT")
    report = run.report()
    assert report["run"]["expectation"] == {"source": str(file), "text": "gpus = 3\n"}
    assert "2 of 3 are there" in cli("report", str(run.folder), code=1).out
    assert os.environ.get("SENTINEL_EXPECT") is None
