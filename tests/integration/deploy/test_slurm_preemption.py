"""The job of deploy/slurm that burns idle GPUs in: a real pre-emption, and the run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.harness.burnin_run import CHECKED, plan_of
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.node_daemon import SCRIPTS
from tests.harness.programs import EXEC_SENTINEL, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import needs_slurm, slurm_cluster

#: A second of checked work, and more than the test waits for.
PLAN = plan_of("short", ("short", CHECKED, "seconds = 1"), ("endless", CHECKED, "seconds = 6000"))
#: As slurm.conf.example has them, with a shorter GraceTime.
PARTITIONS = (
    "main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF",
    "idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
)
SETTINGS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}


def test_the_example_has_the_lines_that_are_tested() -> None:
    example = (SCRIPTS / "slurm.conf.example").read_text().replace("GraceTime=30", "GraceTime=20")
    for line in (*(f"PartitionName={one}" for one in PARTITIONS), "PreemptMode=REQUEUE"):
        assert f"\n{line}\n" in example


@pytest.mark.long
@needs_slurm
@pytest.mark.usefixtures("fake_torch")
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

    with slurm_cluster(settings=SETTINGS, partitions=PARTITIONS) as cluster:
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
