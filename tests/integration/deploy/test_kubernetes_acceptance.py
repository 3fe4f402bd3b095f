"""The script of the acceptance Job, on simulated GPUs."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.thresholds_file import SPEC
from sentinel.burnin.verdict import MAX_BYTES
from sentinel.errors import ExitCode
from sentinel.host.simulation import Registry
from tests.harness.burnin_run import FAULTLESS, plan_of
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import ROOT, SimulatedHost, foreign_process
from tests.harness.kubernetes_cluster import DEPLOY, needs_kubectl, objects, overlay_with
from tests.harness.kubernetes_site import IMAGE
from tests.harness.pod_containers import Containers, prepare_node
from tests.harness.programs import EXEC_SENTINEL, output_of, started_program, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: A run that is resumed finds its GPUs by itself, unless they are simulated.
RESUMED = '[ "$1 $2" = "burnin --resume" ] && set -- "$@" --simulate 2'


class Acceptance:
    """The script of the Job on simulated GPUs.

    Args:
        host: The simulated GPUs.
        workload: The workload of the plan's only phase.
        seconds: Its duration.
    """

    def __init__(self, host: SimulatedHost, workload: str, seconds: int = 2) -> None:
        self.more: tuple[str, ...] = ()
        self.plan = host.folder / "plan.toml"
        phase = ("first", f"bad_workloads:{workload}", f"seconds = {seconds}")
        self.plan.write_text(plan_of("short", phase))
        self.message = host.folder / "termination-log"
        self.state = host.folder / "state"
        self.report = self.state / "runs" / "uid-1"
        self.command = host.folder / "bin" / "sentinel"
        self.command.parent.mkdir(exist_ok=True)
        write_script(self.command, f"{RESUMED}\n{EXEC_SENTINEL}")
        self.environment = host.environment(
            SENTINEL_SIM_DIR=str(host.folder),
            RUN_NAME="uid-1",
            TERMINATION_LOG=str(self.message),
            STATE_DIRECTORY=str(self.state),
            NODE_NAME="worker-7",
            PATH=f"{self.command.parent}:{os.environ['PATH']}",
        )

    def started(self, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start the script as the Job's container does."""
        script = DEPLOY / "acceptance" / "acceptance.sh"
        words = ("--simulate", "2", "--plan", str(self.plan), "--fail-fast", *self.more, *more)
        return started_program("sh", script, *words, env=self.environment, cwd=ROOT)

    def run(self, code: int, *more: str) -> str:
        """Run the script, which must end with this exit code; return its log."""
        with self.started(*more) as process:
            return output_of(process, code)

    def summary(self) -> dict[str, Any]:
        """Read the termination message."""
        assert self.message.stat().st_size <= MAX_BYTES
        found: dict[str, Any] = json.loads(self.message.read_text())
        return found


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("workload", "code", "verdicts"),
    [("checks_results", 0, FAULTLESS), ("faulty", 1, {"FAIL"})],
)
def test_an_acceptance_leaves_the_verdict_of_each_gpu(
    simulated: SimulatedHost, workload: str, code: int, verdicts: set[str]
) -> None:
    acceptance = Acceptance(simulated, workload)
    output = acceptance.run(code)
    summary = acceptance.summary()
    assert summary["node"] == "worker-7"
    assert summary["verdict"] in verdicts
    assert len(summary["gpus"]) == 2
    assert "short" in output
    acceptance.run(code)
    assert acceptance.summary() == summary, "the verdict of a run that is over stands"
    if code == 0:  # so short a plan is N/A, of which a strict Job says so, and again
        acceptance.environment["SENTINEL_STRICT"] = "on"
        acceptance.run(ExitCode.INCOMPLETE)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("again", ["", "complete"])
def test_no_pod_ends_with_0_for_a_gpu_that_has_failed_by_the_limits_of_the_job(
    again: str, simulated: SimulatedHost
) -> None:
    """The message was made by the default limits, and its exit code became that of the pod."""
    acceptance = Acceptance(simulated, "checks_results")
    limits = simulated.folder / "limits.toml"
    always = f"spec = '{SPEC}'\n[common_thresholds.'temperature.gpu.fail'.LT]\nvalue = 500\n"
    limits.write_text(always)
    acceptance.more = ("--thresholds", str(limits))
    acceptance.run(1)
    if again:
        limits.unlink()
    else:
        (acceptance.report / "report.json").unlink()
    acceptance.run(1)
    assert acceptance.summary()["verdict"] == "FAIL"
    assert json.loads((acceptance.report / "report.json").read_text())["verdict"] == "FAIL"


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_evicted_acceptance_is_incomplete_and_the_next_pod_goes_on(
    simulated: SimulatedHost,
) -> None:
    acceptance = Acceptance(simulated, "checks_results")
    registry = Registry.create(simulated.folder, 2)
    # The foreign process keeps the run from its end, however slow the host is.
    with foreign_process(registry, 1), acceptance.started() as process:
        events = acceptance.report / "events.jsonl"
        eventually(lambda: events.exists() and '"stressor.ready"' in events.read_text())
        process.terminate()
        output_of(process, ExitCode.INCOMPLETE)
    assert acceptance.summary()["verdict"] == "INCOMPLETE"
    acceptance.run(0)
    report = json.loads((acceptance.report / "report.json").read_text())
    assert len(report["run"]["resumed"]) == 1


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@needs_kubectl
def test_a_node_with_fewer_gpus_than_its_job_expects_fails(simulated: SimulatedHost) -> None:
    (job,) = objects("acceptance", "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    *level, flag, number = container["args"]
    assert (level, flag, number) == (["--level", "standard"], "--expect-gpus", "8")
    acceptance = Acceptance(simulated, "checks_results")
    assert "2 of 8 are there" in acceptance.run(1, flag, number)
    assert acceptance.summary()["verdict"] == "FAIL"


NEEDED = ("kubectl", "setpriv", "unshare", "nsenter", "ip")


@pytest.mark.long
@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, NEEDED)),
    reason="needs root, for the mounts of containers, and kubectl",
)
@pytest.mark.parametrize("beside_a_daemon", [False, True])
@pytest.mark.parametrize("expected", [None, 3])
def test_the_pod_of_an_acceptance_has_the_folders_of_the_daemon(
    tmp_path: Path, *, beside_a_daemon: bool, expected: int | None
) -> None:
    """The container of the Job begins as root, and is the user of the daemon.

    With a node.toml, it is as the overlay mounts it.
    """
    node = tmp_path / "node"
    prepare_node(node, range(2))
    (node / "plan.toml").write_text(
        plan_of("short", ("first", "bad_workloads:checks_results", "seconds = 2"))
    )
    acceptance = "acceptance"
    if expected is not None:
        acceptance = overlay_with(tmp_path, "acceptance-overlay", "expectation")
    maps = {one["metadata"]["name"]: one for one in objects(acceptance, "ConfigMap")}
    made: list[Containers] = []

    def start(folder: str, kind: str) -> Containers:
        (found,) = objects(folder, kind)
        spec = copy.deepcopy(found["spec"]["template"]["spec"]) | {"nodeName": "worker-7"}
        if kind == "Job":
            spec["containers"][0]["args"] = ["--plan", "/media/plan.toml", "--fail-fast"]
        labels = {"batch.kubernetes.io/controller-uid": "uid-1"}
        meta = {"uid": kind, "name": kind, "namespace": "sentinel", "labels": labels}
        pod = {"metadata": meta, "spec": spec}
        made.append(Containers(lambda path: maps[path.rpartition("/")[2]], node, pod, IMAGE))
        for container in spec["initContainers"]:
            assert made[-1].start(container).wait(TIMEOUT_S) == 0, made[-1].log("folders")
        made[-1].start(spec["containers"][0])
        return made[-1]

    root = node / "root"
    try:
        if beside_a_daemon:
            start("base", "DaemonSet")
            daemon = made[-1]
            eventually(lambda: "service.ready" in daemon.log("sentinel"))
        job = start(acceptance, "Job")
        # So short a plan proves nothing, which a strict Job does not accept.
        code = ExitCode.INCOMPLETE if expected is None else ExitCode.FAIL
        assert job.running["burnin"].wait(3 * TIMEOUT_S) == code, job.log("burnin")
    finally:
        for containers in made:
            containers.kill()
    assert ("the daemon runs it" in job.log("burnin")) is beside_a_daemon
    assert json.loads(job.message("burnin"))["node"] == "worker-7"
    assert (f"2 of {expected} are there" in job.log("burnin")) is (expected is not None)
    (report,) = (root / "var/lib/sentinel/runs").glob("*/report.json")
    files = [report.parents[1], *(root / "var/lib/sentinel").rglob("*")]
    assert {file.stat().st_uid for file in files} == {10001}


def delete_begun(acceptance: Acceptance, daemon: Daemon) -> None:
    """Start an acceptance beside a daemon, and end its pod once its burn-in has begun."""
    with acceptance.started() as process:
        eventually(lambda: daemon.client.status().daemon.burnin is not None)
        process.terminate()
        output_of(process, ExitCode.INCOMPLETE)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_evicted_acceptance_beside_a_daemon_has_the_daemon_end_it(daemon: Daemon) -> None:
    daemon.start(2)
    acceptance = Acceptance(daemon.host, "checks_results", seconds=3000)
    delete_begun(acceptance, daemon)
    assert acceptance.summary()["verdict"] == "INCOMPLETE"
    eventually(lambda: daemon.client.status().daemon.burnin is None)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_deleted_acceptance_that_has_not_gone_on_leaves_the_run_of_another_one(
    daemon: Daemon,
) -> None:
    daemon.start(2)
    acceptance = Acceptance(daemon.host, "checks_results", seconds=3000)
    delete_begun(acceptance, daemon)
    begun = daemon.host.folder / "begun"
    held = f'[ "$2" = --resume ] && touch {begun} && exec sleep 600'
    write_script(acceptance.command, f"{held}\n{EXEC_SENTINEL}")
    other = daemon.host.folder / "other"
    words = ("burnin", "--plan", str(acceptance.plan), "--report", str(other))
    with daemon.start_command(*words):
        eventually(lambda: daemon.client.status().daemon.burnin is not None)
        with acceptance.started() as process:
            eventually(begun.exists)
            process.terminate()
            output_of(process, 128 + signal.SIGTERM)
        daemon.run("burnin", "cancel")


def test_a_deleted_acceptance_that_has_not_begun_cancels_no_other_run(tmp_path: Path) -> None:
    asked, begun = tmp_path / "asked", tmp_path / "begun"
    text = f'[ "$2" = cancel ] && exec touch {asked}\ntouch {begun}; exec sleep 600'
    write_script(tmp_path / "sentinel", text)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "STATE_DIRECTORY": str(tmp_path),
        "RUN_NAME": "uid-2",
    }
    script = DEPLOY / "acceptance" / "acceptance.sh"
    with started_program("sh", script, env=variables) as process:
        eventually(begun.exists)
        process.terminate()
        output_of(process, 128 + signal.SIGTERM)
    assert not asked.exists()
