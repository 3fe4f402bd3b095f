"""The tables of a history, and how a file with them is opened."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

from sentinel.api.history.recorder import MEANS, RANGED, SAMPLE

#: The names under which SQLite has the file, and the memory that takes its place.
DISK, MEMORY = "disk", "main"
#: The version of the tables; a file of a newer one is set aside.
VERSION = 2
#: By this number in its header, a file is ours: "SNTL".
_OURS = 0x534E544C
#: SQLite's own default, which is said so that bounds can be reckoned with it; in bytes.
PAGE = 4096
#: The log beside the file is cut to so many bytes when it was folded into the file.
_LOG = 4 * 2**20
#: Another service may still be writing its last lines; so long is waited for it, in seconds.
PATIENCE = 2.0


def _ranged(name: str) -> tuple[str, str, str]:
    """Return the columns of the mean, the least and the most."""
    stem, _, unit = name.rpartition("_")
    return name, f"{stem}_min_{unit}", f"{stem}_max_{unit}"


#: The columns of a minute after gpu, tick, at and n, which is how many seconds there are in it.
MINUTE = (
    *(column for name in RANGED for column in _ranged(name)),
    "energy_j",
    *MEANS,
    "health",
)

# A tick is a second of the time during which a history was written: it goes on where the one before
# ended, whatever the clock on the wall does. Rows are found by `at`, which is the wall's, and go by
# their tick. What is written last is at the end of each table, so few pages change at a time.
_TABLES = f"""
CREATE TABLE {{0}}.gpus (
    gpu INTEGER PRIMARY KEY, uuid TEXT NOT NULL, idx INTEGER NOT NULL, name TEXT NOT NULL
);
CREATE TABLE {{0}}.seconds (
    tick INTEGER NOT NULL, gpu INTEGER NOT NULL, at INTEGER NOT NULL,
    {", ".join(SAMPLE)},
    PRIMARY KEY (tick, gpu)
) WITHOUT ROWID;
CREATE TABLE {{0}}.minutes (
    gpu INTEGER NOT NULL, tick INTEGER NOT NULL, at INTEGER NOT NULL, n INTEGER NOT NULL,
    {", ".join(MINUTE)},
    PRIMARY KEY (gpu, tick)
) WITHOUT ROWID;
CREATE TABLE {{0}}.events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, name TEXT NOT NULL, gpu INTEGER, line TEXT NOT NULL
);
CREATE INDEX {{0}}.events_at ON events (at);
CREATE TABLE {{0}}.uses (
    began REAL NOT NULL, gpu INTEGER NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL,
    ours INTEGER NOT NULL, who TEXT, user TEXT, until REAL NOT NULL, open INTEGER NOT NULL,
    PRIMARY KEY (began, gpu, pid, started)
) WITHOUT ROWID;
"""


class BadFileError(Exception):
    """A file is no history, or is none any more; the message says in what way."""


def number_of(uuid: str) -> int:
    """Return the number that stands for a GPU: made of its UUID, so it is the same everywhere."""
    return int.from_bytes(hashlib.blake2b(uuid.encode(), digest_size=6).digest(), "big")


def create(connection: sqlite3.Connection, schema: str) -> None:
    """Make the tables, all or none.

    Raises:
        sqlite3.Error: They cannot be made.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES.format(schema).split(";")[:-1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA {schema}.application_id = {_OURS}")
        connection.execute(f"PRAGMA {schema}.user_version = {VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def room(size: int) -> int:
    """Return how many bytes a file may have that may have ``size`` with the log beside it."""
    return max(0, size - 2 * _LOG)


def attach(connection: sqlite3.Connection, path: Path, size: int) -> None:
    """Open a file beside the memory; one that is not there is made, for us alone to read.

    Args:
        connection: Has no such file yet.
        path: The file.
        size: It may have so many bytes, with its log.

    Raises:
        BadFileError: It is no history, is of a newer version, or is not whole.
        sqlite3.Error: It cannot be opened, written or made.
        OSError: So, too.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection.execute(f"ATTACH DATABASE ? AS {DISK}", (str(path),))
    try:
        _check(connection)
        connection.execute(f"PRAGMA {DISK}.journal_mode = WAL")
        connection.execute(f"PRAGMA {DISK}.synchronous = NORMAL")
        connection.execute(f"PRAGMA {DISK}.journal_size_limit = {_LOG}")
        connection.execute(f"PRAGMA {DISK}.max_page_count = {max(1, room(size) // PAGE)}")
    except BaseException:
        detach(connection)
        raise


def detach(connection: sqlite3.Connection) -> None:
    """Let go of the file."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"DETACH DATABASE {DISK}")


def _check(connection: sqlite3.Connection) -> None:
    """Find out whether the file is a whole history of ours, and make the tables of a new one."""
    (ours,) = connection.execute(f"PRAGMA {DISK}.application_id").fetchone()
    (version,) = connection.execute(f"PRAGMA {DISK}.user_version").fetchone()
    (tables,) = connection.execute(f"SELECT count(*) FROM {DISK}.sqlite_master").fetchone()
    if not tables:
        connection.execute(f"PRAGMA {DISK}.page_size = {PAGE}")
        connection.execute(f"PRAGMA {DISK}.auto_vacuum = INCREMENTAL")
        create(connection, DISK)
        return
    if ours != _OURS:
        raise BadFileError("it is a database of something else")
    if version != VERSION:
        raise BadFileError(f"it is of version {version}, and {VERSION} is known here")
    (found,) = connection.execute(f"PRAGMA {DISK}.quick_check(1)").fetchone()
    if found != "ok":
        raise BadFileError(f"it is not whole: {found}")
