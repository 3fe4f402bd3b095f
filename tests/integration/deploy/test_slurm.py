"""Slurm's prolog and epilog: GPUs are free before a job starts, and kept free until its end."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.daemon_harness import Daemon
from tests.harness.node_daemon import HOOKS, SCRIPTS, NodeDaemon, install_scripts, reservations
from tests.harness.programs import EXEC_SENTINEL, run_program, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import needs_slurm, slurm_cluster
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
    with daemon.client.reserve([1], reason="mine"):
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
@pytest.mark.parametrize("gpus", [{}, {"SLURM_JOB_GPUS": "0"}], ids=["no GPU", "a GPU"])
@pytest.mark.parametrize(
    "text",
    ['X="open', "PATH=$PATH:$UNKNOWN/bin", "exit 3", "X=a b", "SENTINEL={broken}"],
    ids=repr,
)
def test_a_fault_of_the_settings_or_of_the_command_drains_no_node(
    name: str, gpus: dict[str, str], text: str, tmp_path: Path
) -> None:
    broken = write_script(tmp_path / "broken", "echo 'ImportError' >&2\nexit 1")
    settings = tmp_path / "slurm.env"
    settings.write_text(f"{text.format(broken=broken)}\n")
    variables = {"SENTINEL_SLURM_ENV": str(settings), "SENTINEL": "/none", "SLURM_JOB_ID": "7"}
    assert run_program(SCRIPTS / f"{name}.sh", env=variables | gpus).returncode == 0


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
