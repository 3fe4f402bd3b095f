"""Queries on the history: on the file, and on the memory that replaces it during errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.api.history.retention import energy_column
from sentinel.api.history.schema import MINUTE_COLUMNS, gpu_key

#: Spans above an hour have one reading a minute.
_HOUR_S, _MINUTE_S = 3600, 60
#: The size of all lines of events in one response, in characters.
MAX_TEXT_LENGTH = 8 * 2**20


@dataclass(frozen=True)
class Source:
    """The databases of a query."""

    connection: sqlite3.Connection
    #: Their names, oldest first.
    schemas: Sequence[str]
    #: The ticks of each minus the monotonic clock, in seconds.
    tick_offset: Mapping[str, int]
    #: The first tick of each that this process wrote; earlier ones are of other processes.
    first_tick: Mapping[str, int]


def step_for(span: float, points: int) -> int:
    """Compute the step in seconds that divides a span into at most ``points`` readings."""
    step = max(1, -(-int(span) // points))
    return step if span <= _HOUR_S else max(step, _MINUTE_S)


def _mean(name: str) -> str:
    """Average means by their number of seconds, without unknown ones."""
    weights = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE n END)"
    return f"sum({name} * n) * 1.0 / nullif({weights}, 0) AS {name}"


def _aggregate(name: str) -> str:
    if name == "energy_j":
        return f"sum({name}) AS {name}"
    if name == "health" or "_max_" in name:
        return f"max({name}) AS {name}"
    return f"min({name}) AS {name}" if "_min_" in name else _mean(name)


def _second_column(name: str) -> str:
    """Name the column of a second for a column of a minute."""
    return name.replace("_min_", "_").replace("_max_", "_")


_WHERE = "WHERE gpu = :gpu AND at >= :since AND at <= :until"
_TEMPERATURES = "gpu = ? AND temperature_c IS NOT NULL"
_MINUTES = f"SELECT at, n, {', '.join(MINUTE_COLUMNS)} FROM {{0}}.minutes {_WHERE}"
_WITH_ENERGY = "SELECT *, {1} FROM {0}.seconds AS second WHERE gpu = :gpu"
_SECONDS = f"SELECT at, 1, {', '.join(map(_second_column, MINUTE_COLUMNS))} FROM ({{1}}) {_WHERE}"


def readings(source: Source, uuid: str, since: int, until: int, step: int) -> list[dict[str, Any]]:
    """Read the readings of a GPU, one for each ``step`` seconds that have any.

    Times are seconds since the epoch.

    Returns:
        Dicts of MINUTE_COLUMNS, ``at`` and ``seconds``, the number of seconds with a reading.
    """
    rows = " UNION ALL ".join(
        select.format(schema, _WITH_ENERGY.format(schema, energy_column(schema)))
        for schema in source.schemas
        for select in (_MINUTES, _SECONDS)
    )
    columns = ", ".join(map(_aggregate, MINUTE_COLUMNS))
    found = source.connection.execute(
        f"SELECT (at - :since) / :step AS place, sum(n), {columns}"
        f" FROM ({rows}) GROUP BY place ORDER BY place",
        {"gpu": gpu_key(uuid), "since": since, "until": until, "step": step},
    )
    names = ("at", "seconds", *MINUTE_COLUMNS)
    return [
        dict(zip(names, (since + place * step, *values), strict=True)) for place, *values in found
    ]


def temperatures(
    source: Source, uuid: str, now: float, wall: float, seconds: int
) -> list[tuple[int, int]]:
    """Read the temperatures of a GPU in the last ``seconds``.

    Args:
        source: The databases.
        uuid: The GPU.
        now: The time of the monotonic clock.
        wall: The same time in seconds since the epoch.
        seconds: How far to look back.

    Returns:
        Pairs of the second of the monotonic clock and degrees Celsius, oldest first.
    """
    current: list[tuple[int, int]] = []
    earlier: list[tuple[int, int]] = []
    for schema in source.schemas:
        offset, first_tick = source.tick_offset[schema], source.first_tick[schema]
        parameters = (gpu_key(uuid), first_tick)
        current += source.connection.execute(
            f"SELECT tick - ?, temperature_c FROM {schema}.seconds"
            f" WHERE tick > ? AND {_TEMPERATURES} AND tick >= ?",
            (offset, int(now) + offset - seconds, *parameters),
        )
        # By the wall clock: ticks do not include the time between two processes.
        earlier += source.connection.execute(
            f"SELECT at - ?, temperature_c FROM {schema}.seconds"
            f" WHERE at > ? AND {_TEMPERATURES} AND tick < ?",
            (int(wall) - int(now), int(wall) - seconds, *parameters),
        )
    current.sort()
    # If the wall clock was set back, rows of earlier processes would follow the current ones.
    until = current[0][0] if current else int(now) + 1
    return sorted(one for one in earlier if one[0] < until) + current


def events(
    source: Source, uuid: str | None, since: float, names: Collection[str] | None, limit: int
) -> list[tuple[float, str]]:
    """Read the time and line of the last events, oldest first; ``names`` None is all."""
    wanted = {f"name{place}": name for place, name in enumerate(names or ())}
    where = " AND gpu = :gpu" if uuid else ""
    if names is not None:
        where += f" AND name IN ({', '.join(f':{key}' for key in wanted)})"
    found: list[tuple[float, str]] = []
    length = 0
    for schema in reversed(source.schemas):
        for at, line in source.connection.execute(
            f"SELECT at, line FROM {schema}.events WHERE at >= :since{where}"
            " ORDER BY at DESC, id DESC LIMIT :limit",
            {
                "since": since,
                "gpu": gpu_key(uuid) if uuid else None,
                **wanted,
                "limit": limit - len(found),
            },
        ):
            length += len(line)
            if length > MAX_TEXT_LENGTH:
                return found[::-1]
            found.append((at, line))
    return found[::-1]


@dataclass(frozen=True, kw_only=True)
class RecordedUse:
    """One row of uses; see :class:`sentinel.api.history.usage.Use`."""

    uuid: str
    index: int
    began: float
    until: float
    ours: bool
    who: str | None
    pid: int | None
    user: str | None
    open: bool


def uses(source: Source, uuid: str | None, since: float, limit: int) -> list[RecordedUse]:
    """Read the last uses that were current after ``since``, oldest first."""
    where = " AND gpu = :gpu" if uuid else ""
    found: dict[tuple[Any, ...], RecordedUse] = {}
    for schema in source.schemas:  # a current use may be in both; the later row is newer
        for row in source.connection.execute(
            f"SELECT began, gpu, pid, started, until, ours, who, user, open, uuid, idx"
            f" FROM {schema}.uses JOIN {schema}.gpus USING (gpu)"
            f" WHERE (until >= :since OR open){where} ORDER BY began DESC LIMIT :limit",
            {"since": since, "gpu": gpu_key(uuid) if uuid else None, "limit": limit},
        ):
            began, _, pid, _, until, ours, who, user, is_open, gpu, index = row
            found[row[:4]] = RecordedUse(
                uuid=gpu,
                index=index,
                began=began,
                until=until,
                ours=bool(ours),
                who=who,
                pid=None if pid < 0 else pid,
                user=user,
                open=bool(is_open),
            )
    return sorted(found.values(), key=lambda use: (use.began, use.index))[-limit:]


def known_gpus(source: Source) -> dict[str, int]:
    """Read nvidia-smi's index of every GPU with a row, by UUID."""
    found: dict[str, int] = {}
    for schema in source.schemas:
        rows = source.connection.execute(f"SELECT uuid, idx FROM {schema}.gpus")
        found |= dict(rows.fetchall())
    return found
