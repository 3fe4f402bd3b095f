"""Slurm as the engine: one job for each node, bound to it, and so many at a time.

Why not one job array, which has a throttle: all tasks of an array have one list of nodes. Where
each is given its own by ``scontrol update``, Slurm still takes them for equal: its schedulers skip
every task of an array after the first that cannot begin, so that one node that is down or full
keeps all others waiting (seen with 22.05; ``reject_array_job`` in its two schedulers).
Why not one ``srun`` over all nodes: it is one step, whose launch breaks at some hundreds of nodes,
which waits for the slowest node to be free, and which ends as a whole. Why no dependencies: a job
that waits for a node that is down would keep others waiting, too.

So the jobs are submitted held. The first ones are released at once; each that ends releases as many
as may follow, by what the queue says, and a command that follows the run does the same. Nothing has
to run all the time, and a task that is killed costs at most its turn.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.fleet.engine import EngineError, NodeTask, TaskState, run_tool
from sentinel.fleet.run_folder import FleetFolder, FleetRun

#: The states of squeue(1) in which a job is over. One that has no other name here works: a state
#: of a later version must not be taken for an end.
_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
#: The states in which a job has not begun, or will begin again.
_WAITING = frozenset({"PENDING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
#: Why a job waits that was submitted held; an operator's hold has another reason.
_OWN_HOLD = "JobHeldUser"
#: Slurm gives this priority to every job that is held, whatever the reason (scontrol(1)).
_HELD_PRIORITY = "0"
#: Why a job of this run waits for ever, unless an operator changes the job, the partition or the
#: account: a limit that it is beyond, or something that is not there (job_reason_string in Slurm).
_HOPELESS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS"
    "|Partition(Down|Inactive|NodeLimit|TimeLimit)|QOSNotAllowed|QOSTimeLimit|ReservationDeleted"
    r"|(Assoc|QOS)Max\w*PerJob(Limit)?"
)
_FORMAT = "%i|%T|%Q|%r"
_MIN_JOB_AGE = re.compile(r"^MinJobAge\s*=\s*(\d+)", re.MULTILINE)
#: A longer time is not made use of, in seconds; 300 s is the default of Slurm.
_MAX_RECORD_S = 3600.0
#: A look and the controller's own clean-up take some seconds of the time above, in seconds.
_TOLERANCE_S = 30.0

#: The number of nodes that work at the same time, if the user names none: what soperator uses.
#: Azure's tests, which were one step, broke at about 300.
DEFAULT_BATCH = 200
#: The longest list of jobs for one command, in one argument of at most 128 KB.
_MAX_IDS = 1000
#: For more nodes, Slurm is asked about all that it has: an argument has 128 KB at most.
_MAX_NAMES = 500
#: The states of a node, without their flags, in which a task cannot begin there, as sinfo(1) has
#: them with ``%T``.
_UNAVAILABLE = (
    *("down", "drained", "draining", "drain", "error", "fail", "failing", "future", "inval"),
    *("maint", "perfctrs", "power_down", "powered_down", "powering_down", "reboot", "unknown"),
)
#: Flags of a state: not responding, in a reservation, rebooting, powered down.
_FLAGS = "*$@^!%~#+-"


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job as squeue lists it."""

    task: NodeTask
    #: Whether it has not ended.
    is_alive: bool


class JobList:
    """The jobs of a run from look to look.

    A controller that crashed may have forgotten what it accepted last. It keeps the record of a job
    that has ended for ``MinJobAge``; a job without a record that was there less than that ago has
    not ended, and is lost.
    """

    def __init__(self) -> None:
        #: When each job was last seen alive, by its id, in seconds of the wall clock.
        self._alive_at: dict[str, float] = {}
        self._lost: set[str] = set()
        #: The controller's MinJobAge in seconds, once it was asked.
        self._min_age_s: float | None = None

    def look(self, run: FleetRun) -> dict[str, NodeTask]:
        """Query the tasks of all nodes of a run, by node.

        The jobs are listed by their name, since an id that is forgotten is an error, and one that
        was given to another job is none of this run.

        Raises:
            EngineError: Slurm does not answer.
        """
        words = ("squeue", "--noheader", "--all", "--states=all", f"--name={run.id}")
        jobs = dict(parse_jobs(run_tool((*words, f"--format={_FORMAT}"))))
        now = time.time()
        for job, found in jobs.items():
            self._lost.discard(job)
            if found.is_alive:
                self._alive_at[job] = now
        return {node: self._task(run, run.tasks.get(node), jobs, now) for node in run.nodes}

    def _task(
        self, run: FleetRun, job: str | None, jobs: Mapping[str, SlurmJob], now: float
    ) -> NodeTask:
        """Find the task of a node; without a record, its job is over."""
        if job is None:
            return NodeTask(state=TaskState.OVER)
        if job in jobs:
            return jobs[job].task
        away_s = now - self._last_alive(run, job)
        # Most jobs without a record ended long ago: the controller need not be asked for them.
        if away_s < _MAX_RECORD_S and away_s < self._record_s():
            self._lost.add(job)
        text = (
            f"Slurm does not know job {job} any more (a restarted controller forgot it):"
            f" sentinel fleet resume {run.id}"
        )
        return NodeTask(state=TaskState.OVER, reason=text if job in self._lost else "")

    def _last_alive(self, run: FleetRun, job: str) -> float:
        """Return when a job was certainly there."""
        submitted = run.submitted.timestamp() if run.submitted is not None else 0.0
        # A task that is not of the last submission was alive then: otherwise, it had been replaced.
        return max(submitted, self._alive_at.get(job, 0.0))

    def _record_s(self) -> float:
        """Return how long the controller certainly keeps the record of a job after its end."""
        if self._min_age_s is None:
            try:
                found = _MIN_JOB_AGE.search(run_tool(("scontrol", "show", "config")))
            except EngineError:
                return 0.0
            self._min_age_s = float(found[1]) if found is not None else 0.0
        return self._min_age_s - _TOLERANCE_S


def parse_jobs(lines: str) -> Iterator[tuple[str, SlurmJob]]:
    """Parse what squeue prints: the id of a job, its state, its priority and why it waits."""
    for line in lines.splitlines():
        job, state, priority, reason = [*line.split("|", 3), "", "", ""][:4]
        if state in _ENDED:
            task = NodeTask(state=TaskState.OVER, reason=f"job {job} has ended: {state}")
        elif state in _WAITING:
            task = _waiting(job, priority, reason)
        else:
            task = NodeTask(state=TaskState.RUNNING)
        yield job, SlurmJob(task=task, is_alive=task.state is not TaskState.OVER)


def _waiting(job: str, priority: str, reason: str) -> NodeTask:
    """Describe a job that waits: for its turn, for what it needs, or for an operator."""
    if priority != _HELD_PRIORITY and _HOPELESS.fullmatch(reason):
        return NodeTask(state=TaskState.WAITING, hold=f"{reason}; see: scontrol show job {job}")
    if priority != _HELD_PRIORITY:
        return NodeTask(state=TaskState.WAITING, reason="" if reason == "None" else reason)
    if reason == _OWN_HOLD:
        return NodeTask(state=TaskState.WAITING, awaits_turn=True)
    hold = f"held: {reason}; release it: scontrol release {job}"
    return NodeTask(state=TaskState.WAITING, hold=hold)


class Slurm:
    """Runs a fleet by Slurm; what :class:`~sentinel.fleet.engine.Engine` describes.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: FleetFolder) -> None:
        self._folder = folder
        self._jobs = JobList()

    def submit(self, run: FleetRun, folder: FleetFolder, nodes: Sequence[str]) -> FleetRun:
        """Submit a held job for each node, and release the first ones."""
        tasks: dict[str, str] = {}
        # Those of an earlier submission that still work: the batch is of the run, not of a command.
        active = len(_active(self._jobs.look(run))) if run.tasks else 0
        try:
            for node in nodes:
                tasks[node] = _submit_held(run, folder, node)
            jobs = (*run.jobs, *tasks.values())
            now = datetime.now().astimezone().replace(microsecond=0)
            submitted = replace(run, jobs=jobs, tasks={**run.tasks, **tasks}, submitted=now)
            folder.write(submitted)
            _release(list(tasks.values())[: max(0, run.batch - active)])
        except BaseException:  # also Ctrl+C: nothing of a run that has no file may remain
            for ids in _pieces(list(tasks.values())):
                run_tool(("scancel", "--quiet", *ids))
            if not run.tasks:
                folder.run_file.unlink(missing_ok=True)
            elif tasks:
                folder.write(run)
            raise
        return submitted

    def tasks(self, run: FleetRun) -> Mapping[str, NodeTask]:
        """Query the jobs, and the nodes of those that wait."""
        found = self._jobs.look(run)
        waiting = [node for node, task in found.items() if task.state is TaskState.WAITING]
        missing = unavailable(waiting) if waiting else frozenset()
        return {
            node: replace(task, node_unavailable=node in missing) for node, task in found.items()
        }

    def advance(self, run: FleetRun, ending: str | None = None) -> None:
        """Release as many held jobs as may work beside those that are released already.

        Two at the same time release the same jobs, so that fewer work for a while, never more. The
        jobs of a folder that has not begun them are left alone.
        """
        if not self._folder.has_run(run):
            return
        found = self._jobs.look(run)
        held = [node for node, task in found.items() if task.awaits_turn]
        active = _active(found) - {ending}
        _release([run.tasks[node] for node in held[: max(0, run.batch - len(active))]])

    def cancel(self, run: FleetRun) -> None:
        """Cancel the jobs of the run; those that are over are no error for scancel.

        Raises:
            EngineError: Slurm does not answer, or the folder has not begun these jobs.
        """
        if not self._folder.has_run(run):
            named = run.command[-1] if run.command else "no folder"
            what = (
                f"{self._folder.run_file} names jobs that were not begun with this folder"
                f" ({run.id} is of {named}); they are left alone"
            )
            remedy = "Name that folder. If it was moved or is elsewhere on this host, link it there"
            raise EngineError(what, f"{remedy}, or end its jobs: scancel --name={run.id}")
        run_tool(("scancel", "--quiet", f"--name={run.id}"))


def _submit_held(run: FleetRun, folder: FleetFolder, node: str) -> str:
    """Submit the job of one node; return its id.

    It takes one processor and no GPU: it runs beside jobs, and the burn-in yields to them.
    """
    logs = str(folder.logs).replace("%", "%%")  # sbatch replaces what follows a %, such as %j
    given = run_tool(
        (
            *("sbatch", "--parsable", "--hold", "--requeue", "--oversubscribe"),
            *("--nodes=1", "--ntasks=1", "--cpus-per-task=1"),
            *(f"--output={logs}/{node}.txt", "--open-mode=append"),
            *run.options,
            # Last, since of two options sbatch takes the later: the run is found by these.
            *(f"--nodelist={node}", f"--job-name={run.id}"),
        ),
        f"#!/bin/sh\nexec {shlex.join(run.command)}\n",
    )
    job, _, _ = given.strip().partition(";")  # with several clusters, the cluster follows
    if not job.isdecimal():
        raise EngineError(f"sbatch printed {given.strip()!r} instead of a job's id")
    return job


def choose_nodes(partition: str | None, count: int | None, nodelist: str | None) -> tuple[str, ...]:
    """Choose the nodes of a run.

    Those that are down are left out only where a number is given. Where nodes or a partition are
    named, a report is expected from each of them.

    Args:
        partition: The partition, or None for the default one.
        count: How many, or None for all; those that are idle come first.
        nodelist: Slurm's list of names, such as ``node[1-16]``, or None.

    Raises:
        EngineError: Slurm does not know them, or there are too few.
    """
    if nodelist is not None:
        names = run_tool(("scontrol", "show", "hostnames", nodelist)).split()
        known = _states(partition="", nodes=names)
        missing = [name for name in names if name not in known]
        if missing:
            what = f"--nodelist: Slurm has no node {missing[0]}"
            raise EngineError(what, "`sinfo --Node --all` lists the nodes.")
        return tuple(names)
    states = _states(partition=partition or _default_partition(), nodes=())
    if not states:
        what = f"--partition: Slurm has no partition {partition}, or it has no nodes"
        raise EngineError(what, "`sinfo --summarize` lists the partitions.")
    if count is None:
        return tuple(states)
    usable = [node for node, state in states.items() if not _is_unavailable(state)]
    if len(usable) < count:
        what = f"--nodes {count}: {len(usable)} of {len(states)} nodes can be used"
        raise EngineError(what, "sinfo --Node --long shows why the others cannot.")
    return tuple(sorted(usable, key=lambda node: not states[node].startswith("idle"))[:count])


def unavailable(nodes: Sequence[str]) -> frozenset[str]:
    """Select the nodes on which no task can begin at the moment.

    Raises:
        EngineError: Slurm does not answer.
    """
    states = _states(partition="", nodes=nodes)
    return frozenset(node for node in nodes if _is_unavailable(states.get(node, "unknown")))


def _active(found: Mapping[str, NodeTask]) -> set[str]:
    """Select the nodes whose task works, or begins as soon as its node is free."""
    return {
        node
        for node, task in found.items()
        if task.state is not TaskState.OVER and not task.awaits_turn
    }


def _release(jobs: Sequence[str]) -> None:
    """Release held jobs."""
    for ids in _pieces(jobs):
        run_tool(("scontrol", "release", ",".join(ids)))


def _pieces(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split a list of jobs for several commands."""
    for first in range(0, len(ids), _MAX_IDS):
        yield ids[first : first + _MAX_IDS]


def _states(*, partition: str, nodes: Sequence[str]) -> dict[str, str]:
    """Query the states of nodes by name, in Slurm's order."""
    chosen = [f"--partition={partition}"] if partition else ["--all"]
    if nodes and len(nodes) <= _MAX_NAMES:
        chosen.append(f"--nodes={','.join(nodes)}")
    lines = run_tool(("sinfo", "--noheader", "--Node", "--format=%N|%T", *chosen)).splitlines()
    found = dict(line.split("|", 1) for line in lines if "|" in line)
    return {node: found[node] for node in nodes if node in found} if nodes else found


def _is_unavailable(state: str) -> bool:
    """Check whether a task cannot begin on a node; ``*`` is a node that does not respond."""
    return "*" in state or state.rstrip(_FLAGS).lower() in _UNAVAILABLE


def _default_partition() -> str:
    """Find the default partition, which sinfo marks with an asterisk.

    Raises:
        EngineError: There is none.
    """
    for name in run_tool(("sinfo", "--noheader", "--format=%P")).split():
        if name.endswith("*"):
            return name[:-1]
    raise EngineError("Slurm has no default partition", "Give --partition or --nodelist.")
