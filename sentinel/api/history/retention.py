"""Keeps a history small: seconds become minutes, minutes go, and what is oldest makes room."""

from __future__ import annotations

import sqlite3

from sentinel.api.history.recorder import MEANS, RANGED, STALE
from sentinel.api.history.schema import MINUTE, PAGE

#: For how long there is a reading for each second, and then for each minute, in ticks.
SECONDS_FOR = 3600
MONTH = 31 * 86_400
#: Minutes are made of so many seconds at a time: one at the edge may come out in two rows.
THINNED_EVERY = 600

#: Where more of the room is used than this, it is brought below the other.
_FULL, _ROOMY = 0.95, 0.90
#: What goes in one transaction, so that the log beside the file stays small.
_EVENTS_AT_ONCE = 100
_TICKS_AT_ONCE = 6 * 3600
#: About how many bytes a row of seconds and one of minutes have.
_SECOND, _MINUTE = 150, 230

_MADE = ", ".join(
    [
        *(f"avg({name}), min({name}), max({name})" for name in RANGED),
        "sum(energy_j)",
        *(f"avg({name})" for name in MEANS),
        "max(health)",
    ]
)


def energy(schema: str) -> str:
    """Return the column of ``seconds AS second`` that is the joules since the reading before.

    There is not one for each second: a GPU may be polled every two. After a longer gap nobody knows
    what was used meanwhile, and a reading is of its own second alone.
    """
    # The one before the first second is the last of the minutes.
    thinned = f"(SELECT max(tick) FROM {schema}.minutes AS minute WHERE minute.gpu = second.gpu)"
    before = f"coalesce(lag(tick) OVER (PARTITION BY gpu ORDER BY tick), {thinned})"
    far = f"{before} IS NULL OR tick - {before} > {STALE}"
    return f"power_w * (CASE WHEN {far} THEN 1 ELSE tick - {before} END) AS energy_j"


def thin(connection: sqlite3.Connection, schema: str, now: int) -> bool:
    """Make minutes of the seconds of more than an hour ago; return whether there were some.

    It goes by ticks and not by the wall's clock: where that jumps, nothing is lost and nothing
    stays for ever.

    Args:
        connection: Is in a transaction.
        schema: Which tables.
        now: The tick of this moment.

    Raises:
        sqlite3.Error: It cannot be done.
    """
    (oldest,) = connection.execute(f"SELECT min(tick) FROM {schema}.seconds").fetchone()
    until = now - SECONDS_FOR
    if oldest is None or oldest > until - THINNED_EVERY:
        return False
    connection.execute(
        f"INSERT OR REPLACE INTO {schema}.minutes (gpu, tick, at, n, {', '.join(MINUTE)})"
        f" SELECT gpu, max(tick), at / 60 * 60, count(*), {_MADE}"
        f" FROM (SELECT *, {energy(schema)} FROM {schema}.seconds AS second WHERE tick <= ?)"
        " GROUP BY gpu, at / 60",
        (until,),
    )
    connection.execute(f"DELETE FROM {schema}.seconds WHERE tick <= ?", (until,))
    _forget_minutes(connection, schema, now - MONTH)
    return True


def used(connection: sqlite3.Connection, schema: str) -> int:
    """Return how many bytes of a database are in use."""
    (pages,) = connection.execute(f"PRAGMA {schema}.page_count").fetchone()
    (free,) = connection.execute(f"PRAGMA {schema}.freelist_count").fetchone()
    return int(pages - free) * PAGE


def trim(connection: sqlite3.Connection, schema: str, size: int) -> bool:
    """Make room where a database uses nearly ``size`` bytes; return whether it was necessary.

    Of readings and events, whichever take more lose their oldest.

    Raises:
        sqlite3.Error: It cannot be done.
    """
    if used(connection, schema) <= _FULL * size:
        return False
    readings = _count(connection, schema, "minutes") * _MINUTE
    readings += _count(connection, schema, "seconds") * _SECOND
    while (taken := used(connection, schema)) > _ROOMY * size:
        first, second = _forget_events, _forget_readings
        if readings > taken / 2:
            first, second = second, first
        gone = first(connection, schema) or second(connection, schema)
        if not gone:
            break
        readings -= gone
    # As a script, since it takes a step for each page, and a statement without rows has only one.
    connection.executescript(f"PRAGMA {schema}.incremental_vacuum;")
    return True


def _count(connection: sqlite3.Connection, schema: str, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
    return int(row[0])


def _forget_events(connection: sqlite3.Connection, schema: str) -> int:
    """Delete the oldest events, or else the oldest uses that ended; return 0 if there are none.

    Returns a number below 0 where there were some: none of the bytes of readings are gone.
    """
    oldest = f"SELECT id FROM {schema}.events ORDER BY id LIMIT {_EVENTS_AT_ONCE}"
    done = connection.execute(f"DELETE FROM {schema}.events WHERE id IN ({oldest})")
    if done.rowcount:
        return -1
    oldest = (
        f"SELECT began FROM {schema}.uses WHERE NOT open ORDER BY began LIMIT {_EVENTS_AT_ONCE}"
    )
    done = connection.execute(f"DELETE FROM {schema}.uses WHERE NOT open AND began IN ({oldest})")
    return -1 if done.rowcount else 0


def _forget_readings(connection: sqlite3.Connection, schema: str) -> int:
    """Delete the oldest minutes, or else the oldest seconds; return about how many bytes."""
    for table, size in (("minutes", _MINUTE), ("seconds", _SECOND)):
        row = connection.execute(f"SELECT min(tick) FROM {schema}.{table}").fetchone()
        if row[0] is None:
            continue
        if table == "minutes":
            return size * _forget_minutes(connection, schema, row[0] + _TICKS_AT_ONCE)
        until = row[0] + THINNED_EVERY
        done = connection.execute(f"DELETE FROM {schema}.seconds WHERE tick <= ?", (until,))
        return size * done.rowcount
    return 0


def _forget_minutes(connection: sqlite3.Connection, schema: str, until: int) -> int:
    """Delete the minutes up to a tick, of each GPU where they stand; return how many."""
    gone = 0
    for (gpu,) in connection.execute(f"SELECT gpu FROM {schema}.gpus").fetchall():
        done = connection.execute(
            f"DELETE FROM {schema}.minutes WHERE gpu = ? AND tick <= ?",
            (gpu, until),
        )
        gone += done.rowcount
    return gone
