"""Follow a fleet run: read what its nodes have written, and ask its engine what is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from sentinel.burnin.verdict import Verdict
from sentinel.errors import ConfigError
from sentinel.fleet.engine import (
    Clush,
    Engine,
    EngineError,
    EngineMissingError,
    NodeTask,
    TaskState,
)
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.progress import NodeProgress, read_progress
from sentinel.fleet.run_folder import FleetFolder, FleetRun
from sentinel.fleet.slurm_engine import Slurm
from sentinel.units import format_count, format_duration

#: So many nodes are named in a line about many.
_MAX_NAMES = 3

#: Unknown is never over.
_UNKNOWN = NodeTask(state=TaskState.UNKNOWN)

#: The columns of a table of nodes.
NODE_HEADER = ("NODE", "STATE", "PHASE", "LEFT", "TEMP", "FINDINGS", "NOTE")
#: The right-aligned ones.
NODE_RIGHT = (3, 4, 5)

#: The shortest pause between two looks at a run, in seconds.
MIN_PAUSE_S = 2.0
#: A look takes at most this share of the time, so that the controller of a large cluster is not
#: kept busy by those who only watch.
_MAX_SHARE = 0.05
ENGINES = ("slurm", "clush")
T = TypeVar("T")


class NodeState(StrEnum):
    """What is known of a node's part of a run."""

    #: Its task waits: for its turn, for the node, or after it was requeued.
    WAITING = "waiting"
    #: Its task runs.
    RUNNING = "running"
    #: There is a report, and its task is over or would not change that.
    DONE = "done"
    #: Its task is over, and there is no report.
    MISSING = "missing"
    #: The engine does not answer, and there is no report yet.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node of a run."""

    node: str
    task: NodeTask
    #: The verdict of its report, or None. INCOMPLETE is not final while the task waits or runs: a
    #: task that was requeued goes on.
    verdict: Verdict | None = None
    #: What it has written last, or None.
    progress: NodeProgress | None = None

    @property
    def state(self) -> NodeState:
        """What is known of its part of the run."""
        if self.task.state is TaskState.OVER:
            return NodeState.MISSING if self.verdict is None else NodeState.DONE
        if self._has_final_report and self.task.state is not TaskState.UNKNOWN:
            return NodeState.DONE
        return NodeState(self.task.state.value)

    @property
    def _has_final_report(self) -> bool:
        """Whether the node has ended with a verdict that a requeued task would not change.

        Slurm may hold such a task for long, such as of a node that was lost afterwards.
        """
        ended = self.progress is not None and self.progress.state == "ended"
        return ended and self.verdict not in {None, Verdict.INCOMPLETE}

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from it."""
        return self.state in {NodeState.DONE, NodeState.MISSING}

    @property
    def is_stuck(self) -> bool:
        """Whether its task cannot begin until the node is up or an operator acts."""
        return bool(self.why_stuck)

    @property
    def why_stuck(self) -> str:
        """Why its task cannot begin; empty if it can."""
        if self.task.state is not TaskState.WAITING:
            return ""
        down = "the node is down or drained" if self.task.node_unavailable else ""
        return self.task.hold or down

    @property
    def findings(self) -> int:
        """How many wrong results it has proved so far."""
        return self.progress.findings if self.progress is not None else 0

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Sort key: what needs attention first, then what is hot."""
        heat = self.progress.temperature_c if self.progress is not None else None
        if self.findings or self.verdict is Verdict.FAIL:
            first = 0
        elif self.state is NodeState.MISSING or self.is_stuck:
            first = 1
        elif self.is_over and self.verdict is Verdict.INCOMPLETE:
            first = 2
        elif self.state is NodeState.UNKNOWN:
            first = 3
        elif self.state is NodeState.RUNNING:
            first = 4
        else:
            first = 5 if self.state is NodeState.WAITING else 6
        return first, -(heat or 0.0), self.node


def merge(
    nodes: Sequence[str],
    tasks: Mapping[str, NodeTask] | None,
    progress: Mapping[str, NodeProgress],
    verdicts: Mapping[str, Verdict],
) -> tuple[NodeStatus, ...]:
    """Merge what is known of each node.

    Args:
        nodes: All nodes of the run.
        tasks: What the engine says, by node; None if it does not answer.
        progress: What the nodes have written, by node.
        verdicts: The verdicts of the reports that are there, by node.
    """
    return tuple(
        NodeStatus(
            node=node,
            task=_UNKNOWN if tasks is None else tasks[node],
            verdict=verdicts.get(node),
            progress=progress.get(node),
        )
        for node in nodes
    )


def is_stalled(statuses: Iterable[NodeStatus]) -> bool:
    """Check whether only nodes are left that cannot begin, or wait for their turn.

    Where nothing else is left, the next look releases those that wait for their turn. If that goes
    on for long, it was refused.
    """
    left = [status for status in statuses if not status.is_over]
    return bool(left) and all(status.is_stuck or status.task.awaits_turn for status in left)


def describe(status: NodeStatus) -> tuple[str, ...]:
    """Describe a node in the columns of NODE_HEADER."""
    progress = status.progress
    if progress is None:
        return (status.node, status.state, "", "", "", "", note(status))
    phase = f"{progress.number} of {progress.phases} {progress.phase}" if progress.phase else ""
    if progress.gpus and progress.gpus_done == progress.gpus:
        phase = "all phases done"
    shows_phase = not status.is_over
    left = progress.left_s if shows_phase and progress.phase else None
    heat = progress.temperature_c
    return (
        status.node,
        status.state,
        phase if shows_phase else "",
        format_duration(round(left)) if left and round(left) else "",
        "" if heat is None else f"{heat:.0f} C",
        str(progress.findings) if progress.findings else "",
        note(status),
    )


def note(status: NodeStatus) -> str:
    """Describe in a few words what the state alone does not say."""
    parts = []
    if status.is_over and status.verdict is not None:
        parts.append(str(status.verdict))
    if status.state is NodeState.MISSING:
        parts.append("no report")
    if status.is_stuck:
        parts.append(status.why_stuck)
    elif status.task.reason and status.state is not NodeState.DONE:
        parts.append(status.task.reason)
    progress = status.progress
    if progress is not None:
        if progress.attempt > 1:
            parts.append(f"attempt {progress.attempt}")
        if progress.note:
            parts.append(progress.note)
    return ", ".join(parts)


def change_key(status: NodeStatus) -> tuple[object, ...]:
    """Return what is worth a line when it changes; why a task waits does so all the time."""
    progress = status.progress
    shown = (
        (progress.phase, progress.findings, progress.note, progress.attempt)
        if progress is not None
        else ()
    )
    return (status.state, status.verdict, status.why_stuck, *shown)


def summary(statuses: Sequence[NodeStatus]) -> str:
    """Describe a whole run in one line: how many nodes are in each state, and what stands out."""
    counts = {state: sum(status.state is state for status in statuses) for state in NodeState}
    parts = [f"{number} {state}" for state, number in counts.items() if number]
    verdicts = [
        status.verdict for status in statuses if status.is_over and status.verdict is not None
    ]
    bad = [f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict if verdict in verdicts]
    text = f"{format_count(len(statuses), 'node')}: {', '.join(parts)}"
    if bad:
        text += f"; {', '.join(bad)}"
    working = [
        (status.progress.temperature_c, status.node)
        for status in statuses
        if status.state is NodeState.RUNNING
        and status.progress is not None
        and status.progress.temperature_c is not None
    ]
    if working:
        heat, node = max(working)
        text += f"; hottest {heat:.0f} C ({node})"
    waiting: dict[str, list[str]] = {}
    for status in statuses:
        if reason := _why_waiting(status):
            waiting.setdefault(reason, []).append(status.node)
    for reason, nodes in sorted(waiting.items(), key=lambda item: -len(item[1])):
        text += f"; {reason}: {_some(nodes)}"
    found = [status.node for status in statuses if status.findings]
    return f"{text}; findings on {_some(found)}" if found else text


def _why_waiting(status: NodeStatus) -> str:
    """Name what a node waits for, other than its turn; empty if it does not wait."""
    if status.state is not NodeState.WAITING:
        return ""
    if status.is_stuck:
        hold = status.task.hold
        return re.split("[:;]", hold)[0] if hold else "down or drained"
    return status.task.reason


def _some(nodes: Sequence[str]) -> str:
    """Name the first nodes, and count the others."""
    more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
    return f"{', '.join(nodes[:_MAX_NAMES])}{more}"


# --- from look to look -----------------------------------------------------------------------


def engine_of(run: FleetRun, folder: FleetFolder) -> Engine:
    """Return the engine of a run that was submitted.

    Raises:
        ConfigError: This version has no such engine.
    """
    if run.engine == "slurm":
        return Slurm(folder)
    if run.engine == "clush":
        return Clush(folder=folder)
    raise ConfigError(f"engine {run.engine!r} is unknown", f"Known are {', '.join(ENGINES)}.")


class FleetFollower:
    """Reads the state of a run again and again.

    Args:
        folder: The folder of the run.
        run: What it has.
        engine: The engine of the run.
    """

    def __init__(self, folder: FleetFolder, run: FleetRun, engine: Engine) -> None:
        self._folder = folder
        #: What it has, as at the last look.
        self.run = run
        self._engine = engine
        #: Why the engine did not answer at the last look, or None.
        self.engine_error: EngineError | None = None
        self._progress = _Files(read_progress)
        self._verdicts = _Files(read_verdict)
        self._runs = _Files(_read_run)
        self._was_over: frozenset[str] = frozenset()
        self._cost_s = 0.0
        self._has_answered = False

    def look(self) -> tuple[NodeStatus, ...]:
        """Read the state of every node.

        Raises:
            EngineMissingError: The engine's commands are not installed here.
        """
        begin = time.monotonic()
        # `fleet resume` in another terminal adds tasks to it.
        self.run = self._runs.read({"": self._folder.run_file}).get("", self.run)
        nodes = self.run.nodes
        tasks = self._tasks()
        # After the engine: a report is written before its task is over.
        progress = self._progress.read({node: self._folder.progress(node) for node in nodes})
        verdicts = self._verdicts.read({node: self._folder.report(node) for node in nodes})
        self._cost_s = time.monotonic() - begin
        return merge(nodes, tasks, progress, verdicts)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        return max(MIN_PAUSE_S, self._cost_s / _MAX_SHARE)

    def _tasks(self) -> Mapping[str, NodeTask] | None:
        """Ask the engine; a task is over only if it is so twice: it may just be requeued."""
        try:
            tasks = self._engine.tasks(self.run)
        except EngineError as error:
            if isinstance(error, EngineMissingError) and not self._has_answered:
                raise  # it never will: this host is none of the cluster's
            self.engine_error = error
            return None
        self.engine_error = None
        self._has_answered = True
        if any(task.awaits_turn for task in tasks.values()) and not self._folder.cancelled.exists():
            try:  # also if the task whose turn it was to do so was killed
                self._engine.advance(self.run)
            except EngineError as error:  # the tasks are known all the same
                self.engine_error = error
        over = frozenset(node for node, task in tasks.items() if task.state is TaskState.OVER)
        sure, self._was_over = over & self._was_over, over
        return {
            node: NodeTask(state=TaskState.RUNNING) if node in over - sure else task
            for node, task in tasks.items()
        }


def _read_run(path: Path) -> FleetRun | None:
    """Read ``fleet.json``; None if it cannot be read at the moment."""
    try:
        return FleetFolder(path=path.parent).read()
    except ConfigError:
        return None


class _Files(Generic[T]):
    """The parsed files of all nodes; a file is read again only when it was replaced.

    Args:
        parse: Reads one file; None if there is nothing to read.
    """

    def __init__(self, parse: Callable[[Path], T | None]) -> None:
        self._parse = parse
        self._known: dict[str, tuple[tuple[int, int, int], T | None]] = {}

    def read(self, paths: Mapping[str, Path]) -> dict[str, T]:
        """Read the files that have changed; return the values of all, by node."""
        found = {}
        for node, path in paths.items():
            try:
                there = path.stat()
            except OSError:  # not written yet, or the disk does not answer: what was known stays
                value = self._known.get(node, (None, None))[1]
            else:
                stamp = (there.st_ino, there.st_mtime_ns, there.st_size)
                known = self._known.get(node)
                value = known[1] if known is not None and known[0] == stamp else self._parse(path)
                self._known[node] = (stamp, value)
            if value is not None:
                found[node] = value
        return found
