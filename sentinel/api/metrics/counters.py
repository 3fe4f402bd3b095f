"""Counts what the service hears: hand-overs, restarts, failures, findings, time at work.

A new service begins to count anew, as Prometheus knows of counters. What the supervisor itself
counts is in its views, and outlives a service.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.protocol.views import GpuView, LogRecord

#: Upper ends of the histograms' buckets, in seconds. 45 ms is our own budget for a kill; a newcomer
#: gets its memory if SIGKILL comes within 60 ms of its PID in the list, or 80 ms of its growth
#: (docs/handing-over.md).
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
#: Views come at least once a second. Between two that are further apart, in seconds, nobody can say
#: what was.
_LONGEST_GAP = 5.0


class Durations:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: object) -> None:
        """Count a duration; what is none was not measured."""
        if isinstance(seconds, int | float):
            self._counts[bisect.bisect_left(BUCKETS, seconds)] += 1
            self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many were no longer than each end, as Prometheus wants it."""
        ends = [*(str(end) for end in BUCKETS), "+Inf"]
        return list(zip(ends, itertools.accumulate(self._counts), strict=True))


@dataclass
class GpuCounts:
    """What was counted of one GPU.

    ``ended`` is why its last stressor ended, once that is heard; ``present`` are the foreign
    processes that were named last, ``seen`` is its last view.
    """

    kill: Durations = field(default_factory=Durations)
    exit: Durations = field(default_factory=Durations)
    memory_back: Durations = field(default_factory=Durations)
    restarts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    foreign: int = 0
    unknown: int = 0
    stress: float = 0.0
    ended: str | None = None
    present: frozenset[int] = frozenset()
    seen: GpuView | None = None


class Counting:
    """All that one service has counted.

    Attributes:
        gpus: By UUID.
        probe: How often the probe was replaced, by reason.
        driver: How often the driver could not be asked, by its error.
        lost: How many events were not heard, by the gaps in their numbers.
    """

    def __init__(self) -> None:
        self.gpus: dict[str, GpuCounts] = {}
        self.probe: Counter[str] = Counter()
        self.driver: Counter[str] = Counter()
        self.lost = 0
        self._last: int | None = None

    def of(self, uuid: str) -> GpuCounts:
        """Return what was counted of a GPU."""
        return self.gpus.setdefault(uuid, GpuCounts())

    def see(self, view: GpuView) -> None:
        """Count the time for which a stressor has been running, by two views that both show it."""
        counts = self.of(view.uuid)
        before, counts.seen = counts.seen, view
        if before is None or before.pid != view.pid:
            return
        if before.stressor == view.stressor == "RUNNING":
            passed = view.at - before.at
            counts.stress += passed if 0 < passed < _LONGEST_GAP else 0.0

    def hear(self, said: LogRecord) -> None:
        """Count an event; what cannot be understood counts as nothing."""
        if self._last is not None and said.number > self._last:
            self.lost += said.number - self._last - 1
        self._last = said.number
        try:
            event = json.loads(said.line)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        uuid = event.get("gpu")
        if isinstance(uuid, str):
            _count(self.of(uuid), event)
        match event:
            case {"event": "probe.exited"}:
                self.probe["exited"] += 1
            case {"event": "probe.hung"}:
                self.probe["hung"] += 1
            case {"event": "driver.unavailable", "code": str(code)}:
                self.driver[code] += 1


def _count(counts: GpuCounts, event: Mapping[str, Any]) -> None:
    """Count an event of one GPU; docs/events.md has them."""
    match event:
        case {"event": "gpu.handed_over"}:
            counts.kill.add(event.get("kill_s"))
            counts.exit.add(event.get("exit_s"))
            counts.memory_back.add(event.get("memory_back_s"))
            counts.ended = "yield"
            _meet(counts, event)
        case {"event": "gpu.yielding" | "gpu.busy"}:
            _meet(counts, event)
        case {"event": "gpu.idle"}:
            counts.present = frozenset()
        case {"event": "gpu.unknown"}:
            counts.unknown += 1
        case {"event": "stressor.starting"}:
            if counts.ended is not None:
                counts.restarts[counts.ended] += 1
            counts.ended = None
        case {"event": "stressor.stopped", "cause": str(cause)}:
            counts.ended = cause
        case {"event": "stressor.failed" | "stressor.fatal", "kind": str(kind)}:
            counts.failures[kind] += 1
            counts.ended = kind
        case {"event": "stressor.mismatch", "errors": int(errors)}:
            counts.errors += errors


def _meet(counts: GpuCounts, event: Mapping[str, Any]) -> None:
    """Count who was not there when somebody was named last; who is not named may still be there."""
    processes = event.get("processes")
    named = frozenset(
        one["pid"]
        for one in processes or ()
        if isinstance(one, dict) and isinstance(one.get("pid"), int)
    )
    if named:
        counts.foreign += len(named - counts.present)
        counts.present = named
