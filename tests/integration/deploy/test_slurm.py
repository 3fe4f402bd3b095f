"""The files of deploy/slurm: prolog, epilog, health check and idle burn-in, and a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness.burnin_run import CHECKED, plan_of
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.node_daemon import (
    HEALTH_CHECKS,
    HOOKS,
    SCRIPTS,
    NodeDaemon,
    install_scripts,
    reservations,
)
from tests.harness.programs import EXEC_SENTINEL, run_program, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm, slurm_cluster
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("fake_torch")

#: A job that takes most of a simulated GPU at once, and says whether it got it.
JOB = f"{sys.executable} -P -m sentinel demo job --json --memory 97% --for 10ms --gpus "


def script(
    daemon: Daemon, name: str, wait: str = "10s", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script with few variables, as slurmd does, but without a slurmd."""
    folder = daemon.host.folder
    command = write_script(folder / "sentinel", EXEC_SENTINEL)
    given = {name: os.environ[name] for name in ("SENTINEL_SIM_DIR", "PYTHONPATH")}
    given |= {"SENTINEL": str(command), "SENTINEL_SLURM": str(folder / "jobs")}
    given |= {"SENTINEL_WAIT": wait, "PATH": str(folder)}  # there is no slurmd
    settings = folder / "slurm.env"
    settings.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    environment = {"SENTINEL_SLURM_ENV": str(settings), "SLURM_JOB_ID": "7"} | variables
    return run_program(SCRIPTS / f"{name}.sh", env=environment)


def test_the_scripts_are_executable_and_valid() -> None:
    for file in SCRIPTS.glob("*.sh"):
        assert bool(file.stat().st_mode & stat.S_IXUSR) == (file.name != "settings.sh")
        subprocess.run(["sh", "-n", file], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", "-x", file], check=True)


@pytest.mark.long
def test_a_job_starts_unless_a_fault_is_proven(daemon: Daemon) -> None:
    assert script(daemon, "prolog", SLURM_JOB_GPUS="0").returncode == 0  # no daemon runs
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    assert script(daemon, "prolog").returncode == 0  # the job has no GPU
    assert daemon.client.reservations() == ()
    # This daemon has no GPU 5; without slurmd, the numbers are NVML's.
    done = script(daemon, "prolog", SLURM_JOB_GPUS="0,5")
    assert done.returncode == 0
    assert "slurmd is not installed on this host" in done.stderr
    (held,) = daemon.client.reservations()
    assert (held.reason, held.indices, held.bound) == ("Slurm job 7", (0,), False)
    assert daemon.host.empty(0)
    # Job 8 shares GPU 0, so that it stays free until both are over.
    assert script(daemon, "prolog", SLURM_JOB_GPUS="0", SLURM_JOB_ID="8").returncode == 0
    assert script(daemon, "epilog").returncode == 0
    assert reservations(daemon.client) == [("Slurm job 7", (0,))]
    # A user has reserved GPU 1: no fault, so job 9 starts.
    with daemon.client.reserve([1], reason="mine", seconds=None):
        done = script(daemon, "prolog", "0", SLURM_JOB_GPUS="1", SLURM_JOB_ID="9")
        assert done.returncode == 0
        assert "GPU 1" in done.stderr
    # Without a daemon, an epilog cannot end the reservation; the next one does.
    daemon.run("stop")
    assert script(daemon, "epilog", SLURM_JOB_ID="8").returncode == 0
    daemon.start(2)
    assert reservations(daemon.client) == [("Slurm job 7", (0,))]
    assert script(daemon, "epilog", SLURM_JOB_ID="9").returncode == 0
    assert daemon.client.reservations() == ()


@pytest.mark.parametrize("name", ["prolog", "epilog", "healthcheck"])
@pytest.mark.parametrize(
    "text",
    [
        'X="open',
        "PATH=$PATH:$UNKNOWN/bin",
        "exit 3",
        "X=a b",
        "SENTINEL={broken}",
        "set -e\nSENTINEL={broken}",
    ],
    ids=repr,
)
def test_a_fault_of_the_settings_or_of_the_command_drains_no_node(
    name: str, text: str, tmp_path: Path
) -> None:
    broken = write_script(tmp_path / "broken", "echo 'ImportError' >&2\nexit 1")
    settings = tmp_path / "slurm.env"
    settings.write_text(f"{text.format(broken=broken)}\n")
    variables = {"SENTINEL_SLURM_ENV": str(settings), "SENTINEL": "/none"}
    variables |= {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
    assert run_program(SCRIPTS / f"{name}.sh", env=variables).returncode == 0


@pytest.mark.parametrize("name", ["prolog", "epilog", "healthcheck"])
def test_the_command_may_be_a_name_in_path(name: str, tmp_path: Path) -> None:
    write_script(tmp_path / "sentinel-of-here", f"echo $* >{tmp_path}/called")
    settings = tmp_path / "slurm.env"
    settings.write_text(f"PATH={tmp_path}:$PATH\nSENTINEL=sentinel-of-here\n")
    environment = {"SENTINEL_SLURM_ENV": str(settings), "SLURM_JOB_ID": "7"}
    assert run_program(SCRIPTS / f"{name}.sh", env=environment).returncode == 0
    assert (tmp_path / "called").read_text().startswith(f"slurm {name} ")


def test_scripts_without_their_settings_drain_no_node(tmp_path: Path) -> None:
    for name in ("prolog", "epilog", "healthcheck"):
        script = Path(shutil.copy(SCRIPTS / f"{name}.sh", tmp_path))
        assert subprocess.run([script], check=False, capture_output=True).returncode == 0, name


@pytest.mark.long
@needs_slurm
def test_a_real_slurm_starts_jobs_on_free_gpus() -> None:
    with slurm_cluster(nodes=2, settings=HOOKS) as cluster:
        install_scripts(cluster)
        nodes = {name: NodeDaemon(cluster, name) for name in cluster.nodes}
        clients = {name: node.start() for name, node in nodes.items()}
        first = nodes["node1"]

        def job(gpus: int, *words: str) -> str:
            srun = ("srun", "--nodelist=node1", "--immediate=20", f"--gres=gpu:{gpus}")
            return cluster.run(*srun, *words, environment=first.environment).stdout

        output = job(1, "sh", "-c", f"{JOB} $CUDA_VISIBLE_DEVICES")
        assert '"job.got"' in output
        held = cluster.start(
            *("srun", "--nodelist=node1", "--gres=gpu:1", "sh", "-c", "echo begun; cat"),
            stdin=subprocess.PIPE,
        )
        eventually(lambda: reservations(clients["node1"]) == [("Slurm job 2", (0,))])
        # Slurm calls a job running while its prolog still is.
        assert held.stdout is not None
        assert "begun\n" in held.stdout
        assert first.used(0) == 0
        assert first.used(1) > 0
        assert reservations(clients["node2"]) == []
        held.communicate(timeout=TIMEOUT_S)
        eventually(lambda: clients["node1"].reservations() == ())
        eventually(lambda: all(gpu.occupied for gpu in clients["node1"].status().gpus))
        first.run("stop")
        job(2, "true")
        eventually(lambda: cluster.state("node1") == "idle")  # not drained


@pytest.mark.long
@needs_slurm
def test_the_order_of_gres_conf_differs_from_that_of_nvml() -> None:
    # The driver has found the GPUs in the order 2, 0, 1 of the bus, and gres.conf begins with
    # /dev/nvidia2 and lacks /dev/nvidia0.
    with slurm_cluster(gpus=2, minors=(2, 1), settings=HOOKS) as cluster:
        install_scripts(cluster)
        node = NodeDaemon(cluster, "node1", gpus=3)
        client = node.start()
        node.set_minors([1, 2, 0])

        def index_of(job: int, *options: str) -> tuple[int, ...]:
            sleeping = cluster.start("srun", *options, "sleep", "600")
            eventually(client.reservations)
            ((reason, found),) = reservations(client)
            assert reason == f"Slurm job {job}"
            cluster.run("scancel", str(job))
            sleeping.wait(TIMEOUT_S)
            eventually(lambda: client.reservations() == ())
            return found

        # Place 0 is /dev/nvidia2: the GPU with the index 1.
        assert index_of(1, "--gres=gpu:1") == (1,)
        assert index_of(2, "--gres=gpu:2") == (0, 1)


#: Where Slurm's plugin for the first version of control groups makes the folder of a node.
DEVICES = Path("/sys/fs/cgroup/devices")
CGROUP_CONF = f"""
CgroupPlugin=cgroup/v1
CgroupMountpoint={DEVICES.parent}
CgroupAutomount=no
ConstrainDevices=yes
"""


@pytest.mark.long
@needs_slurm
@pytest.mark.skipif(not (DEVICES / "tasks").exists(), reason="needs control groups, version 1")
def test_slurm_itself_takes_a_place_for_that_device_file() -> None:
    """A device without a driver cannot be opened either, but the error is another."""
    settings = {"TaskPlugin": "task/cgroup"}
    files = {"cgroup.conf": CGROUP_CONF}
    try:
        with slurm_cluster(gpus=3, minors=(7, 4, 5), settings=settings, files=files) as cluster:

            def devices(gpus: int) -> tuple[str, list[str]]:
                shell = f"echo $SLURM_STEP_GPUS; for d in {cluster.folder}/dev/*; do : <$d; done"
                done = cluster.run("srun", f"--gres=gpu:{gpus}", "bash", "-c", shell, check=False)
                allowed = [line for line in done.stderr.splitlines() if "No such device" in line]
                minors = [line.rpartition("/nvidia")[2].partition(":")[0] for line in allowed]
                assert len(minors) + done.stderr.count("not permitted") == 3, done.stderr
                return done.stdout.strip(), minors

            assert devices(1) == ("0", ["7"])
            assert devices(2) == ("0,1", ["4", "7"])
    finally:
        for folder in sorted(DEVICES.glob("slurm_node1/**/"), reverse=True):
            folder.rmdir()


@pytest.mark.long
@needs_slurm
def test_a_job_does_not_start_on_a_gpu_that_has_failed(tmp_path: Path) -> None:
    with slurm_cluster(settings=HOOKS) as cluster:
        install_scripts(cluster)
        node = NodeDaemon(cluster, "node1")
        node.start()
        node.run("stop")
        node.write_verdict(0, "FAIL")
        node.start()
        job = tmp_path / "job"
        job.write_text("#!/bin/sh\ntrue\n")
        cluster.run("sbatch", "--gres=gpu:2", f"--output={tmp_path}/output", job)
        eventually(lambda: cluster.state("node1") == "drained")
        assert "Prolog error" in cluster.reason("node1")
        assert cluster.jobs() == {"1": "PENDING"}  # requeued
        log = (cluster.folder / "log" / "prolog").read_text()
        assert f"gpu-sentry: failed burn-in standard on GPU 0 ({node.uuid(0)})" in log


# --- the health check ----------------------------------------------------------------------------


@pytest.fixture
def cluster(fake_torch: None) -> Iterator[SlurmCluster]:
    with slurm_cluster(settings=HEALTH_CHECKS) as cluster:
        yield cluster


def lines(cluster: SlurmCluster) -> list[str]:
    """Read what the health checks of the node have printed so far."""
    file = cluster.folder / "log" / "healthcheck"
    return file.read_text().splitlines() if file.exists() else []


def wait_for_line(cluster: SlurmCluster, text: str, after: int = 0) -> None:
    """Wait until a health check has printed a line that begins with a text."""
    eventually(lambda: any(line.startswith(text) for line in lines(cluster)[after:]))


def restart_with(node: NodeDaemon, verdict: str) -> None:
    """Restart the daemon after a burn-in of GPU 0."""
    node.run("stop")
    node.write_verdict(0, verdict)
    node.start()


@pytest.mark.long
@needs_slurm
def test_a_fault_drains_the_node_until_a_burn_in_has_passed(cluster: SlurmCluster) -> None:
    install_scripts(cluster, SENTINEL_DRAIN="yes")
    node = NodeDaemon(cluster, "node1")
    node.start()
    wait_for_line(cluster, "gpu-sentry: no fault on 2 GPUs")
    ours = f"gpu-sentry: failed burn-in standard on GPU 0 ({node.uuid(0)})"

    # The reason of an operator stays; without it, the node is drained.
    cluster.run("scontrol", "update", "nodename=node1", "state=drain", "reason=ticket 7")
    restart_with(node, "FAIL")
    wait_for_line(cluster, "gpu-sentry: not drained: it has a reason already: ticket 7")
    assert cluster.reason("node1") == "ticket 7"
    cluster.run("scontrol", "update", "nodename=node1", "state=resume")
    eventually(lambda: cluster.reason("node1") == ours)
    assert cluster.state("node1") == "drained"

    # Neither an unknown state nor a burn-in that was cut short takes it back.
    restart_with(node, "INCOMPLETE")
    wait_for_line(cluster, ours, after=len(lines(cluster)))
    assert cluster.state("node1") == "drained"
    restart_with(node, "PASS")
    eventually(lambda: cluster.state("node1") == "idle")

    # An operator who resumes a node that is known to be faulty is not overruled.
    restart_with(node, "FAIL")
    eventually(lambda: cluster.state("node1") == "drained")
    cluster.run("scontrol", "update", "nodename=node1", "state=resume")
    before = len(lines(cluster))
    eventually(lambda: len(lines(cluster)) >= before + 2)
    assert (cluster.state("node1"), cluster.reason("node1")) == ("idle", "none")


@pytest.mark.long
@needs_slurm
def test_nothing_is_drained_unless_it_is_configured(cluster: SlurmCluster) -> None:
    install_scripts(cluster)
    node = NodeDaemon(cluster, "node1")
    node.start()
    restart_with(node, "FAIL")
    before = len(lines(cluster))
    wait_for_line(cluster, "gpu-sentry: failed burn-in standard on GPU 0", after=before)
    assert cluster.state("node1") == "idle"


@pytest.mark.long
@needs_slurm
def test_it_exits_with_0_whatever_the_daemon_does(tmp_path: Path) -> None:
    with slurm_cluster() as cluster:
        install_scripts(cluster, SENTINEL_DRAIN="yes")
        node = NodeDaemon(cluster, "node1")

        def last_line() -> str:
            """Run the health check on the node with what slurmd gives it; read what it prints."""
            words = ("env", "-i", "SLURMD_NODENAME=node1", f"PWD={tmp_path}")
            cluster.run_on("node1", *words, cluster.folder / "healthcheck")
            return lines(cluster)[-1]

        assert last_line().startswith("sentinel: no sentinel daemon runs"), lines(cluster)
        client = node.start()
        note = "the number of GPUs was not checked"
        assert last_line() == f"gpu-sentry: no fault on 2 GPUs; {note}"
        daemon = psutil.Process(_host_pid(cluster, client.status().daemon.pid))
        stopped = [daemon, *daemon.children(recursive=True)]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            assert last_line().startswith("sentinel: "), lines(cluster)
        finally:
            for process in stopped:
                process.send_signal(signal.SIGCONT)
        assert cluster.state("node1") == "idle"


def _host_pid(cluster: SlurmCluster, pid: int) -> int:
    """Translate a PID of the node's namespace."""
    inode = cluster.run_on("node1", "readlink", "/proc/1/ns/pid").stdout.strip()
    for process in psutil.process_iter():
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            same = str(Path(f"/proc/{process.pid}/ns/pid").readlink()) == inode
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if same and numbers[-1] == str(pid):
            return process.pid
    raise AssertionError(f"no process {pid} on the node")


# --- burn-ins of idle GPUs -----------------------------------------------------------------------

#: A second of checked work, and more than the test waits for.
PLAN = plan_of("short", ("short", CHECKED, "seconds = 1"), ("endless", CHECKED, "seconds = 6000"))
#: As slurm.conf.example has them, with a shorter GraceTime.
PARTITIONS = (
    "main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF",
    "idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
)
PREEMPTION = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}


def test_the_example_has_the_lines_that_are_tested() -> None:
    example = (SCRIPTS / "slurm.conf.example").read_text().replace("GraceTime=30", "GraceTime=20")
    for line in (*(f"PartitionName={one}" for one in PARTITIONS), "PreemptMode=REQUEUE"):
        assert f"\n{line}\n" in example


@pytest.mark.long
@needs_slurm
def test_a_job_preempts_an_idle_burn_in_which_goes_on_afterwards(tmp_path: Path) -> None:
    text = tmp_path / "plan.toml"
    text.write_text(PLAN)
    environment = {
        "SENTINEL": str(write_script(tmp_path / "sentinel", EXEC_SENTINEL)),
        "SENTINEL_SIM_DIR": str(tmp_path / "gpus"),
        "SENTINEL_CONFIG": os.devnull,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT), os.environ["PYTHONPATH"]]),
        "BURNIN_RUNS": str(tmp_path / "runs"),
        "BURNIN_OPTIONS": "--simulate 2",
    }
    folder = tmp_path / "runs" / "1-node1"

    with slurm_cluster(settings=PREEMPTION, partitions=PARTITIONS) as cluster:
        cluster.run(
            *("sbatch", "--gres=gpu:2", f"--output={tmp_path}/output"),
            *(SCRIPTS / "idle-burnin.sh", "--plan", text),
            environment=environment,
        )
        events = folder / "events.jsonl"
        eventually(lambda: events.exists() and '"endless"' in events.read_text())
        assert cluster.jobs() == {"1": "RUNNING"}
        output = cluster.run("srun", "--gres=gpu:2", "sh", "-c", "echo got $CUDA_VISIBLE_DEVICES")
        assert output.stdout == "got 0,1\n"
        first = json.loads((folder / "report.json").read_text())
        assert first["verdict"] == "INCOMPLETE", (tmp_path / "output").read_text()
        size = events.stat().st_size
        eventually(lambda: cluster.jobs()["1"] == "RUNNING")
        eventually(lambda: events.stat().st_size > size)
        assert not list((tmp_path / "runs").glob("1-node1-*")), "it has begun again"
        cluster.run("scancel", "1")
        eventually(lambda: cluster.jobs()["1"] != "RUNNING")


# --- the Slurm of the tests ----------------------------------------------------------------------


@pytest.mark.long
@needs_slurm
def test_two_clusters_run_side_by_side_and_leave_nothing() -> None:
    with slurm_cluster(nodes=2) as first, slurm_cluster(nodes=1, gpus=1) as second:
        assert (first.bridge, first.subnet, first.port, first.folder) != (
            second.bridge,
            second.subnet,
            second.port,
            second.folder,
        )
        words = ("srun", "-N2", "--ntasks-per-node=1", "--gres=gpu:2", "sh", "-c")
        output = first.run(*words, "echo $(hostname) $CUDA_VISIBLE_DEVICES").stdout
        assert sorted(output.splitlines()) == ["node1 0,1", "node2 0,1"]
        assert second.run_on("node1", "hostname").stdout == "node1\n"
        assert second.run_on("node1", "ls", "/proc/1/exe").returncode == 0
        assert second.jobs() == {}
        left = [first, second]
    for cluster in left:
        assert not cluster.folder.exists()
        assert not Path("/sys/class/net", cluster.bridge).exists()
        assert not list(Path("/run/netns").glob(f"{cluster.bridge}-*"))
