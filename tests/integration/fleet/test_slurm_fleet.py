"""``sentinel fleet`` by a real Slurm, whose nodes have simulated GPUs."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import FAULTLESS
from tests.harness.fleet_harness import LIMITS, NODE_LIMIT, Fleet, FleetProcess, plan
from tests.harness.programs import documented_commands
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm, slurm_cluster
from tests.harness.timing import TEST_TIMEOUT_S

# Slurm waits for two minutes before it begins a task again, and longer for a node to come back.
pytestmark = [pytest.mark.long, needs_slurm, pytest.mark.timeout(3 * TEST_TIMEOUT_S)]

#: On a busy host, a stressor works less, or is slow to start, which warns.

Make = Callable[..., tuple[SlurmCluster, Fleet]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that starts a cluster of so many nodes, and has a fleet run for a plan."""
    with ExitStack() as stack:

        def started(nodes: int, text: str, prolog: str | None = None) -> tuple[SlurmCluster, Fleet]:
            files = {} if prolog is None else {"prolog": prolog}
            cluster = stack.enter_context(
                slurm_cluster(
                    nodes=nodes,
                    files=files,
                    settings={
                        **({} if prolog is None else {"Prolog": "{folder}/prolog"}),
                        "PreemptType": "preempt/partition_prio",
                        "PreemptMode": "REQUEUE",
                        "SlurmdTimeout": "5",
                        "KillWait": "10",
                    },
                    partitions=(
                        "idle Nodes=ALL Default=YES PriorityTier=1 GraceTime=20",
                        "jobs Nodes=ALL PriorityTier=10",
                    ),
                )
            )
            return cluster, Fleet(cluster.start, tmp_path, text)

        yield started


def begin_again(cluster: SlurmCluster, fleet: Fleet, node: str) -> None:
    """Let a requeued task begin at once: Slurm waits for two minutes otherwise."""
    task = fleet.run_file()["tasks"][node]
    cluster.run("scontrol", "update", f"JobId={task}", "StartTime=now")


def is_requeued(cluster: SlurmCluster, fleet: Fleet, node: str) -> bool:
    task = fleet.run_file()["tasks"][node]
    return cluster.jobs().get(task) == "PENDING"


def test_every_node_burns_itself_in_so_many_at_a_time(make: Make) -> None:
    cluster, fleet = make(16, plan(1))
    limits = fleet.path.with_name("limits.toml")
    limits.write_text(LIMITS)
    run = fleet.burnin("--batch", "4", "--thresholds", str(limits))
    eventually((fleet.path / "fleet.json").exists)
    limits.unlink()  # the nodes have the copy
    run.ends_with(ExitCode.OK)
    whole = json.loads((fleet.path / "report.json").read_text())
    assert whole["thresholds_overridden"] == {"fleet.temperature.warn": "> 30"}
    starts, ends = [], []
    for node in cluster.nodes:
        report = fleet.report(node)
        assert report["verdict"] in FAULTLESS, report["gpus"][0]["reasons"]
        assert report["node"]["hostname"] == node  # its task was pinned to it
        assert report["thresholds_overridden"] == NODE_LIMIT
        assert (fleet.path / "nodes" / node / "report.html").exists()
        assert fleet.progress(node)["state"] == "ended"
        starts.append(datetime.fromisoformat(report["run"]["started"]).timestamp())
        ends.append(datetime.fromisoformat(report["run"]["ended"]).timestamp())
    # The fifth begins only after the first has ended; a start is written in whole seconds.
    for start, end in zip(sorted(starts)[4:], sorted(ends)[:-4], strict=True):
        assert start + 1 > end
    assert "16 nodes" in run.output
    junit = fleet.command("report", str(fleet.path), "--junit").ends_with(ExitCode.OK)
    times = [float(time) for time in re.findall(r'<testcase .* time="([\d.]+)"', junit)]
    assert len(times) == 2 * len(cluster.nodes)
    assert min(times) >= 1  # of the plan
    eventually(lambda: cluster.run("squeue", "--noheader").stdout == "")  # none completes any more


def test_a_run_goes_on_beside_a_job_that_has_all_gpus(make: Make) -> None:
    cluster, fleet = make(1, plan(1))
    job = cluster.start("srun", "--gres=gpu:2", "--cpus-per-task=1", "sleep", "1000")
    eventually(lambda: "RUNNING" in cluster.jobs().values())
    fleet.burnin().ends_with(ExitCode.OK)
    assert job.poll() is None


def test_a_failing_node_is_drained_and_only_this_is_taken_back(make: Make) -> None:
    cluster, fleet = make(3, plan(4))
    uuid = fleet.break_gpu("node2")
    fleet.break_gpu("node3")
    run = fleet.burnin("--drain")
    fleet.wait_for_phase("node3", 1)
    by_hand = "fan 3 is loud"
    cluster.run("scontrol", "update", "NodeName=node3", "State=DRAIN", f"Reason={by_hand}")
    run.ends_with(ExitCode.FAIL)
    assert fleet.verdicts(("node2", "node3")) == ["FAIL", "FAIL"]
    assert cluster.reason("node1") == "none"
    reason = f"gpu-sentry: memory.remap_failed on GPU 0 ({uuid})"
    assert cluster.reason("node2") == reason
    assert cluster.state("node2").startswith("drain")
    assert cluster.reason("node3") == by_hand
    assert f"drained node2: {reason}" in run.output
    assert f"not drained: node3: it has a reason already: {by_hand}" in run.output
    output = fleet.command("undrain", str(fleet.path)).ends_with(ExitCode.OK)
    assert output == "undrained node2\n"
    eventually(lambda: cluster.state("node2") == "idle")
    assert cluster.reason("node3") == by_hand
    assert cluster.state("node3") == "drained"


def test_a_drained_node_has_jobs_again_once_it_has_passed_in_a_reservation(make: Make) -> None:
    """As docs/accept-a-node.md has it; one that fails stays reserved."""
    cluster, fleet = make(2, plan(1))
    fleet.break_gpu("node2")
    short = f"--plan {fleet.path.with_name('plan.toml')} --simulate 1"
    waiting = {}
    for node, code in (("node1", ExitCode.OK), ("node2", ExitCode.FAIL)):
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=repaired")
        job = ("sbatch", "--parsable", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")
        waiting[node] = cluster.run(*job).stdout.strip()
        fleet.path = fleet.path.with_name(node)
        commands = documented_commands("accept-a-node.md", "undrain")
        for words in (
            *(("node7", node), ("=accept", f"=accept-{node}"), ("DIR", str(fleet.path))),
            *(("--level long", short), ("sentinel", f"{sys.executable} -P -m sentinel")),
        ):
            commands = commands.replace(*words)
        script = cluster.start("sh", "-ec", commands, environment=fleet.environment)
        FleetProcess(script).ends_with(code)
        assert fleet.report(node)["verdict"] in (FAULTLESS if code == ExitCode.OK else {"FAIL"})
    eventually(lambda: cluster.jobs()[waiting["node1"]] == "COMPLETED")
    assert cluster.jobs()[waiting["node2"]] == "PENDING"
    kept = cluster.run("scontrol", "show", "reservation").stdout
    assert re.findall(r"ReservationName=(\S+)", kept) == ["accept-node2"]


def test_a_node_without_power_goes_on_after_its_return_and_another_is_missing(make: Make) -> None:
    cluster, fleet = make(3, plan(2, 15))
    fleet.burnin("--detach").ends_with(ExitCode.OK)
    for node in cluster.nodes:
        fleet.wait_for_phase(node, 2)
    cluster.kill("node2")
    cluster.kill("node3")
    eventually(lambda: is_requeued(cluster, fleet, "node2"))
    eventually(lambda: is_requeued(cluster, fleet, "node3"))
    cluster.boot("node2")
    eventually(lambda: cluster.state("node2") == "idle")
    # Slurm begins it again after two minutes: until then, it may still end the first one there.
    run = fleet.watch("--give-up", "1s")
    run.ends_with(ExitCode.INCOMPLETE)
    assert "given up, since their tasks cannot begin: node3" in run.output
    one, two, three = (fleet.report(node) for node in cluster.nodes)
    assert one["verdict"] in FAULTLESS
    (gpu,) = two["gpus"]
    assert all(phase["complete"] for phase in gpu["coverage"])
    # What NVML has reported in the part that was cut off is not known, so it never passes.
    assert two["verdict"] == "INCOMPLETE"
    assert "a part of the run was cut off" in gpu["reasons"][0]
    assert len(two["run"]["resumed"]) == 1
    assert fleet.progress("node2")["attempt"] > 1
    assert three is None
    assert "MISSING" in run.output


def test_a_partition_of_the_network_that_heals_costs_time_alone(make: Make) -> None:
    # Longer than a busy controller needs to miss the node: if it starts a task again before it
    # hears that the task has ended meanwhile, it holds it for ever.
    cluster, fleet = make(2, plan(2, 45))
    run = fleet.burnin()
    fleet.wait_for_phase("node1", 2)
    fleet.wait_for_phase("node2", 2)
    cluster.net("node2", up=False)
    eventually(lambda: is_requeued(cluster, fleet, "node2"))
    cluster.net("node2", up=True)
    run.ends_with(ExitCode.OK)
    assert set(fleet.verdicts(cluster.nodes)) <= FAULTLESS


def test_a_real_job_pre_empts_a_node_which_goes_on_afterwards(make: Make) -> None:
    cluster, fleet = make(2, plan(2, 40))
    run = fleet.burnin()
    fleet.wait_for_phase("node1", 2)
    job = cluster.start("srun", "--partition=jobs", "--nodelist=node1", "--exclusive", "hostname")
    output, _ = job.communicate()
    assert "node1" in output
    # It had the time to end in an orderly way.
    assert fleet.report("node1")["verdict"] == "INCOMPLETE"
    assert run.process.poll() is None
    begin_again(cluster, fleet, "node1")
    run.ends_with(ExitCode.OK)
    report = fleet.report("node1")
    assert report["verdict"] in FAULTLESS
    assert len(report["run"]["resumed"]) == 1


def test_a_cancelled_run_has_the_reports_of_what_was_done_and_goes_on(make: Make) -> None:
    cluster, fleet = make(2, plan(1, 20))
    run = fleet.burnin("--batch", "1")
    eventually(lambda: any(fleet.progress(node)["number"] == 2 for node in cluster.nodes))
    first, second = sorted(cluster.nodes, key=lambda node: -fleet.progress(node)["number"])
    fleet.command("cancel", str(fleet.path)).ends_with(ExitCode.OK)
    run.ends_with(ExitCode.INCOMPLETE)
    report = fleet.report(first)
    assert report["verdict"] == "INCOMPLETE"
    assert report["gpus"][0]["coverage"][0]["complete"]
    assert fleet.report(second) is None
    watch = fleet.watch().ends_with(ExitCode.INCOMPLETE)
    assert "MISSING" in watch
    resume = fleet.command("resume", str(fleet.path))
    resume.ends_with(ExitCode.OK)
    assert "going on with 2 of 2 nodes" in resume.output
    assert len(fleet.report(first)["run"]["resumed"]) == 1
    assert fleet.report(second)["run"]["resumed"] == []
    output = fleet.command("resume", str(fleet.path)).ends_with(ExitCode.OK)
    assert "going on with 0 of 2 nodes" in output


def test_a_task_that_an_operator_holds_is_shown_and_given_up(make: Make) -> None:
    cluster, fleet = make(2, plan(1))
    # Only one has its turn, whichever Slurm starts first, and the other one waits for it.
    fleet.burnin("--batch", "1", "--detach").ends_with(ExitCode.OK)
    tasks = fleet.run_file()["tasks"]
    eventually(lambda: "RUNNING" in cluster.jobs().values())
    states = cluster.jobs()
    first, last = sorted(tasks, key=lambda node: states.get(tasks[node]) != "RUNNING")
    job = tasks[last]
    cluster.run("scontrol", "hold", job)
    run = fleet.watch("--give-up", "1s")
    held = f"held: JobHeldAdmin; release it: scontrol release {job}"
    run.wait_for(f"{last}  waiting  {held}")
    run.ends_with(ExitCode.INCOMPLETE)
    assert f"given up, since their tasks cannot begin: {last}" in run.output
    assert fleet.report(first)["verdict"] in FAULTLESS
    why = f"given up after 1 s: {held}; its task stays in the queue"
    assert f"it has no report: {why}" in run.output
    assert cluster.jobs()[job] == "PENDING"
    output = fleet.command("report", str(fleet.path)).ends_with(ExitCode.INCOMPLETE)
    assert why in output
    cluster.run("scontrol", "release", job)
    fleet.watch().ends_with(ExitCode.OK)
    assert set(fleet.verdicts(cluster.nodes)) <= FAULTLESS


def test_a_task_that_slurm_holds_since_it_could_not_begin_goes_on_once_it_is_released(
    make: Make, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.touch()
    cluster, fleet = make(2, plan(1), f"#!/bin/sh\n[ $(hostname) != node2 ] || [ ! -e {bad} ]")
    (cluster.folder / "prolog").chmod(0o755)
    run = fleet.burnin()
    run.wait_for("node2  waiting  held: launch failed requeued held; release it: scontrol release")
    bad.unlink()
    cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    cluster.run("scontrol", "release", fleet.run_file()["tasks"]["node2"])
    begin_again(cluster, fleet, "node2")
    run.ends_with(ExitCode.OK)
    assert set(fleet.verdicts(cluster.nodes)) <= FAULTLESS


def test_a_run_that_is_forged_ends_no_job_of_others(make: Make, tmp_path: Path) -> None:
    cluster, fleet = make(1, plan(1, 1000))
    fleet.burnin("--detach").ends_with(ExitCode.OK)
    fleet.wait_for_phase("node1", 1)
    words = ("--wrap=sleep 1000", "--oversubscribe", "--output=/dev/null")
    other = cluster.run("sbatch", "--parsable", "--job-name=training", *words).stdout.strip()
    eventually(lambda: cluster.jobs()[other] == "RUNNING")
    own = fleet.run_file()
    forged = tmp_path / "forged"
    for changed in (
        own,  # the jobs of another run
        own | {"command": [*own["command"][:-1], str(forged)]},
        own | {"id": "training", "tasks": {"node1": other}, "jobs": [other]},
    ):
        forged.mkdir(exist_ok=True)
        (forged / "fleet.json").write_text(json.dumps(changed))
        cancel = fleet.command("cancel", str(forged))
        cancel.ends_with(ExitCode.USAGE)
        assert "names jobs that were not begun with this folder" in cancel.output
    assert set(cluster.jobs().values()) == {"RUNNING"}
    # Nor does the run itself, with the id of a job that Slurm has given to another user since.
    path = fleet.path / "fleet.json"
    path.write_text(json.dumps(own | {"tasks": {"node1": other}}))
    fleet.command("cancel", str(fleet.path)).ends_with(ExitCode.OK)
    eventually(lambda: cluster.jobs()[own["tasks"]["node1"]] not in {"RUNNING", "COMPLETING"})
    assert cluster.jobs()[other] == "RUNNING"


def test_a_task_that_a_controller_forgot_is_missing_with_this_reason(make: Make) -> None:
    cluster, fleet = make(2, plan(1))
    cluster.kill("node2")
    eventually(lambda: cluster.state("node2").endswith("*"))
    cluster.restart_controller()  # it writes its state some seconds after each change
    fleet.burnin("--detach").ends_with(ExitCode.OK)
    cluster.restart_controller()
    output = fleet.watch().ends_with(ExitCode.INCOMPLETE)
    job, name = fleet.run_file()["tasks"]["node2"], fleet.run_file()["id"]
    why = f"Slurm does not know job {job} any more (a restarted controller forgot it)"
    assert f"{why}: sentinel fleet resume {name}" in output
    assert job not in cluster.jobs()


def test_a_run_survives_its_controller_and_its_terminal(make: Make) -> None:
    cluster, fleet = make(2, plan(2, 20))
    run = fleet.burnin()
    for node in cluster.nodes:
        fleet.wait_for_phase(node, 1)
    cluster.stop_controller()  # one that is killed may forget what it has just begun
    run.wait_for("the nodes go on")
    run.process.send_signal(signal.SIGHUP)  # its terminal closes
    run.ends_with(-signal.SIGHUP)
    cluster.start_controller()
    watch = fleet.watch()
    watch.wait_for("running")
    watch.process.send_signal(signal.SIGINT)
    watch.ends_with(ExitCode.INTERRUPTED)
    assert f"to watch it: sentinel fleet report --watch {fleet.path}" in watch.output
    fleet.watch().ends_with(ExitCode.OK)
    assert set(fleet.verdicts(cluster.nodes)) <= FAULTLESS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--nodelist", "node[7-9]"), "--nodelist: Slurm has no node node7"),
        (("--partition", "gold"), "no partition gold"),
        (("--nodes", "3"), "--nodes 3: 2 of 2 nodes can be used"),
        (("--engine-option=--nope",), "sbatch failed"),
    ],
)
def test_what_slurm_refuses_starts_nothing(
    make: Make, flags: tuple[str, ...], message: str
) -> None:
    cluster, fleet = make(2, plan(1))
    output = fleet.burnin(*flags).ends_with(ExitCode.USAGE)
    assert message in output
    assert cluster.jobs() == {}
    assert not (fleet.path / "fleet.json").exists()
