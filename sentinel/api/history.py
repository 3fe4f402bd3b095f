"""The history: its database, and the thread that writes it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from sentinel.api import history_tables
from sentinel.api.bodies import ProblemError
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.history_recorder import Batch, Recorder, TimedRecord
from sentinel.api.history_tables import PAGE_BYTES, InvalidFileError, transaction
from sentinel.api.turns import Turns
from sentinel.host.paths import identity
from sentinel.host.regular_file import set_aside
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView

T = TypeVar("T")

#: The file's name in the state folder.
FILE_NAME = "history.db"
#: The size of a history without a file: the last hour of a dozen GPUs, and more of fewer.
MEMORY_BYTES = 16 * 2**20

#: The pause after an error of the file.
_RETRY_S = 5.0
#: The longest pause between two processes without a gap in the ticks, in seconds.
_MAX_PAUSE_S = 60
#: SQLite's permanent errors: SQLITE_CORRUPT and SQLITE_NOTADB.
_PERMANENT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

#: The interval of writes; a killed API process loses this much.
WRITE_INTERVAL_S = 2.0
#: Bounds of the queue for a slow disk: records, and bytes of events. The oldest are dropped.
_MAX_QUEUED = 8192
_MAX_QUEUED_BYTES = 4 * 2**20
#: The time for a query, and for the last write.
_QUERY_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 0.5
#: The duration of a write after which a warning is logged.
_STUCK_AFTER_S = 30.0


class Database:
    """One database, for use in one thread.

    While the file cannot be written, a database in memory stands in for it: queries see what was
    recorded since, and the file gets it once it can be written.

    Args:
        path: The file; None keeps everything in memory.
        size: The file's maximum size in bytes, with its write-ahead log.
    """

    def __init__(self, path: Path | None, size: int) -> None:
        self._path = path
        self._size = history_tables.database_bytes(size)
        self._recorder = Recorder()
        self._memory = history_tables.open_memory(MEMORY_BYTES)
        #: The open file, or None; its identity, and that of its write-ahead log.
        self._file: sqlite3.Connection | None = None
        self._file_identity: tuple[int, int] | None = None
        self._wal_identity: tuple[int, int] | None = None
        #: The ticks of the file minus those in memory, which are of the monotonic clock.
        self._tick_offset = 0
        #: Whether the memory is in use.
        self._in_memory = True
        self._retry_at = -math.inf
        self._warned = False
        #: Warnings about the file, until the caller takes them.
        self.warnings: list[str] = []

    def close(self) -> None:
        """Close the database; it cannot be used afterwards."""
        self._memory.close()
        if self._file is not None:
            self._file.close()

    def open(self, now: float, wall: float) -> None:
        """Open the file if necessary, and move the rows in memory to it.

        Args:
            now: The time of the monotonic clock.
            wall: The same time in seconds since the epoch.
        """
        if self._path is None or now < self._retry_at:
            return
        try:
            if self._file is not None:
                self._check_file(self._path, self._file)
            if self._file is None:
                self._file = self._open(self._path, now, wall)
            if self._in_memory:
                self._move_to(self._file)
        except InvalidFileError as error:
            self._set_aside(str(error), now)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, now)

    def record(self, records: Sequence[TimedRecord], now: float, wall: float) -> None:
        """Open the file if necessary, and write views and events."""
        self.open(now, wall)
        if records:
            self.write(self._recorder.build_batch(records, now), now)

    def write(self, batch: Batch, now: float) -> None:
        """Write a batch in one transaction, and delete old rows.

        Raises:
            sqlite3.Error: Even the memory failed.
        """
        if self._file is not None and not self._in_memory:
            try:
                _write(
                    self._file,
                    self._size,
                    partial(history_tables.insert, batch, now, self._tick_offset),
                )
            except sqlite3.Error as error:
                self._failed(error, now)
            else:
                return
        _write(self._memory, MEMORY_BYTES, partial(history_tables.insert, batch, now, 0))

    def query(self, function: Callable[[sqlite3.Connection], T], now: float) -> T:
        """Run a query; if the file is damaged, on the memory that replaces it.

        Raises:
            sqlite3.Error: The file cannot be read, or even the memory failed.
        """
        if self._file is not None and not self._in_memory:
            try:
                return function(self._file)
            except sqlite3.Error as error:
                if _code(error) not in _PERMANENT:
                    raise
                self._set_aside(str(error), now)
        return function(self._memory)

    # --- the file ----------------------------------------------------------------------------

    def _open(self, path: Path, now: float, wall: float) -> sqlite3.Connection:
        file = history_tables.open_file(path, self._size)
        try:
            _, last = history_tables.ticks(file)
            first, _ = history_tables.ticks(self._memory)
            uses = history_tables.current_uses(file, now, wall)
        except BaseException:
            file.close()
            raise
        self._file_identity, self._wal_identity = identity(path), None
        earliest = int(now) - _MAX_PAUSE_S
        earliest = earliest if first is None else min(first, earliest)
        self._tick_offset = 0 if last is None else last + 1 - earliest
        for use in uses:
            self._recorder.uses.resume(use)
        return file

    def _move_to(self, file: sqlite3.Connection) -> None:
        """Use the file, with the rows that are in memory.

        Raises:
            sqlite3.Error: The file does not take them; nothing has changed.
        """
        _write(file, self._size, partial(history_tables.copy, self._memory, self._tick_offset))
        self._memory.close()
        self._memory = history_tables.open_memory(MEMORY_BYTES)
        self._in_memory = self._warned = False

    def _check_file(self, path: Path, file: sqlite3.Connection) -> None:
        """Notice that another program removed or replaced what is open.

        Raises:
            InvalidFileError: It was truncated.
        """
        wal = identity(_beside(path, "-wal"))
        if identity(path) != self._file_identity:
            self.warnings.append(
                f"{path}: another program removed or replaced it; a new one is used"
            )
            self._disconnect()
        elif path.stat().st_size < PAGE_BYTES:
            raise InvalidFileError("another program truncated it")
        elif wal != self._wal_identity and self._wal_identity is not None:
            # SQLite goes on in the removed file, which only it can read: its rows are saved.
            result = "its readings were saved"
            try:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                result = f"its readings are lost: {error}"
            self.warnings.append(f"{path}-wal: another program removed or replaced it; {result}")
            self._disconnect()
        else:
            self._wal_identity = wal

    def _disconnect(self) -> None:
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
        self._file, self._in_memory = None, True

    def _failed(self, error: sqlite3.Error | OSError, now: float) -> None:
        """Use the memory for a while, or replace a damaged file."""
        if _code(error) in _PERMANENT:
            self._set_aside(str(error), now)
            return
        self._in_memory, self._retry_at = True, now + _RETRY_S
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        self._warn_once(f"{self._path}: cannot be written: {why}; the last hour is kept in memory")

    def _set_aside(self, why: str, now: float) -> None:
        """Rename a damaged file, so that it can be inspected; a new one is created later."""
        assert self._path is not None  # noqa: S101 - a file was open
        self._disconnect()
        self._retry_at = now + _RETRY_S  # not at once: the disk may damage files
        try:
            renamed = set_aside(self._path)
            for end in ("-wal", "-shm"):
                _beside(renamed, end).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    _beside(self._path, end).replace(_beside(renamed, end))
        except OSError as error:
            where = f"{self._path}: {why}; it cannot be renamed: {error.strerror}"
            self._warn_once(f"{where}; the last hour is kept in memory")
            return
        self.warnings.append(
            f"{self._path}: {why}; it was renamed to {renamed}, and a new one is created"
        )

    def _warn_once(self, text: str) -> None:
        """Add a warning, once until a write succeeds."""
        if not self._warned:
            self.warnings.append(text)
        self._warned = True


class History:
    """The history of views and events; used in the event loop, which never waits for a disk.

    Args:
        path: The file.
        size: The file's maximum size in bytes; None keeps the last hour in memory only.
        report_warning: Called with errors of the file.
    """

    def __init__(self, path: Path, size: int | None, report_warning: Callable[[str], None]) -> None:
        self._path = None if size is None else path
        self._size = size or 0
        self._report_warning = report_warning
        self._queue: collections.deque[TimedRecord] = collections.deque(maxlen=_MAX_QUEUED)
        self._queued_bytes = 0
        self._turns = Turns()
        self._thread = ThreadPoolExecutor(1, "history")
        self._thread.submit(int)  # starts the thread: a host without one is known at once
        #: Used in the thread only.
        self._database: Database | None = None

    def add(self, record: GpuView | LoggedEvent) -> None:
        """Queue a view or an event."""
        if isinstance(record, LoggedEvent):
            size = len(record.text)
            self._queued_bytes = self._queued_bytes + size if self._queue else size
            if self._queued_bytes > _MAX_QUEUED_BYTES:
                self._queue.clear()
                self._queued_bytes = size
        self._queue.append(TimedRecord(record, time.time() - time.monotonic()))

    async def run(self) -> None:
        """Write the queue periodically, forever."""
        loop = asyncio.get_running_loop()
        while True:
            write = loop.run_in_executor(self._thread, self._flush)
            done, _ = await asyncio.wait({write}, timeout=_STUCK_AFTER_S)
            if not done:
                self._report_warning(f"the disk has not taken anything for {_STUCK_AFTER_S:g} s")
            try:
                warnings = await write
            except Exception as error:  # noqa: BLE001 - a bug costs these rows, not all later ones
                warnings = [f"a bug in sentinel, some of the history is lost: {error!r}"]
            for warning in warnings:
                self._report_warning(warning)
            await asyncio.sleep(WRITE_INTERVAL_S)

    async def query(
        self,
        function: Callable[[sqlite3.Connection], T],
        take_turn: Callable[[Turns], Awaitable[bool]],
    ) -> T:
        """Run a query on everything that was added before.

        Args:
            function: Called with the database.
            take_turn: Waits for the client's turn to read; False if the client has disconnected.

        Raises:
            ProblemError: The disk is too slow, or even the memory fails; or there is no client.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_QUERY_TIMEOUT_S):
                if not await take_turn(self._turns):
                    raise ProblemError(Code.UNAVAILABLE, "The client has disconnected.")
                try:
                    return await loop.run_in_executor(self._thread, self._read, function)
                finally:
                    self._turns.end()
        except TimeoutError:
            detail = f"The history was not read within {_QUERY_TIMEOUT_S:g} s."
            raise ProblemError(Code.UNAVAILABLE, detail) from None
        except sqlite3.Error as error:
            detail = f"The history cannot be read: {error}."
            raise ProblemError(Code.UNAVAILABLE, detail) from None

    async def close(self) -> None:
        """Write the rest of the queue, if the disk takes it at once."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await loop.run_in_executor(self._thread, lambda: self._write().close())
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- in the thread --------------------------------------------------------------------------

    def _flush(self) -> list[str]:
        """Write the queue; return warnings."""
        database = self._write()
        warnings, database.warnings = database.warnings, []
        return warnings

    def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Write the queue, then run a query.

        Raises:
            sqlite3.Error: The query failed.
        """
        return self._write().query(function, time.monotonic())

    def _write(self) -> Database:
        if self._database is None:  # created here, since SQLite binds it to this thread
            self._database = Database(self._path, self._size)
        records = []
        with contextlib.suppress(IndexError):  # empty; the event loop may have cleared it
            while True:
                records.append(self._queue.popleft())
        self._database.record(records, time.monotonic(), time.time())
        return self._database


def _write(
    connection: sqlite3.Connection, size: int, statements: Callable[[sqlite3.Connection], None]
) -> None:
    """Run statements in a transaction; if the database is full, delete old rows first.

    Raises:
        sqlite3.Error: Nothing was written.
    """
    for may_trim in (True, False):
        try:
            with transaction(connection):
                statements(connection)
        except sqlite3.Error as error:
            is_full = _code(error) == sqlite3.SQLITE_FULL
            if not (may_trim and is_full and history_tables.trim(connection, size)):
                raise
        else:
            break
    history_tables.trim(connection, size)


def _code(error: Exception) -> int:
    """Read SQLite's code of an error, without its details."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _beside(path: Path, end: str) -> Path:
    """Return the path of a file that SQLite keeps beside a database."""
    return path.with_name(path.name + end)
