"""The history's database: a file, and memory while the file cannot be written."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sentinel.api.history import retention
from sentinel.api.history.queries import Source
from sentinel.api.history.recorder import SAMPLE_COLUMNS, Batch
from sentinel.api.history.schema import (
    DISK,
    LOCK_TIMEOUT_S,
    MEMORY,
    MINUTE_COLUMNS,
    PAGE_BYTES,
    InvalidFileError,
    attach,
    create,
    database_bytes,
    detach,
    gpu_key,
)
from sentinel.api.history.usage import MAX_GAP_S, Use
from sentinel.host.files.paths import identity
from sentinel.host.files.regular_file import set_aside

T = TypeVar("T")
Row = tuple[Any, ...]

#: The size of the database in memory: the last hour of a dozen GPUs, and more of fewer.
MEMORY_BYTES = 16 * 2**20
#: The pause after an error of the file.
_RETRY_S = 5.0
#: The longest pause between two processes without a gap in the ticks, in seconds.
_MAX_PAUSE_S = 60
#: SQLite's permanent errors: SQLITE_CORRUPT and SQLITE_NOTADB.
_PERMANENT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Database:
    """The file and the memory as one database, for use in one thread.

    Args:
        path: The file; None keeps everything in memory.
        size: The file's maximum size in bytes.
    """

    def __init__(self, path: Path | None, size: int) -> None:
        self._path = path
        self._size = size
        self._connection = sqlite3.connect(":memory:", isolation_level=None, timeout=LOCK_TIMEOUT_S)
        create(self._connection, MEMORY)
        self._connection.execute(f"PRAGMA {MEMORY}.max_page_count = {MEMORY_BYTES // PAGE_BYTES}")
        #: The ticks of each database minus the monotonic clock.
        self._tick_offset = {MEMORY: 0}
        #: The first tick of each that this process writes.
        self._first_tick = {MEMORY: 0}
        #: The identities of the file and its write-ahead log, and whether the file had content.
        self._file: tuple[int, int] | None = None
        self._wal: tuple[int, int] | None = None
        self._has_pages = False
        self._retry_at = -math.inf
        self._warned = False
        self._has_unsaved = False
        #: Warnings about the file, until the caller takes them.
        self.warnings: list[str] = []
        #: Uses that were current at the last write, until the caller takes them.
        self.resumed: list[Use] = []

    @property
    def _attached(self) -> bool:
        return DISK in self._tick_offset

    def close(self) -> None:
        """Close the database; it cannot be used afterwards."""
        self._connection.close()

    def open(self, now: float, wall: float) -> None:
        """Open the file if necessary, and move the rows in memory into it.

        Args:
            now: The time of the monotonic clock.
            wall: The same time in seconds since the epoch.
        """
        if self._path is None or now < self._retry_at:
            return
        try:
            if self._attached:
                self._check_file(self._path, now)
            if not self._attached:
                self._attach(self._path, now, wall)
            if self._has_unsaved:
                self._save_memory()
        except InvalidFileError as error:
            self._set_aside(str(error), now)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, now)

    def write(self, batch: Batch, now: float) -> None:
        """Write a batch into the file or, if that fails, into memory."""
        if self._attached and now >= self._retry_at:
            try:
                self._write(DISK, batch, now)
            except sqlite3.Error as error:
                self._failed(error, now)
            else:
                self._warned = False
                self._trim_file(now)
                return
        with contextlib.suppress(sqlite3.Error):  # too large for the memory as well: it is lost
            self._write(MEMORY, batch, now)
            self._has_unsaved = self._path is not None
            self._trim(MEMORY)

    def query(self, function: Callable[[Source], T], now: float) -> T:
        """Run a query on the file and the memory, or on the memory alone.

        Raises:
            sqlite3.Error: Even the memory failed.
        """
        if self._attached:
            schemas = (DISK, MEMORY)
            try:
                return function(
                    Source(self._connection, schemas, self._tick_offset, self._first_tick)
                )
            except sqlite3.Error as error:
                self._failed(error, now)
        return function(Source(self._connection, (MEMORY,), self._tick_offset, self._first_tick))

    # --- the file ----------------------------------------------------------------------------

    def _attach(self, path: Path, now: float, wall: float) -> None:
        attach(self._connection, path, self._size)
        try:
            self._tick_offset[DISK], self._first_tick[DISK] = self._first_ticks(now)
            self._file, self._wal, self._has_pages = identity(path), None, False
            self._resume_uses(now, wall)
        except BaseException:
            self._detach()
            raise

    def _check_file(self, path: Path, now: float) -> None:
        """Notice that another program removed, replaced or truncated what is open."""
        wal = identity(_beside(path, "-wal"))
        if identity(path) != self._file:
            self.warnings.append(
                f"{path}: another program removed or replaced it; a new one is used"
            )
            self._detach()
        elif path.stat().st_size < PAGE_BYTES and self._has_pages:
            self._set_aside("another program truncated it", now)
        elif wal != self._wal and self._wal is not None:
            # SQLite goes on in the removed file, which only it can read: its rows are saved.
            result = "its readings were saved"
            try:
                self._connection.execute(f"PRAGMA {DISK}.wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                result = f"its readings are lost: {error}"
            self.warnings.append(f"{path}-wal: another program removed or replaced it; {result}")
            self._detach()
        else:
            self._wal = wal
            self._has_pages = self._has_pages or path.stat().st_size >= PAGE_BYTES

    def _first_ticks(self, now: float) -> tuple[int, int]:
        """Compute the tick offset and the first tick that follow those in the file."""
        latest: list[int | None] = []
        first: list[int | None] = [int(now) - _MAX_PAUSE_S]
        for table in ("seconds", "minutes"):
            newest = f"SELECT max(tick) FROM {DISK}.{table}"
            oldest = f"SELECT min(tick) FROM {MEMORY}.{table}"
            latest += [row[0] for row in self._connection.execute(newest)]
            first += [row[0] for row in self._connection.execute(oldest)]
        known = [tick for tick in latest if tick is not None]
        if not known:
            return 0, 0
        first_tick = max(known) + 1
        return first_tick - min(tick for tick in first if tick is not None), first_tick

    def _resume_uses(self, now: float, wall: float) -> None:
        """Read the current uses; those that were seen too long ago have ended."""
        self._connection.execute(
            f"UPDATE {DISK}.uses SET open = 0 WHERE open AND until < ?",
            (wall - MAX_GAP_S,),
        )
        for uuid, index, began, pid, started, ours, who, user, until in self._connection.execute(
            "SELECT uuid, idx, began, pid, started, ours, who, user, until"
            f" FROM {DISK}.uses JOIN {DISK}.gpus USING (gpu) WHERE open"
        ):
            seen = min(now, now - wall + until)
            key = (bool(ours), None if pid < 0 else pid, None if started < 0 else started)
            use = Use(
                gpu=uuid,
                index=index,
                key=key,
                who=who,
                user=user,
                began=began,
                first=seen - max(0.0, until - began),
                seen=seen,
            )
            self.resumed.append(use)

    def _detach(self) -> None:
        self._tick_offset.pop(DISK, None)
        self._file = None
        with contextlib.suppress(sqlite3.Error):
            detach(self._connection)

    def _failed(self, error: sqlite3.Error | OSError, now: float) -> None:
        """Use the memory for a while, or replace a damaged file."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PERMANENT:
            self._set_aside(str(error), now)
            return
        self._retry_at = now + _RETRY_S
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        self._warn_once(f"{self._path}: cannot be written: {why}; the last hour is kept in memory")

    def _set_aside(self, why: str, now: float) -> None:
        """Rename a damaged file, so that it can be inspected, and create a new one."""
        assert self._path is not None  # noqa: S101 - a file was open
        self._detach()
        try:
            renamed = set_aside(self._path)
            for end in ("-wal", "-shm"):
                _beside(renamed, end).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    _beside(self._path, end).replace(_beside(renamed, end))
        except OSError as error:
            self._retry_at = now + _RETRY_S
            where = f"{self._path}: {why}; it cannot be renamed: {error.strerror}"
            self._warn_once(f"{where}; the last hour is kept in memory")
            return
        self._retry_at = now + _RETRY_S  # not at once: the disk may damage files
        self.warnings.append(
            f"{self._path}: {why}; it was renamed to {renamed}, and a new one is created"
        )

    def _warn_once(self, text: str) -> None:
        """Add a warning, once until a write succeeds."""
        if not self._warned:
            self.warnings.append(text)
        self._warned = True

    # --- rows --------------------------------------------------------------------------------

    def _write(self, schema: str, batch: Batch, now: float) -> None:
        """Write a batch; if the database is full, delete old rows first.

        Raises:
            sqlite3.Error: Nothing was written.
        """
        try:
            self._insert(schema, batch, now)
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            if not is_full or not self._trim(schema):
                raise
            self._insert(schema, batch, now)

    def _trim_file(self, now: float) -> None:
        """Delete old rows of the file after a write, which remains valid if this fails."""
        try:
            self._trim(DISK)
        except sqlite3.Error as error:
            self._failed(error, now)

    def _trim(self, schema: str) -> bool:
        size = MEMORY_BYTES if schema == MEMORY else database_bytes(self._size)
        return retention.trim(self._connection, schema, size)

    def _insert(self, schema: str, batch: Batch, now: float) -> None:
        """Write a batch and summarize old seconds, in one transaction."""
        offset = self._tick_offset[schema]
        with self._transaction() as execute:
            execute(_GPUS.format(schema), _gpus(batch))
            execute(_SECONDS.format(schema), _seconds(batch, offset))
            execute(_EVENTS.format(schema), _events(batch))
            execute(_DELETE_USE.format(schema), map(_use_key, batch.replaced))
            execute(_USES.format(schema), (_use(use, is_open) for use, is_open in batch.uses))
            retention.thin(self._connection, schema, int(now) + offset)

    def _save_memory(self) -> None:
        """Move all rows from memory into the file.

        Raises:
            sqlite3.Error: They stay in memory.
        """
        shift = self._tick_offset[DISK] - self._tick_offset[MEMORY]
        with self._transaction() as _:
            for table, columns in _COLUMNS.items():
                shifted = columns.replace("tick", f"tick + {shift}")
                self._connection.execute(
                    f"INSERT OR REPLACE INTO {DISK}.{table} ({columns})"
                    f" SELECT {shifted} FROM {MEMORY}.{table}"
                )
                self._connection.execute(f"DELETE FROM {MEMORY}.{table}")
        self._has_unsaved = self._warned = False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[[str, Iterable[Row]], object]]:
        """Start a transaction; yield the function that executes a statement for many rows."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.executemany
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _beside(path: Path, end: str) -> Path:
    """Return the path of a file that SQLite keeps beside a database."""
    return path.with_name(path.name + end)


# --- rows of a batch -------------------------------------------------------------------------

_COLUMNS = {
    "gpus": "gpu, uuid, idx, name",
    "seconds": f"tick, gpu, at, {', '.join(SAMPLE_COLUMNS)}",
    "minutes": f"gpu, tick, at, n, {', '.join(MINUTE_COLUMNS)}",
    "events": "at, name, gpu, line",
    "uses": "began, gpu, pid, started, ours, who, user, until, open",
}


def _into(table: str) -> str:
    """Write the statement that inserts or replaces a row of a table."""
    columns = _COLUMNS[table]
    places = ", ".join("?" for _ in columns.split(","))
    return f"INSERT OR REPLACE INTO {{0}}.{table} ({columns}) VALUES ({places})"


_SECONDS, _EVENTS, _USES = map(_into, ("seconds", "events", "uses"))
#: Part of each batch and rarely changed: unchanged rows are not written again.
_GPUS = (
    "INSERT INTO {0}.gpus (gpu, uuid, idx, name) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET idx = excluded.idx, name = excluded.name"
    " WHERE idx != excluded.idx OR name != excluded.name"
)
_DELETE_USE = "DELETE FROM {0}.uses WHERE began = ? AND gpu = ? AND pid = ? AND started = ?"


def _gpus(batch: Batch) -> Iterator[Row]:
    for uuid, (index, name) in batch.gpus.items():
        yield gpu_key(uuid), uuid, index, name


def _seconds(batch: Batch, offset: int) -> Iterator[Row]:
    for (second, uuid), (at, values) in batch.samples.items():
        yield second + offset, gpu_key(uuid), at, *values


def _events(batch: Batch) -> Iterator[Row]:
    for at, name, uuid, line in batch.events:
        yield at, name, None if uuid is None else gpu_key(uuid), line


def _use_key(use: Use) -> Row:
    _, pid, started = use.key
    # Unknown is -1, since a primary key has no NULL; a stressor's start is always unknown.
    pid = -1 if pid is None else pid
    return use.began, gpu_key(use.gpu), pid, -1 if started is None else started


def _use(use: Use, is_open: bool) -> Row:  # noqa: FBT001 - a pair, as in a batch
    return *_use_key(use), int(use.key[0]), use.who, use.user, use.until, int(is_open)
