"""What Slurm knows of the jobs of a run: they wait, are held, work, have ended or are lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sentinel.fleet.engine import EngineError, Task, TaskState, run_tool
from sentinel.fleet.records.run_file import FleetRun

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
_FORMAT = "%i|%T|%Q|%r"
_MIN_JOB_AGE = re.compile(r"^MinJobAge\s*=\s*(\d+)", re.MULTILINE)
#: A longer time is not made use of, in seconds; 300 s is the default of Slurm.
_MAX_RECORD_S = 3600.0
#: A look and the controller's own clean-up take some seconds of the time above, in seconds.
_TOLERANCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as squeue lists it."""

    task: Task
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

    def look(self, run: FleetRun) -> dict[str, Task]:
        """Query the tasks of all nodes of a run, by node.

        The jobs are listed by their name, since an id that is forgotten is an error, and one that
        was given to another job is none of this run.

        Raises:
            EngineError: Slurm does not answer.
        """
        words = ("squeue", "--noheader", "--all", "--states=all", f"--name={run.id}")
        jobs = dict(parse_jobs(run_tool((*words, f"--format={_FORMAT}"))))
        now = time.time()
        for job, one in jobs.items():
            self._lost.discard(job)
            if one.is_alive:
                self._alive_at[job] = now
        return {node: self._task(run, run.tasks.get(node), jobs, now) for node in run.nodes}

    def _task(self, run: FleetRun, job: str | None, jobs: Mapping[str, Job], now: float) -> Task:
        """Find the task of a node; without a record, its job is over."""
        if job is None:
            return Task(state=TaskState.OVER)
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
        return Task(state=TaskState.OVER, reason=text if job in self._lost else "")

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


def parse_jobs(lines: str) -> Iterator[tuple[str, Job]]:
    """Parse what squeue prints: the id of a job, its state, its priority and why it waits."""
    for line in lines.splitlines():
        job, state, priority, reason = [*line.split("|", 3), "", "", ""][:4]
        if state in _ENDED:
            task = Task(state=TaskState.OVER, reason=f"job {job} has ended: {state}")
        elif state in _WAITING:
            task = _waiting(job, priority, reason)
        else:
            task = Task(state=TaskState.RUNNING)
        yield job, Job(task=task, is_alive=task.state is not TaskState.OVER)


def _waiting(job: str, priority: str, reason: str) -> Task:
    """Describe a job that waits: for its turn, for what it needs, or for an operator."""
    if priority != _HELD_PRIORITY:
        return Task(state=TaskState.WAITING, reason="" if reason == "None" else reason)
    if reason == _OWN_HOLD:
        return Task(state=TaskState.WAITING, awaits_turn=True)
    hold = f"{reason}; release it: scontrol release {job}"
    return Task(state=TaskState.WAITING, hold=hold)
