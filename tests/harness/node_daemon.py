"""A daemon with simulated GPUs on a node of a Slurm cluster, and the scripts of its slurmd."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import sentinel
from sentinel.client.client import Client
from sentinel.host.device_order import INFORMATION, information
from sentinel.host.paths import state_folder
from sentinel.host.simulation import Registry
from tests.harness.burnin_report import write_report
from tests.harness.daemon_harness import QUICK, daemon_environment
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import EXEC_SENTINEL, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster

SCRIPTS = ROOT / "deploy" / "slurm"
#: What a test needs in ``slurm.conf``; the scripts are written by :func:`install_scripts`.
HOOKS: Mapping[str, str] = {
    "Prolog": "{folder}/prolog",
    "Epilog": "{folder}/epilog",
    "PrologFlags": "Alloc",
}
#: On a busy host, a check may take longer than a second, and slurmd starts them side by side.
HEALTH_CHECKS = {"HealthCheckProgram": "{folder}/healthcheck", "HealthCheckInterval": "4"}


class NodeDaemon:
    """The daemon of one node.

    Args:
        cluster: The cluster.
        node: The name of the node.
        gpus: The number of its GPUs.
    """

    def __init__(self, cluster: SlurmCluster, node: str, gpus: int = 2) -> None:
        self.folder = cluster.folder / "gpus" / node
        self._cluster, self._node, self._gpus = cluster, node, gpus
        self._number = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which commands on the node find the daemon."""
        return daemon_environment(self.folder)

    def files(self) -> list[str]:
        """List the ids of the jobs of which the prolog has written a file."""
        folder = self._cluster.folder / "jobs" / self._node
        return [file.stem for file in folder.glob("*.job")]

    def run(self, *words: str) -> str:
        """Run a command of sentinel on the node; return its standard output."""
        full = (sys.executable, "-P", "-m", "sentinel", *words)
        return self._cluster.run_on(self._node, *full, environment=self.environment).stdout

    def start(self) -> Client:
        """Start the daemon; return its client once it occupies all GPUs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run("start", "--simulate", str(self._gpus), "--wait", "0", *QUICK)
        client = sentinel.connect(simulated=self.folder)
        eventually(lambda: all(gpu.occupied for gpu in client.status().gpus))
        return client

    @property
    def registry(self) -> Registry:
        """The simulated GPUs."""
        return Registry(self.folder)

    def uuid(self, index: int) -> str:
        """Look up the UUID of a GPU."""
        return self.registry.gpus()[index].uuid

    def used(self, index: int) -> int:
        """Read how much memory of a GPU is used, in bytes."""
        return self.registry.memory(self.uuid(index)).used

    def set_minors(self, minors: Sequence[int]) -> None:
        """Let the driver have found the GPUs in another order: the minor number by index."""
        for gpu, minor in zip(self.registry.gpus(), minors, strict=True):
            file = self.folder / gpu.uuid / INFORMATION
            file.write_text(information(gpu.pci_bus_id, minor))

    def write_verdict(self, index: int, verdict: str) -> None:
        """Write a report of one GPU that ends now; a daemon reads it at its start."""
        self._number += 1
        state = state_folder(self.environment, os.getuid(), self.folder)
        name, now = f"run-{self._number}", datetime.now(UTC)
        write_report(state, {self.uuid(index): verdict}, name=name, ended=now)


def install_scripts(cluster: SlurmCluster, **variables: str) -> None:
    """Write the prolog, the epilog and the health check of the nodes, and their settings.

    slurmd gives its programs no variables, so each is called by a script that sets some.

    Args:
        cluster: The cluster; all its nodes use the same files.
        variables: More lines of ``slurm.env``.
    """
    folder = cluster.folder
    command = folder / "sentinel"
    write_script(command, EXEC_SENTINEL)
    settings = {
        "SENTINEL": str(command),
        "SENTINEL_SLURM": f"{folder}/jobs/$SLURMD_NODENAME",
        "SENTINEL_SIM_DIR": f"{folder}/gpus/$SLURMD_NODENAME",
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **variables,
    }
    (folder / "slurm.env").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    for name in ("prolog", "epilog", "healthcheck"):
        lines = f"SENTINEL_SLURM_ENV={folder}/slurm.env\nexport SENTINEL_SLURM_ENV\n"
        # On a busy host, the checks of some seconds ago have not ended; one of each node is enough.
        alone = f"flock -n -E 0 {folder}/$SLURMD_NODENAME.check" if name == "healthcheck" else ""
        script = f"exec {alone} {SCRIPTS}/{name}.sh >>{folder}/log/{name} 2>&1"
        write_script(folder / name, lines + script)


def reservations(client: Client) -> list[tuple[str, tuple[int, ...]]]:
    """List the reasons and the GPUs of all reservations."""
    return [(reservation.reason, reservation.indices) for reservation in client.reservations()]
