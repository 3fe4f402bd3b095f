"""The GPU time of users: allocated, and of that unused; beside idle time and that of stressors.

A query runs in the history's thread.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from sentinel.api.history_tables import gpu_key

#: A GPU has no load below this utilization: in a minute, 0.6 s of work.
NO_LOAD = 0.01

_WHERE = "WHERE at >= :since AND (:gpu IS NULL OR gpu = :gpu)"
#: The readings of seconds and of minutes, each with the seconds that it spans and that were read.
_READINGS = (
    f"SELECT gpu, at, 60 AS span, n, busy, ours, utilization FROM minutes {_WHERE} UNION ALL"
    f" SELECT gpu, at, 1, 1, busy, ours, utilization FROM seconds {_WHERE}"
)
_TOTALS = f"SELECT total(n * ours), total(n * max(0, 1 - busy - ours)) FROM ({_READINGS})"
_UNUSED = (
    f"SELECT gpu, at + span / 2.0 AS middle, n * busy FROM ({_READINGS})"
    " WHERE busy > 0 AND utilization < :no_load ORDER BY middle"
)
_USES = (
    "SELECT user, gpu, max(began, :since), until FROM uses WHERE NOT ours AND until > :since"
    " AND (:gpu IS NULL OR gpu = :gpu) ORDER BY began"
)

Span = tuple[float, float]


def gpu_hours(connection: sqlite3.Connection, uuid: str | None, since: float) -> dict[str, Any]:
    """Read the GPU time since a time, of one GPU or of all, as GpuHours.

    Several processes of one user on one GPU count once. Of the allocated time, that with a reading
    without load is unused.

    Raises:
        sqlite3.Error: The database failed.
    """
    values = {"since": since, "gpu": uuid and gpu_key(uuid), "no_load": NO_LOAD}
    stressors, idle = connection.execute(_TOTALS, values).fetchone()
    unused: dict[int, list[Span]] = defaultdict(list)
    for gpu, middle, seconds in connection.execute(_UNUSED, values):
        unused[gpu].append((middle, seconds))
    sums = {gpu: _Sums(found) for gpu, found in unused.items()}
    spans: dict[tuple[str | None, int], list[Span]] = defaultdict(list)
    for user, gpu, began, until in connection.execute(_USES, values):
        _extend(spans[user, gpu], began, until)
    rows: dict[str | None, dict[str, Any]] = {}
    for (user, gpu), found in spans.items():
        row = rows.setdefault(user, {"user": user, "allocated_s": 0.0, "unused_s": 0.0})
        row["allocated_s"] += sum(until - began for began, until in found)
        row["unused_s"] += sum(sums[gpu].between(*span) for span in found) if gpu in sums else 0.0
    for row in rows.values():
        row |= {name: round(row[name], 3) for name in ("allocated_s", "unused_s")}
    users = sorted(rows.values(), key=lambda row: (-row["unused_s"], -row["allocated_s"]))
    return {"users": users, "idle_s": round(idle, 3), "stressors_s": round(stressors, 3)}


def _extend(spans: list[Span], began: float, until: float) -> None:
    """Add a span to those of earlier beginning; overlapping ones become one."""
    if spans and began <= spans[-1][1]:
        spans[-1] = (spans[-1][0], max(until, spans[-1][1]))
    else:
        spans.append((began, until))


class _Sums:
    """Sums of seconds over spans of time.

    Args:
        found: The middle of each reading in ascending order, and its seconds.
    """

    def __init__(self, found: Iterable[Span]) -> None:
        spans = list(found)
        self._middles = [middle for middle, _ in spans]
        self._sums = [0.0, *accumulate(seconds for _, seconds in spans)]

    def between(self, began: float, until: float) -> float:
        """Add the seconds of the readings whose middle is in a span."""
        first, last = (bisect_left(self._middles, at) for at in (began, until))
        return self._sums[last] - self._sums[first]
