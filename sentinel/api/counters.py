"""Counters of the API process: hand-overs, restarts, failures, findings and stress time.

Counters restart with the process, as Prometheus expects. The supervisor's own counters are in its
views, and survive the API process.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.api.event_streams import LoggedEvent
from sentinel.protocol.views import GpuView

#: Upper bounds of the histograms' buckets, in seconds. 45 ms is the budget for a kill; a
#: newcomer gets its memory if SIGKILL comes within 60 ms of its PID in the list, or 80 ms of its
#: growth (docs/internals/handing-over.md).
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
#: Views come at least once a second. Time between views further apart than this is not counted.
_MAX_GAP_S = 5.0
#: NVIDIA's numbers are below 200; any other number of a broken driver is no label of its own.
_MAX_XIDS = 1000
#: The XIDs that alone fail a burn-in; a test compares them with its catalog. They begin at 0, or
#: `increase()` would not see the first one, which may be the last before the GPU is gone.
BEGUN_XIDS = (
    *("other", "46", "48", "54", "62", "64", "74", "79", "94", "95", "109", "110", "119", "120"),
    *("136", "140", "143", "155", "156", "157", "158", "167", "168", "169", "171", "172"),
)


class Durations:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: object) -> None:
        """Count a duration; anything but a number was not measured."""
        if isinstance(seconds, int | float):
            self._counts[bisect.bisect_left(BUCKETS, seconds)] += 1
            self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Compute Prometheus's cumulative buckets."""
        bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
        return list(zip(bounds, itertools.accumulate(self._counts), strict=True))


@dataclass
class GpuCounters:
    """The counters of one GPU."""

    kill: Durations = field(default_factory=Durations)
    exit: Durations = field(default_factory=Durations)
    memory_back: Durations = field(default_factory=Durations)
    restarts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    #: By number, without those that Sentinel caused by ending a stressor.
    xids: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(BEGUN_XIDS, 0)))
    errors: int = 0
    foreign: int = 0
    unknown: int = 0
    stress_s: float = 0.0
    #: Why the last stressor ended, if known.
    end_reason: str | None = None
    #: The PIDs of the foreign processes in the last event that listed any.
    foreign_pids: frozenset[int] = frozenset()
    last_view: GpuView | None = None


class Counters:
    """All counters."""

    def __init__(self) -> None:
        #: By UUID.
        self.gpus: dict[str, GpuCounters] = {}
        #: Replacements of the probe, by reason.
        self.probe: Counter[str] = Counter()
        #: Failures of the driver, by error.
        self.driver: Counter[str] = Counter()
        #: Missing events, by gaps in their numbers.
        self.lost = 0
        #: Notifications of each recipient by result: sent, failed; and dropped events.
        self.notifications: Mapping[str, Counter[str]] = {}
        self._last_number: int | None = None

    def of(self, uuid: str) -> GpuCounters:
        """Look up the counters of a GPU."""
        return self.gpus.setdefault(uuid, GpuCounters())

    def count_view(self, view: GpuView) -> None:
        """Count the time between two views that both show the same stressor running."""
        counters = self.of(view.uuid)
        before, counters.last_view = counters.last_view, view
        if before is None or before.pid != view.pid:
            return
        if before.stressor == view.stressor == "RUNNING":
            passed = view.at - before.at
            counters.stress_s += passed if 0 < passed < _MAX_GAP_S else 0.0

    def count_event(self, event: LoggedEvent) -> None:
        """Count an event; unknown ones are ignored."""
        if self._last_number is not None and event.number > self._last_number:
            self.lost += event.number - self._last_number - 1
        self._last_number = event.number
        uuid = event.fields.get("gpu")
        if isinstance(uuid, str):
            _count(self.of(uuid), event.fields)
        match event.fields:
            case {"event": "probe.exited"}:
                self.probe["exited"] += 1
            case {"event": "probe.hung"}:
                self.probe["hung"] += 1
            case {"event": "driver.unavailable", "code": str(code)}:
                self.driver[code] += 1


def _count(counters: GpuCounters, event: Mapping[str, Any]) -> None:
    """Count an event of one GPU; docs/reference/events.md lists them."""
    match event:
        case {"event": "gpu.handed_over"}:
            counters.kill.add(event.get("kill_s"))
            counters.exit.add(event.get("exit_s"))
            counters.memory_back.add(event.get("memory_back_s"))
            counters.end_reason = "yield"
            _count_foreign(counters, event)
        case {"event": "gpu.yielding" | "gpu.busy"}:
            _count_foreign(counters, event)
        case {"event": "gpu.idle"}:
            counters.foreign_pids = frozenset()
        case {"event": "gpu.unknown"}:
            counters.unknown += 1
        case {"event": "stressor.starting"}:
            if counters.end_reason is not None:
                counters.restarts[counters.end_reason] += 1
            counters.end_reason = None
        case {"event": "stressor.stopped", "cause": str(cause)}:
            counters.end_reason = cause
        case {"event": "stressor.failed" | "stressor.fatal", "kind": str(kind)}:
            counters.failures[kind] += 1
            counters.end_reason = kind
        case _:
            _count_fault(counters, event)


def _count_fault(counters: GpuCounters, event: Mapping[str, Any]) -> None:
    """Count an event that tells of a fault of the GPU."""
    match event:
        case {"event": "stressor.mismatch", "errors": int(errors)}:
            counters.errors += errors
        case {"event": "gpu.xid", "own": False, "xid": int(xid), "repeats": int(repeats)}:
            counters.xids[str(xid) if xid < _MAX_XIDS else "other"] += repeats or 1


def _count_foreign(counters: GpuCounters, event: Mapping[str, Any]) -> None:
    """Count processes that the last list did not have; an empty list leaves it unchanged."""
    processes = event.get("processes")
    pids = frozenset(
        process["pid"]
        for process in processes or ()
        if isinstance(process, dict) and isinstance(process.get("pid"), int)
    )
    if pids:
        counters.foreign += len(pids - counters.foreign_pids)
        counters.foreign_pids = pids
