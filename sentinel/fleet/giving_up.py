"""When nodes whose tasks cannot begin are no longer waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sentinel.fleet.status import NodeStatus, is_stalled
from sentinel.units import format_duration


@dataclass
class GivingUp:
    """Waits for nodes that cannot begin once nothing else is left, and gives them up.

    The tasks of nodes that are given up are cancelled. If they are still there after the same time
    again, they could not be: the engine refuses that to this user or this folder.
    """

    #: How long to wait, in seconds.
    after_s: float
    #: Why each node was given up, by node.
    reasons: dict[str, str] = field(default_factory=dict)
    #: The time at which nothing else was left; None while something goes on.
    _since: float | None = None

    def chosen(self, statuses: Sequence[NodeStatus], now: float) -> tuple[NodeStatus, ...]:
        """Choose the nodes to give up now; the wait for them begins again.

        Args:
            statuses: The state of all nodes.
            now: The monotonic time in seconds.
        """
        if not is_stalled(statuses):
            self._since = None
            return ()
        if self._since is None:
            self._since = now
        if now - self._since < self.after_s:
            return ()
        self._since = None
        stuck = tuple(one for one in statuses if one.is_stuck)
        return stuck or tuple(one for one in statuses if not one.is_over)

    def give_up(self, nodes: Sequence[NodeStatus]) -> bool:
        """Note why nodes are given up; return whether all of them were given up before."""
        again = all(one.node in self.reasons for one in nodes)
        after = f"given up after {format_duration(round(self.after_s))}"
        self.reasons |= {one.node: f"{after}: {why_given_up(one)}" for one in nodes}
        return again

    def not_cancelled(self, nodes: Sequence[NodeStatus], why: str) -> None:
        """Note that the tasks of nodes that were given up are still there."""
        for one in nodes:
            self.reasons[one.node] += f"; its task was not cancelled: {why}"


def why_given_up(status: NodeStatus) -> str:
    """Explain why the task of a node cannot begin."""
    return status.why_stuck or "it waits for its turn, and could not be released"
