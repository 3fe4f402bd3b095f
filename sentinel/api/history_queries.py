"""Queries on the history, their responses, and the trend of a temperature.

They run in the history's thread.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import statistics
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sentinel.api.history_recorder import HEALTH_ORDER
from sentinel.api.history_tables import MINUTE_COLUMNS, SECONDS_WITH_ENERGY, gpu_key
from sentinel.protocol import SCHEMA_VERSION
from sentinel.protocol.history_types import Direction, TemperatureTrend

#: Spans above an hour have one reading a minute.
_HOUR_S, _MINUTE_S = 3600, 60
#: The size of all lines of events in one response, in characters.
MAX_TEXT_LENGTH = 8 * 2**20

#: Fields of an event that are not repeated in ``fields``.
_SEPARATE_FIELDS = {"event", "time", "at", "gpu", "index"}
#: Significant decimals; rates are not rounded.
_DECIMALS = 3
_RATES = {"iterations_per_s", "flops_per_s", "bytes_per_s"}
#: The range of datetime, in seconds since the epoch.
_MIN_TIME, _MAX_TIME = -62_135_596_800.0, 253_402_300_799.0

#: The smallest number of readings, one a second: with fewer, one flicker by a degree would decide.
MIN_SAMPLES = 10
#: A smaller change of the line is no trend: NVML reports whole degrees (nvmlDeviceGetTemperature),
#: so it may be rounding.
MIN_CHANGE_C = 1.0
#: Readings in a smaller range are stable: the smallest distance between two default thresholds of
#: health (85 and 90), so that a stable GPU is within one threshold.
STABLE_RANGE_C = 5.0

_WHERE = "WHERE gpu = :gpu AND at >= :since AND at <= :until"


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


_READINGS = (
    f"SELECT at, n, {', '.join(MINUTE_COLUMNS)} FROM minutes {_WHERE} UNION ALL"
    f" SELECT at, 1, {', '.join(map(_second_column, MINUTE_COLUMNS))}"
    f" FROM ({SECONDS_WITH_ENERGY} WHERE gpu = :gpu) {_WHERE}"
)


def readings(
    connection: sqlite3.Connection, uuid: str, since: int, until: int, step: int
) -> list[dict[str, Any]]:
    """Read the readings of a GPU, one for each ``step`` seconds that have any.

    Times are seconds since the epoch.

    Returns:
        Dicts of MINUTE_COLUMNS, ``at`` and ``seconds``, the number of seconds with a reading.
    """
    columns = ", ".join(map(_aggregate, MINUTE_COLUMNS))
    found = connection.execute(
        f"SELECT (at - :since) / :step AS number, sum(n), {columns}"
        f" FROM ({_READINGS}) GROUP BY number ORDER BY number",
        {"gpu": gpu_key(uuid), "since": since, "until": until, "step": step},
    )
    names = ("at", "seconds", *MINUTE_COLUMNS)
    return [
        dict(zip(names, (since + number * step, *values), strict=True)) for number, *values in found
    ]


def temperatures(connection: sqlite3.Connection, uuid: str, since: float) -> list[tuple[int, int]]:
    """Read the temperatures of a GPU since a time, or since the clock was set back after it.

    Returns:
        Pairs of seconds since the epoch and degrees Celsius, oldest first.
    """
    found: list[tuple[int, int]] = []
    for at, degrees in connection.execute(
        "SELECT at, temperature_c FROM seconds"
        " WHERE gpu = ? AND at > ? AND temperature_c IS NOT NULL ORDER BY tick DESC",
        (gpu_key(uuid), int(since)),
    ):
        if found and at > found[-1][0]:
            break
        found.append((at, degrees))
    return found[::-1]


def events(
    connection: sqlite3.Connection,
    uuid: str | None,
    since: float,
    names: Collection[str] | None,
    limit: int,
) -> list[tuple[float, str]]:
    """Read the time and line of the last events, oldest first; ``names`` None is all."""
    wanted = {f"name{number}": name for number, name in enumerate(names or ())}
    where = " AND gpu = :gpu" if uuid else ""
    if names is not None:
        where += f" AND name IN ({', '.join(f':{key}' for key in wanted)})"
    found: list[tuple[float, str]] = []
    length = 0
    for at, line in connection.execute(
        f"SELECT at, line FROM events WHERE at >= :since{where}"
        " ORDER BY at DESC, id DESC LIMIT :limit",
        {"since": since, "gpu": gpu_key(uuid) if uuid else None, **wanted, "limit": limit},
    ):
        length += len(line)
        if length > MAX_TEXT_LENGTH:
            break
        found.append((at, line))
    return found[::-1]


def uses(
    connection: sqlite3.Connection, uuid: str | None, since: float, limit: int
) -> list[dict[str, Any]]:
    """Read the last uses that were current after ``since``, oldest first, as RecordedUse."""
    where = " AND gpu = :gpu" if uuid else ""
    found = connection.execute(
        "SELECT began, idx, uuid, until, open, who, ours, nullif(pid, -1), user"
        f" FROM uses JOIN gpus USING (gpu) WHERE (until >= :since OR open){where}"
        " ORDER BY began DESC LIMIT :limit",
        {"since": since, "gpu": gpu_key(uuid) if uuid else None, "limit": limit},
    )
    return [
        {
            "gpu": gpu,
            "index": index,
            "from": iso(began),
            "until": iso(until),
            "going_on": bool(is_open),
            "who": who,
            "ours": bool(ours),
            "pid": pid,
            "user": user,
            "seconds": round(until - began, _DECIMALS),
        }
        for began, index, gpu, until, is_open, who, ours, pid, user in sorted(
            found, key=lambda row: row[:2]
        )
    ]


def known_gpus(connection: sqlite3.Connection) -> dict[str, int]:
    """Read nvidia-smi's index of every GPU with a row, by UUID."""
    return dict(connection.execute("SELECT uuid, idx FROM gpus").fetchall())


# --- responses ------------------------------------------------------------------------------


def encode_readings(uuid: str, step: int, rows: Iterable[dict[str, Any]]) -> bytes:
    """Encode readings as PastReadings."""
    return encode(gpu=uuid, step_s=step, readings=[_reading(row) for row in rows])


def encode_events(rows: Iterable[tuple[float, str]]) -> bytes:
    """Encode events, given as their time and line, as RecordedEvents."""
    return encode(events=[_event(at, json.loads(line)) for at, line in rows])


def encode_usage(uses: Sequence[dict[str, Any]]) -> bytes:
    """Encode uses as Usage."""
    return encode(usage=uses)


def _reading(row: dict[str, Any]) -> dict[str, Any]:
    reading = {
        name: round(value, _DECIMALS) if isinstance(value, float) and name not in _RATES else value
        for name, value in row.items()
    }
    health = row["health"]
    reading["at"] = iso(row["at"])
    reading["health"] = None if health is None else HEALTH_ORDER[health].value
    return reading


def _event(at: float, fields: dict[str, Any]) -> dict[str, Any]:
    index = fields.get("index")
    return {
        "at": iso(at),
        "name": fields["event"],
        "gpu": fields.get("gpu"),
        "index": index if isinstance(index, int) else None,
        "fields": {name: value for name, value in fields.items() if name not in _SEPARATE_FIELDS},
    }


def iso(time: float) -> str:
    """Format seconds since the epoch as a date with its offset, to the millisecond."""
    bounded = min(max(time, _MIN_TIME), _MAX_TIME)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="milliseconds")


def encode(**fields: Any) -> bytes:
    """Encode the fields of a response."""
    body = {"schema_version": SCHEMA_VERSION, **fields}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


# --- the trend of a temperature -------------------------------------------------------------


def fit_trend(
    readings: Sequence[tuple[float, float]], gpu: str = "", minutes: int = 0
) -> TemperatureTrend:
    """Fit the trend of (seconds, degrees Celsius), oldest first, on one clock."""
    values = [value for _, value in readings]
    slope = None
    if len(readings) >= MIN_SAMPLES:
        with contextlib.suppress(statistics.StatisticsError):  # all have the same time
            slope = statistics.linear_regression(*zip(*readings, strict=True)).slope
    return TemperatureTrend(
        gpu=gpu,
        minutes=minutes,
        samples=len(values),
        current_c=values[-1] if values else None,
        minimum_c=min(values, default=None),
        maximum_c=max(values, default=None),
        average_c=sum(values) / len(values) if values else None,
        slope_c_per_min=None if slope is None else slope * 60,
        trend=_direction(slope, readings),
    )


def _direction(slope: float | None, readings: Sequence[tuple[float, float]]) -> Direction:
    """Choose the direction of the line and of the present temperature, if both are the same.

    So a rising temperature is never at its minimum, nor a falling one at its maximum.
    """
    if slope is None:
        return Direction.UNKNOWN
    values = [value for _, value in readings]
    change = slope * (readings[-1][0] - readings[0][0])
    above_mean = values[-1] - sum(values) / len(values)
    if change >= MIN_CHANGE_C and above_mean > 0:
        return Direction.RISING
    if change <= -MIN_CHANGE_C and above_mean < 0:
        return Direction.FALLING
    is_stable = max(values) - min(values) < STABLE_RANGE_C
    return Direction.STABLE if is_stable else Direction.VARYING
