"""The tables of the history: their columns, how a file gets them, and how rows enter and leave."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentinel.api.history_recorder import (
    MAX_GAP_S,
    MEANS,
    RANGED,
    READING_MAX_AGE_S,
    SAMPLE_COLUMNS,
    Batch,
    Use,
)
from sentinel.host.regular_file import open_regular

Row = tuple[Any, ...]

#: The version of the tables. A file of another version is set aside.
VERSION = 1
#: The application id in the file's header: "SNTL".
_APPLICATION_ID = 0x534E544C
#: SQLite's default, set explicitly so that sizes can be computed from it.
PAGE_BYTES = 4096
#: The size to which the write-ahead log is cut after a checkpoint.
_WAL_BYTES = 4 * 2**20
#: The time for another API process to finish its last write.
_LOCK_TIMEOUT_S = 2.0

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

#: Part of each batch and rarely changed: unchanged rows are not written again.
_GPU = (
    "INSERT INTO gpus (gpu, uuid, idx, name) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET idx = excluded.idx, name = excluded.name"
    " WHERE idx != excluded.idx OR name != excluded.name"
)
_DELETE_USE = "DELETE FROM uses WHERE began = ? AND gpu = ? AND pid = ? AND started = ?"
_SUMMARY = ", ".join(
    [
        *(f"avg({name}), min({name}), max({name})" for name in RANGED),
        "sum(energy_j)",
        *(f"avg({name})" for name in MEANS),
        "max(health)",
    ]
)

# The energy of a second is that since the previous reading: a GPU may be polled every two seconds,
# so not each second has a reading. After a longer gap the energy is not known, and a reading counts
# for its own second only. Before the first second is the last minute.
_LAST_MINUTE = "(SELECT max(tick) FROM minutes AS minute WHERE minute.gpu = second.gpu)"
_BEFORE = f"coalesce(lag(tick) OVER (PARTITION BY gpu ORDER BY tick), {_LAST_MINUTE})"
_IS_GAP = f"{_BEFORE} IS NULL OR tick - {_BEFORE} > {READING_MAX_AGE_S}"
_ENERGY = f"power_w * (CASE WHEN {_IS_GAP} THEN 1 ELSE tick - {_BEFORE} END) AS energy_j"
#: The seconds with their energy.
SECONDS_WITH_ENERGY = f"SELECT *, {_ENERGY} FROM seconds AS second"


def _range_columns(name: str) -> tuple[str, str, str]:
    """Name the columns of mean, minimum and maximum."""
    stem, _, unit = name.rpartition("_")
    return name, f"{stem}_min_{unit}", f"{stem}_max_{unit}"


#: The columns of a minute after gpu, tick, at and n, the number of its seconds.
MINUTE_COLUMNS = (
    *(column for name in RANGED for column in _range_columns(name)),
    "energy_j",
    *MEANS,
    "health",
)

# A tick is a second in which a history was written. Ticks continue where the previous process
# ended, whatever the wall clock does. Rows are found by `at`, of the wall clock, and expire by
# their tick. New rows are at the end of each table, so few pages change at a time.
_TABLES = f"""
CREATE TABLE gpus (
    gpu INTEGER PRIMARY KEY, uuid TEXT NOT NULL, idx INTEGER NOT NULL, name TEXT NOT NULL
);
CREATE TABLE seconds (
    tick INTEGER NOT NULL, gpu INTEGER NOT NULL, at INTEGER NOT NULL,
    {", ".join(SAMPLE_COLUMNS)},
    PRIMARY KEY (tick, gpu)
) WITHOUT ROWID;
CREATE TABLE minutes (
    gpu INTEGER NOT NULL, tick INTEGER NOT NULL, at INTEGER NOT NULL, n INTEGER NOT NULL,
    {", ".join(MINUTE_COLUMNS)},
    PRIMARY KEY (gpu, tick)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, name TEXT NOT NULL, gpu INTEGER, line TEXT NOT NULL
);
CREATE INDEX events_at ON events (at);
CREATE TABLE uses (
    began REAL NOT NULL, gpu INTEGER NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL,
    ours INTEGER NOT NULL, who TEXT, user TEXT, until REAL NOT NULL, open INTEGER NOT NULL,
    PRIMARY KEY (began, gpu, pid, started)
) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


#: The columns of each table that rows come with.
_COLUMNS = {
    "gpus": ("gpu", "uuid", "idx", "name"),
    "seconds": ("tick", "gpu", "at", *SAMPLE_COLUMNS),
    "minutes": ("gpu", "tick", "at", "n", *MINUTE_COLUMNS),
    "events": ("at", "name", "gpu", "line"),
    "uses": ("began", "gpu", "pid", "started", "ours", "who", "user", "until", "open"),
}
#: Insert or replace a row.
_INSERT = {
    table: f"INSERT OR REPLACE INTO {table} ({', '.join(columns)})"
    f" VALUES ({', '.join('?' * len(columns))})"
    for table, columns in _COLUMNS.items()
}


class InvalidFileError(Exception):
    """The file is not an intact history; the message says in what way."""


# --- a database ------------------------------------------------------------------------------


def open_memory(size: int) -> sqlite3.Connection:
    """Open an empty database in memory, of at most ``size`` bytes."""
    connection = _connect(":memory:")
    _create(connection)
    _limit_size(connection, size)
    return connection


def open_file(path: Path, size: int) -> sqlite3.Connection:
    """Open the file of a history; create it if it does not exist, with mode 0600.

    Args:
        path: The file.
        size: Its maximum size in bytes, without the write-ahead log.

    Raises:
        InvalidFileError: It is not a history, of another version, or damaged.
        sqlite3.Error: It cannot be opened, written or created.
        OSError: It cannot be opened or created.
    """
    os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
    connection = _connect(str(path))
    try:
        _prepare(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        _limit_size(connection, size)
    except BaseException:
        connection.close()
        raise
    return connection


def database_bytes(size: int) -> int:
    """Compute the size of the database file, if it and its write-ahead log may use ``size``."""
    return max(0, size - 2 * _WAL_BYTES)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run statements in one transaction, which is rolled back after an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, isolation_level=None, timeout=_LOCK_TIMEOUT_S)


def _limit_size(connection: sqlite3.Connection, size: int) -> None:
    """Set the size in bytes beyond which a write fails with SQLITE_FULL."""
    connection.execute(f"PRAGMA max_page_count = {max(1, size // PAGE_BYTES)}")


def _create(connection: sqlite3.Connection) -> None:
    """Create all tables, or none."""
    with transaction(connection):
        for statement in _TABLES.split(";")[:-1]:
            connection.execute(statement)


def _prepare(connection: sqlite3.Connection) -> None:
    """Check the file, and create the tables of a new one."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _create(connection)
        return
    if application_id != _APPLICATION_ID:
        raise InvalidFileError("it is the database of another application")
    if version != VERSION:
        raise InvalidFileError(f"its version is {version}; supported is {VERSION}")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise InvalidFileError(f"it is damaged: {found}")


# --- rows enter ------------------------------------------------------------------------------


def gpu_key(uuid: str) -> int:
    """Derive a GPU's key from its UUID, so that it is the same in every file."""
    return int.from_bytes(hashlib.blake2b(uuid.encode(), digest_size=6).digest(), "big")


def insert(batch: Batch, now: float, tick_offset: int, connection: sqlite3.Connection) -> None:
    """Insert the rows of a batch, and summarize old ones.

    Args:
        batch: The rows.
        now: The time of the monotonic clock.
        tick_offset: The ticks of the database minus the monotonic clock.
        connection: A connection in a transaction.

    Raises:
        sqlite3.Error: The database failed.
    """
    execute = connection.executemany
    execute(_GPU, ((gpu_key(uuid), uuid, *gpu) for uuid, gpu in batch.gpus.items()))
    execute(
        _INSERT["seconds"],
        (
            (second + tick_offset, gpu_key(uuid), at, *values)
            for (second, uuid), (at, values) in batch.samples.items()
        ),
    )
    execute(
        _INSERT["events"],
        ((at, name, uuid and gpu_key(uuid), line) for at, name, uuid, line in batch.events),
    )
    execute(_DELETE_USE, map(_use_key, batch.replaced))
    execute(_INSERT["uses"], (_use(use, is_open=True) for use in batch.current))
    execute(_INSERT["uses"], (_use(use, is_open=False) for use in batch.ended))
    _thin(connection, int(now) + tick_offset)


def _use_key(use: Use) -> Row:
    _, pid, started = use.key
    # Unknown is -1, since a primary key has no NULL; a stressor's start is always unknown.
    pid = -1 if pid is None else pid
    return use.began, gpu_key(use.gpu), pid, -1 if started is None else started


def _use(use: Use, *, is_open: bool) -> Row:
    return *_use_key(use), int(use.key[0]), use.who, use.user, use.until, int(is_open)


def copy(source: sqlite3.Connection, tick_offset: int, target: sqlite3.Connection) -> None:
    """Copy all rows to a database with earlier ones, whose current uses have ended otherwise.

    Args:
        source: The connection to read.
        tick_offset: The ticks of the target minus those of the source.
        target: A connection in a transaction.

    Raises:
        sqlite3.Error: A database failed.
    """
    target.execute("UPDATE uses SET open = 0 WHERE open")
    for table, columns in _COLUMNS.items():
        values = ", ".join(columns).replace("tick", f"tick + {tick_offset}")
        target.executemany(_INSERT[table], source.execute(f"SELECT {values} FROM {table}"))


def current_uses(connection: sqlite3.Connection, now: float, wall: float) -> list[Use]:
    """Read the current uses that were seen a short time ago.

    Args:
        connection: The connection.
        now: The time of the monotonic clock.
        wall: The same time in seconds since the epoch.

    Raises:
        sqlite3.Error: The database failed.
    """
    found = connection.execute(
        "SELECT uuid, idx, began, pid, started, ours, who, user, until"
        " FROM uses JOIN gpus USING (gpu) WHERE open AND until >= ?",
        (wall - MAX_GAP_S,),
    )
    uses = []
    for uuid, index, began, pid, started, ours, who, user, until in found:
        seen = min(now, now - wall + until)
        use = Use(
            gpu=uuid,
            index=index,
            key=(bool(ours), None if pid < 0 else pid, None if started < 0 else started),
            who=who,
            user=user,
            began=began,
            first=seen - max(0.0, until - began),
            seen=seen,
        )
        uses.append(use)
    return uses


def ticks(connection: sqlite3.Connection) -> tuple[int | None, int | None]:
    """Read the ticks of the first and the last reading, or None without any."""
    readings = "SELECT tick FROM seconds UNION ALL SELECT tick FROM minutes"
    first, last = connection.execute(f"SELECT min(tick), max(tick) FROM ({readings})").fetchone()
    return first, last


# --- seconds become minutes ------------------------------------------------------------------


def _thin(connection: sqlite3.Connection, now: int) -> None:
    """Summarize seconds older than an hour as minutes.

    Ages are in ticks, not of the wall clock: if that jumps, rows neither expire early nor stay
    forever.

    Args:
        connection: A connection in a transaction.
        now: The current tick.

    Raises:
        sqlite3.Error: The database failed.
    """
    (oldest,) = connection.execute("SELECT min(tick) FROM seconds").fetchone()
    until = now - SECONDS_RETENTION
    if oldest is None or oldest > until - THIN_INTERVAL:
        return
    connection.execute(
        f"INSERT OR REPLACE INTO minutes (gpu, tick, at, n, {', '.join(MINUTE_COLUMNS)})"
        f" SELECT gpu, max(tick), at / 60 * 60, count(*), {_SUMMARY}"
        f" FROM ({SECONDS_WITH_ENERGY} WHERE tick <= ?) GROUP BY gpu, at / 60",
        (until,),
    )
    connection.execute("DELETE FROM seconds WHERE tick <= ?", (until,))
    _delete_minutes(connection, now - MINUTES_RETENTION)


# --- the oldest rows make room ---------------------------------------------------------------


def used_bytes(connection: sqlite3.Connection) -> int:
    """Compute the size of a database without its free pages."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages - free) * PAGE_BYTES


def trim(connection: sqlite3.Connection, size: int) -> bool:
    """Delete the oldest rows of a database that uses nearly ``size`` bytes.

    Of readings and events, the kind that uses more is deleted first.

    Returns:
        Whether that was necessary.

    Raises:
        sqlite3.Error: The database failed.
    """
    if used_bytes(connection) <= _HIGH_WATER * size:
        return False
    readings = _count(connection, "minutes") * _MINUTE_BYTES
    readings += _count(connection, "seconds") * _SECOND_BYTES
    while (used := used_bytes(connection)) > _LOW_WATER * size:
        first, second = _delete_events, _delete_readings
        if readings > used / 2:
            first, second = second, first
        deleted = first(connection) or second(connection)
        if not deleted:
            break
        readings -= deleted
    # As a script: the pragma needs a step for each page, and execute() makes only one.
    connection.executescript("PRAGMA incremental_vacuum;")
    return True


def _count(connection: sqlite3.Connection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0])


def _delete_events(connection: sqlite3.Connection) -> int:
    """Delete the oldest events, or else the oldest ended uses.

    Returns:
        0 without any, else a negative number: no bytes of readings are deleted.
    """
    for table, key, where in (("events", "id", "1"), ("uses", "began", "NOT open")):
        oldest = f"SELECT {key} FROM {table} WHERE {where} ORDER BY {key}"
        done = connection.execute(
            f"DELETE FROM {table}"
            f" WHERE {where} AND {key} IN ({oldest} LIMIT {_EVENTS_PER_DELETION})"
        )
        if done.rowcount:
            return -1
    return 0


def _delete_readings(connection: sqlite3.Connection) -> int:
    """Delete the oldest minutes, or else the oldest seconds; return their approximate size."""
    (oldest,) = connection.execute("SELECT min(tick) FROM minutes").fetchone()
    if oldest is not None:
        return _MINUTE_BYTES * _delete_minutes(connection, oldest + _TICKS_PER_DELETION)
    oldest = "(SELECT min(tick) FROM seconds)"
    done = connection.execute(f"DELETE FROM seconds WHERE tick <= {oldest} + {THIN_INTERVAL}")
    return _SECOND_BYTES * done.rowcount


def _delete_minutes(connection: sqlite3.Connection, until: int) -> int:
    """Delete the minutes up to a tick, GPU by GPU as they are stored; return their number."""
    deleted = 0
    for (gpu,) in connection.execute("SELECT gpu FROM gpus").fetchall():
        done = connection.execute("DELETE FROM minutes WHERE gpu = ? AND tick <= ?", (gpu, until))
        deleted += done.rowcount
    return deleted
