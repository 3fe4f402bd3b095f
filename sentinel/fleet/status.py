"""How far each node of a fleet run is: what the engine, the progress and the reports say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.engine import Task, TaskState
from sentinel.fleet.records.progress import NodeProgress
from sentinel.units import format_count, format_duration

#: So many nodes are named in a line about many.
_MAX_NAMES = 3


class NodeState(StrEnum):
    """What is known of a node's part of a run."""

    #: Its task waits: for its turn, for the node, or after it was requeued.
    WAITING = "waiting"
    #: Its task runs.
    RUNNING = "running"
    #: Its task is over, and there is a report.
    DONE = "done"
    #: Its task is over, and there is no report.
    MISSING = "missing"
    #: The engine does not answer, and there is no report yet.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node of a run."""

    node: str
    state: NodeState
    #: The verdict of its report, or None. Not final while the task waits or runs: a task that was
    #: requeued goes on.
    verdict: Verdict | None = None
    #: What it has written last, or None.
    progress: NodeProgress | None = None
    #: Why it waits, or how its task has ended, in the engine's words; or empty.
    reason: str = ""
    #: Its task cannot begin: the node is down or drained.
    unavailable: bool = False
    #: Why its task is held and how to release it; empty if it is not.
    hold: str = ""
    #: It waits for its turn, which comes when another node is over.
    awaits_turn: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come from it."""
        return self.state in {NodeState.DONE, NodeState.MISSING}

    @property
    def is_stuck(self) -> bool:
        """Whether its task cannot begin until the node is up or an operator releases it."""
        return self.state is NodeState.WAITING and (self.unavailable or bool(self.hold))

    @property
    def why_stuck(self) -> str:
        """Why its task cannot begin; empty if it can."""
        if not self.is_stuck:
            return ""
        return f"held: {self.hold}" if self.hold else "the node is down or drained"

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
    tasks: Mapping[str, Task] | None,
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
        _status(node, None if tasks is None else tasks[node], progress.get(node), verdicts)
        for node in nodes
    )


def _status(
    node: str,
    task: Task | None,
    progress: NodeProgress | None,
    verdicts: Mapping[str, Verdict],
) -> NodeStatus:
    verdict = verdicts.get(node)
    if task is None:  # unknown is never over
        state = NodeState.UNKNOWN
    elif task.state is TaskState.OVER:
        state = NodeState.DONE if verdict is not None else NodeState.MISSING
    elif task.state is TaskState.WAITING:
        state = NodeState.WAITING
    else:
        state = NodeState.RUNNING
    return NodeStatus(
        node=node,
        state=state,
        verdict=verdict,
        progress=progress,
        reason=task.reason if task is not None else "",
        unavailable=task is not None and task.node_unavailable,
        hold=task.hold if task is not None else "",
        awaits_turn=task is not None and task.awaits_turn,
    )


def is_stalled(statuses: Iterable[NodeStatus]) -> bool:
    """Check whether only nodes are left that cannot begin, or wait until these are over."""
    left = [one for one in statuses if not one.is_over]
    return any(one.is_stuck for one in left) and all(
        one.is_stuck or one.awaits_turn for one in left
    )


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
        "" if left is None else format_duration(round(left)),
        "" if heat is None else f"{heat:.0f} C",
        str(progress.findings) if progress.findings else "",
        note(status),
    )


#: The columns of a table of nodes.
NODE_HEADER = ("NODE", "STATE", "PHASE", "LEFT", "TEMP", "FINDINGS", "NOTE")
#: The right-aligned ones.
NODE_RIGHT = (3, 4, 5)


def note(status: NodeStatus) -> str:
    """Describe in a few words what the state alone does not say."""
    parts = []
    if status.is_over and status.verdict is not None:
        parts.append(str(status.verdict))
    if status.state is NodeState.MISSING:
        parts.append("no report")
    if status.is_stuck:
        parts.append(status.why_stuck)
    elif status.reason and status.state is not NodeState.DONE:
        parts.append(status.reason)
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
    counts = {state: sum(one.state is state for one in statuses) for state in NodeState}
    parts = [f"{number} {state}" for state, number in counts.items() if number]
    verdicts = [one.verdict for one in statuses if one.is_over and one.verdict is not None]
    bad = [f"{verdicts.count(one)} {one}" for one in Verdict if one in verdicts]
    text = f"{format_count(len(statuses), 'node')}: {', '.join(parts)}"
    if bad:
        text += f"; {', '.join(bad)}"
    working = [
        (one.progress.temperature_c, one.node)
        for one in statuses
        if one.state is NodeState.RUNNING
        and one.progress is not None
        and one.progress.temperature_c is not None
    ]
    if working:
        heat, node = max(working)
        text += f"; hottest {heat:.0f} C ({node})"
    waiting: dict[str, list[str]] = {}
    for one in statuses:
        if reason := _why_waiting(one):
            waiting.setdefault(reason, []).append(one.node)
    for reason, nodes in sorted(waiting.items(), key=lambda item: -len(item[1])):
        text += f"; {reason}: {_some(nodes)}"
    found = [one.node for one in statuses if one.findings]
    return f"{text}; findings on {_some(found)}" if found else text


def _why_waiting(status: NodeStatus) -> str:
    """Name what a node waits for, other than its turn; empty if it does not wait."""
    if status.state is not NodeState.WAITING:
        return ""
    if status.is_stuck:
        return "held" if status.hold else "down or drained"
    return status.reason


def _some(nodes: Sequence[str]) -> str:
    """Name the first nodes, and count the others."""
    more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
    return f"{', '.join(nodes[:_MAX_NAMES])}{more}"
