"""``sentinel fleet`` by a real ClusterShell, whose ssh runs the command on this host."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import FAULTLESS
from tests.harness.fleet_harness import Fleet, on_this_host, plan
from tests.harness.sentinel_process import eventually

needs_clush = pytest.mark.skipif(
    shutil.which("clush") is None or os.getuid() != 0,
    reason="needs clush, and root for host names of nodes",
)
pytestmark = [pytest.mark.long, needs_clush]

NODES = ("node1", "node2", "node3")
#: Takes the options of ssh, and gives the command a host name of its own; node9 is not there.
SSH = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
node=$1
shift
if [ "$node" = node9 ]; then
    echo "ssh: connect to host node9 port 22: No route to host" >&2
    exit 255
fi
exec unshare --uts sh -c 'hostname "$1" && exec sh -c "$2"' sh "$node" "$*"
"""


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Return a fleet for a plan, a short one by default; what it started ends with the test."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "clush.conf").write_text(f"[Main]\nssh_path: {tmp_path}/ssh\ncommand_timeout: 0\n")
    with on_this_host({"CLUSTERSHELL_CFGDIR": str(tmp_path)}) as start:
        made = Fleet(start, tmp_path, getattr(request, "param", plan(1, 1)))
        yield made
        if made.path.exists():
            (made.path / "cancelled").touch()  # the nodes of a failed test end, too


def test_every_node_reports_and_one_that_cannot_be_reached_is_missing(fleet: Fleet) -> None:
    words = ("--nodelist", "node[1-3],node9", "--batch", "2")
    output = fleet.burnin("--engine", "clush", *words).ends_with(ExitCode.INCOMPLETE)
    for node in NODES:
        report = fleet.report(node)
        assert report["verdict"] in FAULTLESS, report["gpus"][0]["reasons"]
        assert report["node"]["hostname"] == node
    assert fleet.report("node9") is None
    why = "ssh: connect to host node9 port 22: No route to host"
    assert f"node9  missing  no report, {why}" in output
    assert f"it has no report: {why}" in output
    assert (fleet.path / "report.html").exists()


def test_a_gpu_that_is_missing_on_every_node_fails_all_of_them(fleet: Fleet) -> None:
    words = ("--engine", "clush", "--nodelist", "node[1-2]", "--expect-gpus", "8")
    output = fleet.burnin(*words).ends_with(ExitCode.FAIL)
    assert set(fleet.verdicts(("node1", "node2"))) == {"FAIL"}
    assert "of 8 are there" in output
    assert (fleet.path / "expectation.toml").read_text().strip() == "gpus = 8"


@pytest.mark.parametrize("fleet", [plan(1, 30)], indirect=True, ids=["long"])
def test_a_run_goes_on_without_its_terminal_and_is_cancelled(fleet: Fleet) -> None:
    flags = ("--engine", "clush", "--nodelist", ",".join(NODES))
    run = fleet.burnin(*flags)
    fleet.wait_for_phase("node1", 2)
    run.process.send_signal(signal.SIGHUP)
    run.ends_with(-signal.SIGHUP)
    fleet.command("cancel", str(fleet.path)).ends_with(ExitCode.OK)
    fleet.watch().ends_with(ExitCode.INCOMPLETE)
    eventually(lambda: fleet.report("node1") is not None)
    assert fleet.report("node1")["verdict"] == "INCOMPLETE"
    fleet.command("resume", str(fleet.path)).ends_with(ExitCode.OK)
    assert set(fleet.verdicts(NODES)) <= FAULTLESS
    assert len(fleet.report("node1")["run"]["resumed"]) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine", "clush"), "--engine clush needs --nodelist"),
        (("--engine", "clush", "--nodelist", "n1", "--drain"), "--drain is for --engine slurm"),
        (("--engine", "clush", "--nodelist", "n1", "--partition", "p"), "--partition is for"),
        (("--nodes", "1", "--nodelist", "n1"), "--nodes and --nodelist exclude each other"),
        (("--level", "screen"), "--level and --plan exclude each other"),
        (("--engine-option=--job-name=mine",), "--engine-option: --job-name is set by"),
        (("--engine-option=-Jmine",), "--engine-option: -J is set by"),
        (("--engine-option=--array=1-2",), "--engine-option: --array is set by"),
    ],
)
def test_wrong_usage_starts_nothing(fleet: Fleet, flags: tuple[str, ...], message: str) -> None:
    output = fleet.burnin(*flags).ends_with(ExitCode.USAGE)
    assert message in output
    assert not fleet.path.exists()
