"""The tables of the history, and how a file with them is opened."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

from sentinel.api.history.recorder import MEANS, RANGED, SAMPLE_COLUMNS

#: SQLite's names of the file, and of the memory that replaces it during errors.
DISK, MEMORY = "disk", "main"
#: The version of the tables. A file of another version is set aside.
VERSION = 1
#: The application id in the file's header: "SNTL".
_APPLICATION_ID = 0x534E544C
#: SQLite's default, set explicitly so that sizes can be computed from it.
PAGE_BYTES = 4096
#: The size to which the write-ahead log is cut after a checkpoint.
_WAL_BYTES = 4 * 2**20
#: The time for another API process to finish its last write.
LOCK_TIMEOUT_S = 2.0


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
CREATE TABLE {{0}}.gpus (
    gpu INTEGER PRIMARY KEY, uuid TEXT NOT NULL, idx INTEGER NOT NULL, name TEXT NOT NULL
);
CREATE TABLE {{0}}.seconds (
    tick INTEGER NOT NULL, gpu INTEGER NOT NULL, at INTEGER NOT NULL,
    {", ".join(SAMPLE_COLUMNS)},
    PRIMARY KEY (tick, gpu)
) WITHOUT ROWID;
CREATE TABLE {{0}}.minutes (
    gpu INTEGER NOT NULL, tick INTEGER NOT NULL, at INTEGER NOT NULL, n INTEGER NOT NULL,
    {", ".join(MINUTE_COLUMNS)},
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


class InvalidFileError(Exception):
    """The file is not an intact history; the message says in what way."""


def gpu_key(uuid: str) -> int:
    """Derive a GPU's key from its UUID, so that it is the same in every file."""
    return int.from_bytes(hashlib.blake2b(uuid.encode(), digest_size=6).digest(), "big")


def create(connection: sqlite3.Connection, schema: str) -> None:
    """Create all tables, or none.

    Raises:
        sqlite3.Error: They cannot be created.
    """
    statements = _TABLES.format(schema).split(";")[:-1]
    header = f"PRAGMA {schema}.application_id = {_APPLICATION_ID}"
    version = f"PRAGMA {schema}.user_version = {VERSION}"
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in (*statements, header, version):
            connection.execute(statement)
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def database_bytes(size: int) -> int:
    """Compute the size of the database file, if it and its write-ahead log may use ``size``."""
    return max(0, size - 2 * _WAL_BYTES)


def attach(connection: sqlite3.Connection, path: Path, size: int) -> None:
    """Open the file besides the memory; create it if it does not exist, with mode 0600.

    Args:
        connection: A connection without an attached file.
        path: The file.
        size: The maximum size of the file and its write-ahead log, in bytes.

    Raises:
        InvalidFileError: It is not a history, of another version, or damaged.
        sqlite3.Error: It cannot be opened, written or created.
        OSError: It cannot be opened or created.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection.execute(f"ATTACH DATABASE ? AS {DISK}", (str(path),))
    try:
        _prepare(connection)
        connection.execute(f"PRAGMA {DISK}.journal_mode = WAL")
        connection.execute(f"PRAGMA {DISK}.synchronous = NORMAL")
        connection.execute(f"PRAGMA {DISK}.journal_size_limit = {_WAL_BYTES}")
        max_pages = max(1, database_bytes(size) // PAGE_BYTES)
        connection.execute(f"PRAGMA {DISK}.max_page_count = {max_pages}")
    except BaseException:
        detach(connection)
        raise


def detach(connection: sqlite3.Connection) -> None:
    """Close the file."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"DETACH DATABASE {DISK}")


def _prepare(connection: sqlite3.Connection) -> None:
    """Check the file, and create the tables of a new one."""
    (application_id,) = connection.execute(f"PRAGMA {DISK}.application_id").fetchone()
    (version,) = connection.execute(f"PRAGMA {DISK}.user_version").fetchone()
    (tables,) = connection.execute(f"SELECT count(*) FROM {DISK}.sqlite_master").fetchone()
    if not tables:
        connection.execute(f"PRAGMA {DISK}.page_size = {PAGE_BYTES}")
        connection.execute(f"PRAGMA {DISK}.auto_vacuum = INCREMENTAL")
        create(connection, DISK)
        return
    if application_id != _APPLICATION_ID:
        raise InvalidFileError("it is the database of another application")
    if version != VERSION:
        raise InvalidFileError(f"its version is {version}; supported is {VERSION}")
    (found,) = connection.execute(f"PRAGMA {DISK}.quick_check(1)").fetchone()
    if found != "ok":
        raise InvalidFileError(f"it is damaged: {found}")
