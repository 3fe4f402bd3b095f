"""Slurm as the engine: one job array with a task for each node, each pinned to its node.

Why an array whose tasks are pinned afterwards: an array has one list of nodes for all its tasks, so
Slurm may run two of them on one node and none on another. One ``srun`` over all nodes is no
alternative: it is one step, whose launch breaks at some hundreds of nodes, which waits for the
slowest node to be free, and which ends as a whole. One ``sbatch`` for each node cannot be limited
to so many at a time. A held array can: the throttle ``%200`` belongs to the array, and
``scontrol update`` gives each waiting task the node that it needs, which a requeued task keeps.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.fleet.engine import EngineError, Task, TaskState, run_tool
from sentinel.fleet.run_file import FleetFolder, FleetRun

#: The number of nodes that work at the same time, if the user names none: what soperator uses. In
#: one step, Azure's tests broke at about 300.
DEFAULT_BATCH = 200
#: The indices of an array are below MaxArraySize; this is Slurm's default.
_MAX_ARRAY = 1001
#: The states of a node, without their flags, in which a task cannot begin there, as sinfo(1) has
#: them with ``%T``.
_UNAVAILABLE = (
    *("down", "drained", "draining", "drain", "error", "fail", "failing", "future", "inval"),
    *("maint", "perfctrs", "power_down", "powered_down", "powering_down", "reboot", "unknown"),
)
#: Flags of a state: not responding, in a reservation, rebooting, powered down.
_FLAGS = "*$@^!%~#+-"


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Runs a fleet by Slurm; what :class:`~sentinel.fleet.engine.Engine` describes."""

    partition: str | None = None
    batch: int = DEFAULT_BATCH
    #: More options of sbatch, such as ``--account=ops``.
    options: tuple[str, ...] = ()

    def submit(self, run: FleetRun, folder: FleetFolder, words: Sequence[str]) -> FleetRun:
        """Submit the arrays held, pin each task to its node, and release them."""
        arrays = list(split(run.nodes, _max_array() - 1))
        # Together, the arrays of a run work on at most `batch` nodes at a time.
        throttle = max(1, self.batch // len(arrays))
        jobs: list[str] = []
        tasks: dict[str, str] = {}
        try:
            for nodes in arrays:
                job = self._submit_held(run, folder, words, len(nodes), throttle)
                jobs.append(job)
                tasks |= {node: f"{job}_{index}" for index, node in enumerate(nodes)}
            submitted = replace(run, jobs=tuple(jobs), tasks=tasks)
            _pin(submitted)
            folder.write(submitted)
            run_tool(("scontrol", "release", ",".join(jobs)))
        except BaseException:  # also Ctrl+C: nothing of a run that has no file may remain
            if jobs:
                run_tool(("scancel", *jobs))
            raise
        return submitted

    def _submit_held(
        self, run: FleetRun, folder: FleetFolder, words: Sequence[str], count: int, throttle: int
    ) -> str:
        """Submit one array that waits; return its id.

        A task takes one processor and no GPU: it runs beside jobs, and the burn-in yields to them.
        """
        partition = () if self.partition is None else (f"--partition={self.partition}",)
        script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
        given = run_tool(
            (
                *("sbatch", "--parsable", "--hold", "--requeue", "--oversubscribe"),
                *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--job-name={run.id}"),
                f"--array=0-{count - 1}%{throttle}",
                # %N is the node, so that all that was said there is in one file.
                *(f"--output={folder.logs}/%N.txt", "--open-mode=append"),
                *partition,
                *self.options,
            ),
            script,
        )
        job, _, _ = given.strip().partition(";")  # with several clusters, the cluster follows
        if not job.isdecimal():
            raise EngineError(f"sbatch printed {given.strip()!r} instead of a job's id")
        return job

    def tasks(self, run: FleetRun) -> Mapping[str, Task]:
        """Query the tasks by the name of the job: an id that Slurm has forgotten is an error."""
        lines = run_tool(
            ("squeue", "--noheader", "--array", f"--name={run.id}", "--format=%i|%t|%r")
        )
        found = dict(_parse_tasks(lines))
        waiting = [
            node for node, task in run.tasks.items() if _state(found, task) is TaskState.WAITING
        ]
        missing = unavailable(waiting) if waiting else frozenset()
        return {
            node: replace(
                found.get(run.tasks.get(node, ""), Task(state=TaskState.OVER)),
                node_unavailable=node in missing,
            )
            for node in run.nodes
        }

    def cancel(self, run: FleetRun, nodes: Sequence[str] = ()) -> None:
        """Cancel tasks, or the arrays; those that are over are no error for scancel."""
        ids = [run.tasks[node] for node in nodes] if nodes else list(run.jobs)
        if ids:
            run_tool(("scancel", "--quiet", *ids))


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
            raise EngineError(f"--nodelist: Slurm has no node {missing[0]}")
        return tuple(names)
    states = _states(partition=partition or _default_partition(), nodes=())
    if not states:
        raise EngineError(f"--partition: Slurm has no partition {partition}, or it has no nodes")
    if count is None:
        return tuple(states)
    usable = [node for node, state in states.items() if not _is_unavailable(state)]
    if len(usable) < count:
        what = f"--nodes {count}: {len(usable)} of {len(states)} nodes can be used"
        raise EngineError(what, "sinfo --Node --long shows why the others cannot.")
    return tuple(sorted(usable, key=lambda node: _order(states[node]))[:count])


def unavailable(nodes: Sequence[str]) -> frozenset[str]:
    """Select the nodes on which no task can begin at the moment.

    Raises:
        EngineError: Slurm does not answer.
    """
    states = _states(partition="", nodes=nodes)
    return frozenset(node for node in nodes if _is_unavailable(states.get(node, "unknown")))


def split(nodes: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    """Split nodes into lists of at most ``most``, of almost equal length."""
    arrays = -(-len(nodes) // most)
    for number in range(arrays):
        first, last = number * len(nodes) // arrays, (number + 1) * len(nodes) // arrays
        yield tuple(nodes[first:last])


def _pin(run: FleetRun) -> None:
    """Give each task its node, and check that each has it: scontrol exits with 0 either way."""
    lines = [f"update JobId={task} ReqNodeList={node}" for node, task in run.tasks.items()]
    run_tool(("scontrol", "--quiet"), "\n".join([*lines, "quit", ""]))
    listed = run_tool(
        ("squeue", "--noheader", "--array", f"--name={run.id}", "--format=%i|%n")
    ).splitlines()
    pinned = dict(line.split("|", 1) for line in listed if "|" in line)
    for node, task in run.tasks.items():
        if pinned.get(task) != node:
            what = f"task {task} could not be given node {node}"
            raise EngineError(what, "Is the node in this partition? See: sinfo --Node")


def _parse_tasks(lines: str) -> Iterator[tuple[str, Task]]:
    """Parse what squeue prints: the id of a task, its state and why it waits."""
    for line in lines.splitlines():
        task, state, reason = [*line.split("|", 2), "", ""][:3]
        waits = state == "PD"
        yield (
            task,
            Task(
                state=TaskState.WAITING if waits else TaskState.RUNNING,
                reason=reason if waits and reason != "None" else "",
            ),
        )


def _state(found: Mapping[str, Task], task: str) -> TaskState:
    """Look up the state of a task."""
    return found[task].state if task in found else TaskState.OVER


def _states(*, partition: str, nodes: Sequence[str]) -> dict[str, str]:
    """Query the states of nodes by name, in Slurm's order."""
    chosen = [f"--partition={partition}"] if partition else ["--all"]
    chosen += [f"--nodes={','.join(nodes)}"] if nodes else []
    lines = run_tool(("sinfo", "--noheader", "--Node", "--format=%N|%T", *chosen)).splitlines()
    return dict(line.split("|", 1) for line in lines if "|" in line)


def _is_unavailable(state: str) -> bool:
    """Check whether a task cannot begin on a node; ``*`` is a node that does not respond."""
    return "*" in state or state.rstrip(_FLAGS).lower() in _UNAVAILABLE


def _order(state: str) -> int:
    """Sort key of nodes that can be used: the idle ones first."""
    return 0 if state.startswith("idle") else 1


def _default_partition() -> str:
    """Find the default partition, which sinfo marks with an asterisk.

    Raises:
        EngineError: There is none.
    """
    for name in run_tool(("sinfo", "--noheader", "--format=%P")).split():
        if name.endswith("*"):
            return name[:-1]
    raise EngineError("Slurm has no default partition", "Give --partition or --nodelist.")


def _max_array() -> int:
    """Read MaxArraySize; an array has one task less at most."""
    for line in run_tool(("scontrol", "show", "config")).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdecimal():
            return max(2, int(value))
    return _MAX_ARRAY
