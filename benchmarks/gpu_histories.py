"""Check that the events of each GPU are a legal history of its stressor. Pure."""

from __future__ import annotations

from typing import Any

#: By event: the states of a stressor in which it may happen, and the next state. YIELDING is the
#: STOPPING of a hand-over, which can only end as one.
_TRANSITIONS: dict[str, tuple[frozenset[str], str]] = {
    "stressor.starting": (frozenset({"STOPPED"}), "STARTING"),
    "gpu.cleanup_started": (frozenset({"STOPPED"}), "STARTING"),
    "stressor.ready": (frozenset({"STARTING"}), "RUNNING"),
    "gpu.unwatched": (frozenset({"STARTING", "RUNNING"}), "STOPPING"),
    "gpu.yielding": (frozenset({"STARTING", "RUNNING", "STOPPING"}), "YIELDING"),
    "gpu.handed_over": (frozenset({"YIELDING"}), "STOPPED"),
    "stressor.stopped": (frozenset({"STARTING", "RUNNING", "STOPPING"}), "STOPPED"),
    "stressor.failed": (frozenset({"STARTING", "RUNNING", "STOPPING"}), "STOPPED"),
    "stressor.fatal": (frozenset({"STARTING", "RUNNING", "STOPPING"}), "STOPPED"),
}
#: By the state after the events so far: the states that ``gpu.status`` may have. An ordinary stop
#: has no event at its beginning.
_STATUSES = {
    "STOPPED": frozenset({"STOPPED", "BACKOFF", "FATAL"}),
    "STARTING": frozenset({"STARTING", "STOPPING"}),
    "RUNNING": frozenset({"RUNNING", "STOPPING"}),
    "STOPPING": frozenset({"STOPPING"}),
    "YIELDING": frozenset({"STOPPING"}),
}
_OCCUPANCIES = {"gpu.idle", "gpu.busy", "gpu.unknown"}


class GpuHistories:
    """The state of every GPU by its events, and what was wrong with them.

    Attributes:
        states: The state of each GPU's stressor, by UUID.
        violations: One sentence for each illegal event.
    """

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.violations: list[str] = []
        self._occupancies: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Apply the next event of the log."""
        gpu, name = event.get("gpu"), event["event"]
        if gpu is None:
            return
        state = self.states.setdefault(gpu, "STOPPED")
        if name in _OCCUPANCIES:
            self._occupancies[gpu] = name
        elif name == "gpu.status":
            if event["stressor"] not in _STATUSES[state]:
                self._report(event, f"its status is {event['stressor']}, but it is {state}")
        elif name in _TRANSITIONS:
            before, after = _TRANSITIONS[name]
            if state not in before:
                self._report(event, f"its stressor is {state}")
            if name == "stressor.starting" and self._occupancies.get(gpu) != "gpu.idle":
                self._report(event, f"its last occupancy is {self._occupancies.get(gpu)}")
            self.states[gpu] = after

    def held(self) -> int:
        """Count the GPUs whose stressor is RUNNING."""
        return sum(state == "RUNNING" for state in self.states.values())

    def _report(self, event: dict[str, Any], why: str) -> None:
        self.violations.append(f"{event['event']} on GPU {event.get('index')}: {why}")
