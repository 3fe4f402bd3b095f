"""Slurm's health check: it always exits with 0, and drains a node for its own reasons alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness.node_daemon import NodeDaemon, install_scripts
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm, slurm_cluster

pytestmark = [pytest.mark.long, needs_slurm, pytest.mark.usefixtures("fake_torch")]

#: On a busy host, a check may take longer than a second, and slurmd starts them side by side.
SETTINGS = {"HealthCheckProgram": "{folder}/healthcheck", "HealthCheckInterval": "4"}


@pytest.fixture
def cluster(fake_torch: None) -> Iterator[SlurmCluster]:
    with slurm_cluster(settings=SETTINGS) as cluster:
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


def test_nothing_is_drained_unless_it_is_configured(cluster: SlurmCluster) -> None:
    install_scripts(cluster)
    node = NodeDaemon(cluster, "node1")
    node.start()
    restart_with(node, "FAIL")
    before = len(lines(cluster))
    wait_for_line(cluster, "gpu-sentry: failed burn-in standard on GPU 0", after=before)
    assert cluster.state("node1") == "idle"


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
        assert last_line() == "gpu-sentry: no fault on 2 GPUs"
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
