"""Whatever of Slurm fails, a reservation ends after its job has ended, and not before."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from sentinel.client import Client
from tests.harness.node_daemon import (
    HEALTH_CHECKS,
    HOOKS,
    NodeDaemon,
    install_scripts,
    reservations,
)
from tests.harness.programs import write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm, slurm_cluster
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch"), needs_slurm]


class Jobs:
    """A cluster with a daemon on each node, and at most one job on each, which holds its GPU."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        install_scripts(cluster)
        self.nodes = {name: NodeDaemon(cluster, name, gpus=1) for name in cluster.nodes}
        self.clients: Mapping[str, Client] = {n: node.start() for n, node in self.nodes.items()}

    def script(self, node: str) -> Path:
        """Write a job that says that it runs, and goes on until it is told to end."""
        stop = self._folder / f"{node}.stop"
        begin, end = (f"touch {self._folder}/{node}.{word}" for word in ("runs", "ended"))
        text = f"{begin}\nwhile [ ! -e {stop} ]; do sleep 0.2; done\n{end}"
        return write_script(self._folder / f"{node}.sh", text)

    def submit(self, node: str) -> None:
        """Start a job on a node."""
        output = f"--output={self._folder}/{node}.output"
        words = (*self.where(node), "--no-requeue", output)
        self.cluster.run("sbatch", *words, self.script(node))

    def where(self, node: str) -> tuple[str, ...]:
        """Return the options for a job on the GPU of a node."""
        return (f"--nodelist={node}", "--gres=gpu:1")

    def end(self, node: str) -> None:
        """Tell the job of a node to end."""
        (self._folder / f"{node}.stop").touch()

    def wait_until_they_run(self) -> None:
        """Wait until each node runs a job on a reserved GPU, and Slurm has saved that."""
        for node in self.nodes:
            eventually((self._folder / f"{node}.runs").exists)
            eventually(partial(self.reserved, node))
        self.cluster.save_jobs()

    def wait_until_free(self, node: str) -> None:
        """Wait until the GPU of a node is not reserved."""
        # Several health checks, of which there is one every 25 s, may have to see the end.
        eventually(lambda: not self.reserved(node), 4 * TIMEOUT_S)

    def reserved(self, node: str) -> bool:
        """Whether the GPU of a node is reserved."""
        return bool(reservations(self.clients[node]))


@contextmanager
def started_jobs(folder: Path, nodes: int) -> Iterator[Jobs]:
    """Run a cluster with health checks, fewer than would keep this machine busy."""
    settings = {**HOOKS, **HEALTH_CHECKS, "HealthCheckInterval": f"{5 * nodes}"}
    settings["InactiveLimit"] = "20"  # otherwise, a job whose srun is gone may stay
    with slurm_cluster(nodes=nodes, gpus=1, settings=settings) as cluster:
        yield Jobs(cluster, folder)


def test_reservations_end_after_an_outage_of_the_controller(tmp_path: Path) -> None:
    with started_jobs(tmp_path, nodes=5) as jobs:
        cluster = jobs.cluster
        lasting, ending, without_slurmd, interrupted, lost = jobs.nodes
        for node in (lasting, ending, without_slurmd, lost):
            jobs.submit(node)
        srun = cluster.start("srun", *jobs.where(interrupted), jobs.script(interrupted))
        jobs.wait_until_they_run()

        cluster.stop_controller(signal.SIGKILL)
        jobs.end(ending)
        cluster.kill_slurmd(without_slurmd)
        jobs.end(without_slurmd)
        srun.terminate()
        cluster.kill(lost)
        for node in (ending, without_slurmd):
            eventually((tmp_path / f"{node}.ended").exists)
        for node in (lasting, ending, without_slurmd, interrupted):
            assert jobs.reserved(node), node

        cluster.start_controller()
        cluster.start_slurmd(without_slurmd)
        cluster.boot(lost)
        jobs.nodes[lost].run("start", "--simulate", "1", "--wait", "0")
        for node in (ending, without_slurmd, interrupted, lost):
            jobs.wait_until_free(node)
        assert jobs.reserved(lasting)
        jobs.end(lasting)
        jobs.wait_until_free(lasting)
        eventually(lambda: all(cluster.state(node) == "idle" for node in jobs.nodes))


def test_reservations_end_though_no_epilog_ended_them(tmp_path: Path) -> None:
    with started_jobs(tmp_path, nodes=3) as jobs:
        cluster = jobs.cluster
        upgraded, forgotten, lasting = jobs.nodes
        for node in jobs.nodes:
            jobs.submit(node)
        jobs.wait_until_they_run()

        # While the package is upgraded, there is no command.
        command = cluster.folder / "sentinel"
        command.rename(tmp_path / "sentinel")
        jobs.end(upgraded)
        eventually(lambda: not jobs.nodes[upgraded].files())
        (tmp_path / "sentinel").rename(command)
        jobs.wait_until_free(upgraded)

        # A controller that has lost its state knows of no job, and runs no epilog for this one.
        cluster.stop_controller(signal.SIGKILL)
        cluster.kill_slurmd(forgotten)
        cluster.kill_job(forgotten)
        for file in (cluster.folder / "state").glob("job_state*"):
            file.unlink()
        cluster.start_controller()
        cluster.start_slurmd(forgotten)
        jobs.wait_until_free(forgotten)
        assert jobs.nodes[forgotten].files() == []
        jobs.wait_until_free(lasting)  # Slurm ends a job that it does not know
