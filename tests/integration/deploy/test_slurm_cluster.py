"""The Slurm of the tests: nodes of their own, clusters side by side, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.slurm_cluster import needs_slurm, slurm_cluster

pytestmark = [pytest.mark.long, needs_slurm]


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
