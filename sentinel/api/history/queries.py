"""What can be asked of a history, of the file and of the memory that takes its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.api.history.retention import energy
from sentinel.api.history.schema import MINUTE, number_of

#: Beyond the last hour there is one reading for each minute.
_HOUR, _MINUTE = 3600, 60
#: Lines of events in one answer, in characters at most.
MOST_TEXT = 8 * 2**20


@dataclass(frozen=True)
class Question:
    """Where to look.

    Attributes:
        connection: Has the tables.
        schemas: Under which names, the oldest first.
        ahead: By how much the ticks of each are ahead of the monotonic clock, in seconds.
        began: The first tick of each that is this service's; those before it are of others.
    """

    connection: sqlite3.Connection
    schemas: Sequence[str]
    ahead: Mapping[str, int]
    began: Mapping[str, int]


def step_for(span: float, points: int) -> int:
    """Return how many seconds one of so many readings stands for."""
    step = max(1, -(-int(span) // points))
    return step if span <= _HOUR else max(step, _MINUTE)


def _means(name: str) -> str:
    """Return the mean of means, each of so many seconds; what is not known does not count."""
    weights = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE n END)"
    return f"sum({name} * n) * 1.0 / nullif({weights}, 0) AS {name}"


def _merged(name: str) -> str:
    if name == "energy_j":
        return f"sum({name}) AS {name}"
    if name == "health" or "_max_" in name:
        return f"max({name}) AS {name}"
    return f"min({name}) AS {name}" if "_min_" in name else _means(name)


def _as_minute(name: str) -> str:
    """Return the column of a second that stands for one of a minute."""
    return name.replace("_min_", "_").replace("_max_", "_")


_WHERE = "WHERE gpu = :gpu AND at >= :since AND at <= :until"
_HEAT = "gpu = ? AND temperature_c IS NOT NULL"
_ROWS = f"SELECT at, n, {', '.join(MINUTE)} FROM {{0}}.minutes {_WHERE}"
_WITH_ENERGY = "SELECT *, {1} FROM {0}.seconds AS second WHERE gpu = :gpu"
_SECONDS = f"SELECT at, 1, {', '.join(map(_as_minute, MINUTE))} FROM ({{1}}) {_WHERE}"


def readings(
    question: Question, uuid: str, since: int, until: int, step: int
) -> list[dict[str, Any]]:
    """Return the readings of a GPU, one for each ``step`` seconds in which there were some.

    Times are seconds since the epoch. Each is a dict of MINUTE, ``at`` and ``seconds``, which is
    how many seconds were read in it.
    """
    rows = " UNION ALL ".join(
        one.format(schema, _WITH_ENERGY.format(schema, energy(schema)))
        for schema in question.schemas
        for one in (_ROWS, _SECONDS)
    )
    found = question.connection.execute(
        f"SELECT (at - :since) / :step AS place, sum(n), {', '.join(map(_merged, MINUTE))}"
        f" FROM ({rows}) GROUP BY place ORDER BY place",
        {"gpu": number_of(uuid), "since": since, "until": until, "step": step},
    )
    names = ("at", "seconds", *MINUTE)
    return [
        dict(zip(names, (since + place * step, *values), strict=True)) for place, *values in found
    ]


def temperatures(
    question: Question, uuid: str, now: float, wall: float, seconds: int
) -> list[tuple[int, int]]:
    """Return (second of the monotonic clock, degrees Celsius) of the last so many seconds.

    Args:
        question: Where to look.
        uuid: Of which GPU.
        now: Of the monotonic clock.
        wall: The same in seconds since the epoch.
        seconds: How far to look back.
    """
    ours: list[tuple[int, int]] = []
    earlier: list[tuple[int, int]] = []
    for schema in question.schemas:
        ahead, began = question.ahead[schema], question.began[schema]
        asked = (number_of(uuid), began)
        ours += question.connection.execute(
            f"SELECT tick - ?, temperature_c FROM {schema}.seconds"
            f" WHERE tick > ? AND {_HEAT} AND tick >= ?",
            (ahead, int(now) + ahead - seconds, *asked),
        )
        # Ticks do not tell how long nobody was there: days may lie between two of them.
        earlier += question.connection.execute(
            f"SELECT at - ?, temperature_c FROM {schema}.seconds"
            f" WHERE at > ? AND {_HEAT} AND tick < ?",
            (int(wall) - int(now), int(wall) - seconds, *asked),
        )
    ours.sort()
    # By the wall's clock, and where that was put back they would come after ours.
    until = ours[0][0] if ours else int(now) + 1
    return sorted(one for one in earlier if one[0] < until) + ours


def events(
    question: Question, uuid: str | None, since: float, name: str | None, limit: int
) -> list[tuple[float, str]]:
    """Return when each of the last events was and its line, the oldest first."""
    where = "".join([" AND gpu = :gpu" if uuid else "", " AND name = :name" if name else ""])
    found: list[tuple[float, str]] = []
    text = 0
    for schema in reversed(question.schemas):
        for at, line in question.connection.execute(
            f"SELECT at, line FROM {schema}.events WHERE at >= :since{where}"
            " ORDER BY at DESC, id DESC LIMIT :limit",
            {
                "since": since,
                "gpu": number_of(uuid) if uuid else None,
                "name": name,
                "limit": limit - len(found),
            },
        ):
            text += len(line)
            if text > MOST_TEXT:
                return found[::-1]
            found.append((at, line))
    return found[::-1]


@dataclass(frozen=True, kw_only=True)
class Used:
    """One use of a GPU; see :class:`sentinel.api.history.usage.Use`."""

    uuid: str
    index: int
    began: float
    until: float
    ours: bool
    who: str | None
    pid: int | None
    user: str | None
    open: bool


def uses(question: Question, uuid: str | None, since: float, limit: int) -> list[Used]:
    """Return the last uses that went on after ``since``, the oldest first."""
    where = " AND gpu = :gpu" if uuid else ""
    found: dict[tuple[Any, ...], Used] = {}
    for schema in question.schemas:  # one that goes on may be in both, and the later one is newer
        for row in question.connection.execute(
            f"SELECT began, gpu, pid, started, until, ours, who, user, open, uuid, idx"
            f" FROM {schema}.uses JOIN {schema}.gpus USING (gpu)"
            f" WHERE (until >= :since OR open){where} ORDER BY began DESC LIMIT :limit",
            {"since": since, "gpu": number_of(uuid) if uuid else None, "limit": limit},
        ):
            began, _, pid, _, until, ours, who, user, going_on, of, index = row
            found[row[:4]] = Used(
                uuid=of,
                index=index,
                began=began,
                until=until,
                ours=bool(ours),
                who=who,
                pid=None if pid < 0 else pid,
                user=user,
                open=bool(going_on),
            )
    return sorted(found.values(), key=lambda use: (use.began, use.index))[-limit:]


def known(question: Question) -> dict[str, int]:
    """Return nvidia-smi's index of every GPU of which there is something, by UUID."""
    found: dict[str, int] = {}
    for schema in question.schemas:
        rows = question.connection.execute(f"SELECT uuid, idx FROM {schema}.gpus")
        found |= dict(rows.fetchall())
    return found
