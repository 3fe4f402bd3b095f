"""One node's part of a fleet run, with simulated GPUs and without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from sentinel.errors import ExitCode
from sentinel.fleet.node_files import hash_of, read_thresholds
from sentinel.fleet.run_folder import FleetFolder
from tests.harness.burnin_run import CHECKED, FAULTLESS
from tests.harness.example_fleet import fleet_run
from tests.harness.fleet_harness import (
    LIMITS,
    NODE_LIMIT,
    Fleet,
    FleetProcess,
    on_this_host,
    plan,
)
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long

NODE = "node1"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet whose commands run on this host."""
    with on_this_host() as start:
        yield Fleet(start, tmp_path, plan(1, 3))


def submitted(fleet: Fleet) -> FleetFolder:
    """Write what a submission writes; nothing is asked of an engine."""
    folder = FleetFolder(path=fleet.path)
    folder.create()
    folder.plan.write_text(plan(1, 3))
    now = datetime.now(UTC)
    folder.write(fleet_run(NODE, engine="clush", plan="short", started=now, simulate=1))
    return folder


def task(fleet: Fleet) -> FleetProcess:
    return fleet.command("run-node", str(fleet.path), "--node", NODE)


def test_a_task_that_is_requeued_after_its_end_reports_and_does_nothing(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.expectation.write_text("gpus = 1")
    hashed = hash_of("gpus = 1")
    folder.write(replace(folder.read(), fail_fast=True, expectation_hash=hashed))
    task(fleet).ends_with(ExitCode.OK)
    report = folder.report(NODE).read_text()
    assert report == (folder.node(NODE) / "report.json").read_text()
    settings = {one["key"] for one in fleet.report(NODE)["run"]["settings"]}
    assert {"fail-fast", "expect"} <= settings
    assert "node.gpus" in {one["id"] for one in fleet.report(NODE)["checks"]}
    folder.report(NODE).unlink()  # its last moment was cut off
    output = task(fleet).ends_with(ExitCode.OK)
    assert output == ""
    assert folder.report(NODE).read_text() == report


def test_a_node_with_fewer_gpus_than_its_run_expects_fails(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.expectation.write_text("gpus = 8\n")
    folder.write(replace(folder.read(), expectation_hash=hash_of("gpus = 8")))
    assert "1 of 8 are there" in task(fleet).ends_with(ExitCode.FAIL)
    assert fleet.report(NODE)["run"]["expectation"]["text"] == "gpus = 8\n"


def test_a_host_that_was_started_again_reports_what_was_recorded(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.thresholds.write_text(LIMITS)
    limits = read_thresholds(folder.thresholds)
    folder.write(replace(folder.read(), thresholds_hash=limits.hash))
    first = task(fleet)
    fleet.wait_for_phase(NODE, 2)
    first.process.terminate()
    first.ends_with(ExitCode.INCOMPLETE)
    assert fleet.report(NODE)["verdict"] == "INCOMPLETE"
    assert fleet.report(NODE)["thresholds_overridden"] == NODE_LIMIT
    folder.report(NODE).unlink()
    for name in ("report.json", "report.txt"):  # as if it had lost its power
        (folder.node(NODE) / name).unlink()
    header = folder.node(NODE) / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "boot": "another"}))
    again = task(fleet)
    again.ends_with(ExitCode.INCOMPLETE)
    assert fleet.report(NODE)["verdict"] == "INCOMPLETE"
    assert fleet.report(NODE)["thresholds_overridden"] == NODE_LIMIT
    assert "the host was started again since" in fleet.progress(NODE)["note"]
    assert fleet.progress(NODE)["state"] == "ended"


def test_a_node_that_cannot_begin_says_why_and_is_missing(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.plan.write_text('spec = "sentinel-plan-v1"')
    task(fleet).ends_with(ExitCode.USAGE)
    assert fleet.report(NODE) is None
    assert "the burn-in did not begin: " in fleet.progress(NODE)["note"]
    assert "no phases" in fleet.progress(NODE)["note"]


def test_a_node_does_not_begin_with_other_thresholds_than_its_run(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.write(replace(folder.read(), thresholds_hash="0" * 16))
    folder.thresholds.write_text(LIMITS)
    task(fleet).ends_with(ExitCode.USAGE)
    assert fleet.report(NODE) is None
    assert "thresholds.toml: it was changed since run" in fleet.progress(NODE)["note"]


def test_a_cancelled_run_begins_nowhere(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.cancelled.touch()
    task(fleet).ends_with(ExitCode.INCOMPLETE)
    assert not folder.node(NODE).exists()


def test_a_host_that_is_not_part_of_the_run_is_refused(fleet: Fleet) -> None:
    folder = submitted(fleet)
    folder.write(replace(folder.read(), nodes=("other",)))
    output = task(fleet).ends_with(ExitCode.USAGE)
    assert f"node {NODE} is not one of this run" in output


@pytest.fixture
def daemon(fleet: Fleet) -> Iterator[None]:
    """Run a daemon on the node, which then does the work: it is outside of a job's limits."""
    environment = {**os.environ, **fleet.environment}
    environment["SENTINEL_SIM_DIR"] = str(Path(environment["SENTINEL_SIM_DIR"]) / NODE)
    words = [sys.executable, "-P", "-m", "sentinel"]
    start = [*words, "start", "--simulate", "1", "--workload", CHECKED]
    subprocess.run(start, env=environment, check=True, capture_output=True)
    yield
    subprocess.run([*words, "stop"], env=environment, check=True, capture_output=True)


def test_a_daemon_of_the_node_does_the_work(fleet: Fleet, daemon: None) -> None:
    submitted(fleet)
    output = task(fleet).ends_with(ExitCode.OK)
    report = fleet.report(NODE)
    assert report["verdict"] in FAULTLESS, report["gpus"][0]["reasons"]
    assert "the daemon runs it" in output


@pytest.mark.parametrize("ended", ["itself", "all processes", "after its burn-in"])
def test_a_task_that_is_ended_ends_the_burn_in_of_the_daemon(
    fleet: Fleet, daemon: None, ended: str
) -> None:
    submitted(fleet)
    first = task(fleet)
    fleet.wait_for_phase(NODE, 2)
    whole = psutil.Process(first.process.pid)
    # Slurm sends SIGTERM to every process of a task, also to the one that records.
    burnin = whole.children()
    for process in () if ended == "itself" else whole.children(recursive=True):
        process.terminate()
    if ended == "after its burn-in":  # while the task publishes the report
        psutil.wait_procs(burnin, timeout=TIMEOUT_S)
    whole.terminate()
    first.ends_with(ExitCode.INCOMPLETE)
    assert fleet.report(NODE)["verdict"] == "INCOMPLETE"
    task(fleet).ends_with(ExitCode.OK)
    assert len(fleet.report(NODE)["run"]["resumed"]) == 1
