"""Retention: seconds become minutes, minutes expire, and the oldest rows make room."""

from __future__ import annotations

import sqlite3

from sentinel.api.history.recorder import MAX_AGE_S, MEANS, RANGED
from sentinel.api.history.schema import MINUTE_COLUMNS, PAGE_BYTES

#: The retention of readings by the second and by the minute, in ticks.
SECONDS_RETENTION = 3600
MINUTES_RETENTION = 31 * 86_400
#: The ticks that are summarized at a time; a minute at the edge may become two rows.
THIN_INTERVAL = 600

#: The share of the maximum size above which rows are deleted, and the share to reach.
_HIGH_WATER, _LOW_WATER = 0.95, 0.90
#: Deletions in one transaction, so that the write-ahead log stays small.
_EVENTS_PER_DELETION = 100
_TICKS_PER_DELETION = 6 * 3600
#: Approximate sizes of rows.
_SECOND_BYTES, _MINUTE_BYTES = 150, 230

_SUMMARY = ", ".join(
    [
        *(f"avg({name}), min({name}), max({name})" for name in RANGED),
        "sum(energy_j)",
        *(f"avg({name})" for name in MEANS),
        "max(health)",
    ]
)


def energy_column(schema: str) -> str:
    """Write the column of ``seconds AS second`` with the joules since the previous reading.

    A GPU may be polled every two seconds, so not each second has a reading. After a longer gap the
    energy is not known, and a reading counts for its own second only.
    """
    # Before the first second is the last minute.
    minutes = f"{schema}.minutes AS minute WHERE minute.gpu = second.gpu"
    last_minute = f"(SELECT max(tick) FROM {minutes})"
    before = f"coalesce(lag(tick) OVER (PARTITION BY gpu ORDER BY tick), {last_minute})"
    is_gap = f"{before} IS NULL OR tick - {before} > {MAX_AGE_S}"
    return f"power_w * (CASE WHEN {is_gap} THEN 1 ELSE tick - {before} END) AS energy_j"


def thin(connection: sqlite3.Connection, schema: str, now: int) -> bool:
    """Summarize seconds older than an hour as minutes; return whether there were any.

    Ages are in ticks, not of the wall clock: if that jumps, rows neither expire early nor stay
    forever.

    Args:
        connection: A connection in a transaction.
        schema: The database.
        now: The current tick.

    Raises:
        sqlite3.Error: The database failed.
    """
    (oldest,) = connection.execute(f"SELECT min(tick) FROM {schema}.seconds").fetchone()
    until = now - SECONDS_RETENTION
    if oldest is None or oldest > until - THIN_INTERVAL:
        return False
    connection.execute(
        f"INSERT OR REPLACE INTO {schema}.minutes (gpu, tick, at, n, {', '.join(MINUTE_COLUMNS)})"
        f" SELECT gpu, max(tick), at / 60 * 60, count(*), {_SUMMARY}"
        f" FROM (SELECT *, {energy_column(schema)} FROM {schema}.seconds AS second WHERE tick <= ?)"
        " GROUP BY gpu, at / 60",
        (until,),
    )
    connection.execute(f"DELETE FROM {schema}.seconds WHERE tick <= ?", (until,))
    _delete_minutes(connection, schema, now - MINUTES_RETENTION)
    return True


def used_bytes(connection: sqlite3.Connection, schema: str) -> int:
    """Compute the size of a database without its free pages."""
    (pages,) = connection.execute(f"PRAGMA {schema}.page_count").fetchone()
    (free,) = connection.execute(f"PRAGMA {schema}.freelist_count").fetchone()
    return int(pages - free) * PAGE_BYTES


def trim(connection: sqlite3.Connection, schema: str, size: int) -> bool:
    """Delete the oldest rows of a database that uses nearly ``size`` bytes.

    Of readings and events, the kind that uses more is deleted first.

    Returns:
        Whether that was necessary.

    Raises:
        sqlite3.Error: The database failed.
    """
    if used_bytes(connection, schema) <= _HIGH_WATER * size:
        return False
    readings = _count(connection, schema, "minutes") * _MINUTE_BYTES
    readings += _count(connection, schema, "seconds") * _SECOND_BYTES
    while (used := used_bytes(connection, schema)) > _LOW_WATER * size:
        first, second = _delete_events, _delete_readings
        if readings > used / 2:
            first, second = second, first
        deleted = first(connection, schema) or second(connection, schema)
        if not deleted:
            break
        readings -= deleted
    # As a script: the pragma needs a step for each page, and execute() makes only one.
    connection.executescript(f"PRAGMA {schema}.incremental_vacuum;")
    return True


def _count(connection: sqlite3.Connection, schema: str, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
    return int(row[0])


def _delete_events(connection: sqlite3.Connection, schema: str) -> int:
    """Delete the oldest events, or else the oldest ended uses.

    Returns:
        0 without any, else a negative number: no bytes of readings are deleted.
    """
    oldest = f"SELECT id FROM {schema}.events ORDER BY id LIMIT {_EVENTS_PER_DELETION}"
    done = connection.execute(f"DELETE FROM {schema}.events WHERE id IN ({oldest})")
    if done.rowcount:
        return -1
    oldest = (
        f"SELECT began FROM {schema}.uses WHERE NOT open"
        f" ORDER BY began LIMIT {_EVENTS_PER_DELETION}"
    )
    done = connection.execute(f"DELETE FROM {schema}.uses WHERE NOT open AND began IN ({oldest})")
    return -1 if done.rowcount else 0


def _delete_readings(connection: sqlite3.Connection, schema: str) -> int:
    """Delete the oldest minutes, or else the oldest seconds; return their approximate size."""
    for table, size in (("minutes", _MINUTE_BYTES), ("seconds", _SECOND_BYTES)):
        row = connection.execute(f"SELECT min(tick) FROM {schema}.{table}").fetchone()
        if row[0] is None:
            continue
        if table == "minutes":
            return size * _delete_minutes(connection, schema, row[0] + _TICKS_PER_DELETION)
        until = row[0] + THIN_INTERVAL
        done = connection.execute(f"DELETE FROM {schema}.seconds WHERE tick <= ?", (until,))
        return size * done.rowcount
    return 0


def _delete_minutes(connection: sqlite3.Connection, schema: str, until: int) -> int:
    """Delete the minutes up to a tick, GPU by GPU as they are stored; return their number."""
    deleted = 0
    for (gpu,) in connection.execute(f"SELECT gpu FROM {schema}.gpus").fetchall():
        done = connection.execute(
            f"DELETE FROM {schema}.minutes WHERE gpu = ? AND tick <= ?",
            (gpu, until),
        )
        deleted += done.rowcount
    return deleted
