"""A day of a Slurm of 16 nodes in some minutes, recorded: what each node does, and how jobs start.

A part of the nodes has a daemon, idle burn-ins run on others, and the rest has no Sentinel at all,
not even the prolog. Jobs that begin there at the same time show what Sentinel adds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sentinel.client import Client
from sentinel.errors import SentinelError
from tests.harness.burnin_run import CHECKED, plan_of
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.node_daemon import (
    HOOKS,
    SCRIPTS,
    NodeDaemon,
    install_scripts,
    reservations,
)
from tests.harness.programs import EXEC_SENTINEL, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.slurm_cluster import SlurmCluster
from tests.harness.timing import TIMEOUT_S

NODES = tuple(f"node{number}" for number in range(1, 17))
WITH_DAEMON, BURNED_IN, PLAIN = NODES[:6], NODES[6:10], NODES[10:]
#: Of the cluster; as slurm.conf.example has them.
OPTIONS: dict[str, Any] = {
    "nodes": len(NODES),
    "gpus": 1,
    "settings": {
        **HOOKS,
        "HealthCheckProgram": "{folder}/healthcheck",
        "HealthCheckInterval": "20",
        "HealthCheckNodeState": "ANY,CYCLE",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    },
    "partitions": (
        "main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF",
        "idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=30",
    ),
}
_CREATE = (
    "import pathlib, sys, sentinel.host.simulation as s;"
    " s.Registry.create(pathlib.Path(sys.argv[1]), 1)"
)
#: A job that says when it starts, and whether it gets most of the memory of its GPU at once.
_JOB = f"{sys.executable} -P -m sentinel demo job --json --memory 97% --gpus 0 --for"
_PLAN = plan_of("endless", ("endless", CHECKED, "seconds = 6000"))

Record = dict[str, Any]


class Job:
    """A job that ``srun`` has started on a node; it holds its GPU for some seconds."""

    def __init__(self, cluster: SlurmCluster, node: NodeDaemon, name: str, seconds: int) -> None:
        self.node, self._output = name, ""
        self._file = node.folder / "job"
        self._file.unlink(missing_ok=True)
        self._submitted = time.time()
        self._process = cluster.start(
            *("srun", f"--nodelist={name}", "--gres=gpu:1"),
            *("sh", "-c", f"date +%s.%N >{self._file}; {_JOB} {seconds}s >>{self._file}"),
            environment=node.environment,
        )

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self._process.poll() is not None

    def started(self) -> bool:
        """Whether the job has started: its prolog, if there is one, has ended."""
        return self._file.exists() and bool(self._file.read_text())

    def got(self) -> bool:
        """Whether the job has got its memory."""
        return self._file.exists() and '"job.got"' in self._file.read_text()

    def result(self) -> Record:
        """Describe the job at its end: how long its start took, and whether it got its memory."""
        started = float(self._file.read_text().splitlines()[0])
        wait_s = round(started - self._submitted, 3)
        code = self._process.wait(TIMEOUT_S)
        return {"node": self.node, "wait_s": wait_s, "got": self.got(), "code": code}


class Day:
    """The nodes of a day, and the record of what they do.

    Args:
        cluster: A cluster with :data:`OPTIONS`.
        folder: A folder for the files of the jobs.
    """

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self.nodes = {name: NodeDaemon(cluster, name, gpus=1) for name in NODES}
        self.clients: dict[str, Client] = {}
        #: The changes of state of the nodes and of the controller.
        self.record: list[Record] = []
        self.jobs: list[Record] = []
        self._gone: set[str] = set()
        self._states: dict[str, str] = {}
        self._began = time.time()

    def begin(self) -> None:
        """Start the daemons and the burn-ins; return once all of them hold their GPU."""
        self._install()
        for name in WITH_DAEMON:
            self.clients[name] = self.nodes[name].start()
        for name in (*BURNED_IN, *PLAIN):
            node = self.nodes[name]
            node.folder.mkdir(parents=True)
            self.cluster.run_on(
                name,
                *(sys.executable, "-P", "-c", _CREATE, node.folder),
                environment=node.environment,
            )
        self._began = time.time()
        for name in BURNED_IN:
            self._submit_burn_in(name)
        self.wait(lambda: all(self.holds(name) for name in (*WITH_DAEMON, *BURNED_IN)))

    def _install(self) -> None:
        """Write the scripts; nodes without a daemon have none."""
        install_scripts(self.cluster)
        folder = self.cluster.folder
        (folder / "slurm.env").write_text(
            f"{(folder / 'slurm.env').read_text()}SENTINEL_DRAIN=yes\n"
        )
        for name in ("prolog", "epilog", "healthcheck"):
            text = (folder / name).read_text().replace("#!/bin/sh\n", "").replace("exec ", "")
            without = "|".join((*BURNED_IN, *PLAIN))
            times = f"$SLURMD_NODENAME $begin $(date +%s.%N) >>{folder}/times.{name}"
            write_script(
                folder / name,
                f"case $SLURMD_NODENAME in {without}) exit 0;; esac\nbegin=$(date +%s.%N)\n"
                f"{text}code=$?\necho {times}\nexit $code",
            )

    def _submit_burn_in(self, name: str) -> None:
        plan = self._folder / "plan.toml"
        plan.write_text(_PLAN)
        paths = [str(TESTS), str(ROOT), os.environ["PYTHONPATH"]]
        environment = {
            **self.nodes[name].environment,
            "SENTINEL": str(write_script(self._folder / "sentinel", EXEC_SENTINEL)),
            "XDG_STATE_HOME": str(self._folder / f"state-{name}"),
            "PYTHONPATH": os.pathsep.join(paths),
            "BURNIN_RUNS": str(self._folder / "runs"),
            "BURNIN_OPTIONS": "--simulate 1",
        }
        words = (f"--nodelist={name}", "--gres=gpu:1", f"--output={self._folder}/{name}.output")
        script = SCRIPTS / "idle-burnin.sh"
        self.cluster.run("sbatch", *words, script, "--plan", plan, environment=environment)

    # --- what happens ---------------------------------------------------------------------------

    def start(self, names: Sequence[str], seconds: int) -> list[Job]:
        """Start a job on each of these nodes, one after another, which a few cores can do.

        Only then is the state of the nodes looked at, which takes longer than a prolog.
        """
        jobs = []
        for name in names:
            job = Job(self.cluster, self.nodes[name], name, seconds)
            eventually(job.started)
            jobs.append(job)
            self._look()
        return jobs

    def finish(self, jobs: Sequence[Job], kind: str) -> None:
        """Wait for the end of jobs, and until their GPUs are held again."""
        self.wait(lambda: all(job.ended for job in jobs))
        self.jobs += [{"kind": kind, **job.result()} for job in jobs]
        with_daemon = [job.node for job in jobs if job.node in self.clients]
        self.wait(lambda: not any(reservations(self.clients[name]) for name in with_daemon))

    def acknowledge(self, name: str) -> None:
        """Acknowledge, on a node, that the fault of its GPU was confirmed."""
        words = ("health", "--simulated", "--acknowledge=0", "--outcome=confirmed", "--reason=test")
        command = self.cluster.folder / "sentinel"
        self.cluster.run_on(name, command, *words, environment=self.nodes[name].environment)

    def lose(self, name: str) -> None:
        """Cut the power of a node; return once Slurm sees it."""
        self._gone.add(name)
        self.cluster.kill(name)
        self.wait(lambda: "down" in self.cluster.state(name))

    def restore(self, name: str) -> None:
        """Boot a node that was lost; return once its GPU is held."""
        self.cluster.boot(name)
        self.clients[name] = self.nodes[name].start()
        self._gone.discard(name)
        self.wait(lambda: self.cluster.state(name) == "idle" and self.holds(name))

    def lose_controller(self, until: Callable[[], object]) -> None:
        """Kill the controller once it has saved its jobs; start it again when a condition holds."""
        self.cluster.save_jobs()
        self.cluster.stop_controller(signal.SIGKILL)
        self._change("controller", "lost")
        self.wait(until)
        self.cluster.start_controller()
        self._change("controller", "runs")

    # --- what is seen ---------------------------------------------------------------------------

    def holds(self, name: str) -> bool:
        """Whether a stressor or a burn-in is on the GPU of a node."""
        return self._states.get(name) in {"stressor", "burn-in"}

    def verdict(self, name: str) -> str | None:
        """Query the verdict of the last burn-in that the daemon of a node knows."""
        last = self.clients[name].status().gpus[0].verdict
        return None if last is None else last.verdict

    def drained(self) -> set[str]:
        """Collect the nodes that were ever drained so far."""
        return {change["node"] for change in self.record if change["state"] == "drained"}

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, and record the states of the nodes meanwhile."""

        def look() -> object:
            self._look()
            return condition()

        eventually(look)

    def _look(self) -> None:
        """Record the changes since the last look; without a controller, those of the daemons."""
        words = ("squeue", "--noheader", "--states=R,CG", "--format=%N %P")
        jobs = self.cluster.run(*words, check=False)
        answers = jobs.returncode == 0
        partitions = dict(line.split() for line in jobs.stdout.splitlines() if " " in line)
        listing = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        nodes = self.cluster.run(*listing, check=False).stdout if answers else ""
        slurm = dict(line.split() for line in nodes.splitlines())
        for name in NODES:
            if name in self._gone or "down" in slurm.get(name, ""):
                state = "lost"
            elif "drain" in slurm.get(name, ""):
                state = "drained"
            elif name in partitions:
                state = "job" if partitions[name] == "main" else "burn-in"
            elif not answers and self._states.get(name) in {"job", "burn-in", "drained"}:
                continue
            else:
                state = "stressor" if self._occupied(name) else "free"
            self._change(name, state)

    def _occupied(self, name: str) -> bool:
        try:
            return name in self.clients and self.clients[name].status().gpus[0].occupied
        except (SentinelError, IndexError):
            return False

    def _change(self, name: str, state: str) -> None:
        if self._states.get(name) != state:
            self._states[name] = state
            after_s = round(time.time() - self._began, 2)
            self.record.append({"kind": "state", "s": after_s, "node": name, "state": state})

    def hooks(self, name: str) -> list[Record]:
        """Read how long each prolog, epilog or health check took."""
        file = self.cluster.folder / f"times.{name}"
        found = []
        for line in file.read_text().splitlines() if file.exists() else ():
            node, begin, end = line.split()
            took_s = round(float(end) - float(begin), 3)
            found.append({"kind": name, "node": node, "took_s": took_s})
        return found
