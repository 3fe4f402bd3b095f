"""Slurm's prolog and epilog: GPUs are free before a job starts, and kept free until its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

SCRIPTS = ROOT / "deploy" / "slurm"
SLURM = ("slurmctld", "slurmd", "srun", "sinfo")

#: One node with two GPUs, for the root user of this host, without authentication.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
Prolog={folder}/prolog
Epilog={folder}/epilog
PrologFlags=Alloc
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/slurmd
StateSaveLocation={folder}/slurmctld
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
"""

pytestmark = pytest.mark.usefixtures("fake_torch")


@pytest.fixture
def daemon(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        yield daemon


def command(folder: Path) -> Path:
    """Create an executable ``sentinel``; return its path."""
    file = folder / "sentinel"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m sentinel "$@"\n')
    file.chmod(0o755)
    return file


def script(daemon: Daemon, name: str, **variables: str) -> int:
    """Run a script with few variables, as slurmd does; return its exit code."""
    folder = daemon.host.folder
    kept = {name: os.environ[name] for name in ("SENTINEL_SIM_DIR", "PYTHONPATH")}
    added = {"SENTINEL": str(command(folder)), "SENTINEL_SLURM": str(folder / "kept")}
    added |= {"SENTINEL_WAIT": "5s", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        [SCRIPTS / f"{name}.sh"],
        env=kept | added | variables,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=TIMEOUT_S,
    )
    return done.returncode


def test_the_scripts_are_executable_and_valid() -> None:
    for name in ("prolog", "epilog"):
        file = SCRIPTS / f"{name}.sh"
        assert file.stat().st_mode & stat.S_IXUSR
        subprocess.run(["bash", "-n", file], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", file], check=True)


@pytest.mark.long
def test_a_job_starts_if_sentinel_does_not_hold_its_gpus(daemon: Daemon) -> None:
    assert script(daemon, "prolog", SLURM_JOB_GPUS="0") == 0  # no daemon runs
    daemon.start(1)
    daemon.wait_for_stressor(0)
    assert script(daemon, "prolog") == 0  # the job has no GPU
    assert daemon.client.reservations() == ()
    # This daemon does not manage GPU 5.
    assert script(daemon, "prolog", SLURM_JOB_GPUS="0,5") == 0
    (held,) = daemon.client.reservations()
    assert (held.reason, held.indices, held.bound) == ("Slurm job 7", (0,), False)
    assert daemon.host.empty(0)
    other = {"SLURM_JOB_ID": "8", "SENTINEL_WAIT": "0"}
    assert (
        script(daemon, "prolog", CUDA_VISIBLE_DEVICES="0", **other) == 1
    )  # the GPU is reserved for job 7
    assert script(daemon, "epilog", SLURM_JOB_ID="8") == 0
    assert script(daemon, "epilog") == 0
    assert daemon.client.reservations() == ()
    assert script(daemon, "epilog") == 0


def ports() -> tuple[int, int]:
    """Find two free ports."""
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        return first.getsockname()[1], second.getsockname()[1]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run a Slurm cluster of one node; yield the environment of its commands."""
    folder.mkdir()
    controller, node = ports()
    conf = folder / "slurm.conf"
    hostname = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(host=hostname, folder=folder, controller=controller, node=node))
    for index in range(2):
        os.mknod(folder / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-1]\n")
    (folder / "slurmctld").mkdir()
    variables_of_scripts = {"SENTINEL": command(folder), "SENTINEL_SLURM": folder / "kept"}
    variables_of_scripts |= {
        name: Path(os.environ[name]) for name in ("SENTINEL_SIM_DIR", "PYTHONPATH")
    }
    for name in ("prolog", "epilog"):
        exports = "".join(f"export {key}={value}\n" for key, value in variables_of_scripts.items())
        (folder / name).write_text(f"#!/bin/sh\n{exports}exec {SCRIPTS}/{name}.sh\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as cleanup:
        for words in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", hostname]):
            process = subprocess.Popen(
                words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            cleanup.callback(process.wait, TIMEOUT_S)
            cleanup.callback(process.kill)
        # Otherwise a step would outlive its slurmd.
        cleanup.callback(
            subprocess.run, ["scancel", "--user=root"], env=environment, timeout=TIMEOUT_S
        )
        eventually(lambda: _state(environment) == "idle")
        yield environment


def _state(environment: dict[str, str]) -> str:
    """Query the state of the node."""
    words = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return done.stdout.strip()


@pytest.mark.skipif(not all(map(shutil.which, SLURM)), reason="needs Slurm")
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, as slurmd does")
def test_a_real_slurm_starts_jobs_on_free_gpus(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    with cluster(tmp_path / "slurm") as environment:

        def job(*words: str) -> str:
            done = subprocess.run(
                ["srun", "--immediate=20", "--gres=gpu:1", *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
            assert done.returncode == 0, done.stderr + (tmp_path / "slurm/slurmd.log").read_text()
            return done.stdout

        program = f"{sys.executable} -m sentinel"
        simulated_job = "simulate-job --gpus $CUDA_VISIBLE_DEVICES --memory 97% --for 10ms"
        output = job("sh", "-c", f"{program} reservations --json && {program} {simulated_job}")
        (held,) = json.loads(output.splitlines()[0])["reservations"]
        assert (held["reason"], held["indices"]) == ("Slurm job 1", [0])
        assert '"job.got"' in output
        eventually(lambda: daemon.client.reservations() == ())
        daemon.wait_for_stressor(0)
        assert not daemon.host.empty(1)
        daemon.run("shutdown")
        job("true")
        eventually(lambda: _state(environment) == "idle")  # not drained
