"""The history: its database, the rows that wait for it, and the thread that writes them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sentinel.api import history_tables
from sentinel.api.bodies import ProblemError
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.history_queries import Source
from sentinel.api.history_recorder import MAX_GAP_S, Batch, Recorder, TimedRecord, Use
from sentinel.api.history_tables import PAGE_BYTES, InvalidFileError, transaction
from sentinel.api.turns import Turns
from sentinel.host.paths import identity
from sentinel.host.regular_file import set_aside
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView

T = TypeVar("T")

#: The size of a history without a file, and of the rows that wait for one: the last hour of a
#: dozen GPUs, and more of fewer.
MEMORY_BYTES = 16 * 2**20
#: The pause after an error of the file.
_RETRY_S = 5.0
#: The longest pause between two processes without a gap in the ticks, in seconds.
_MAX_PAUSE_S = 60
#: SQLite's permanent errors: SQLITE_CORRUPT and SQLITE_NOTADB.
_PERMANENT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
#: The size limit of a transaction that is never written.
_UNLIMITED_BYTES = 2**40


class Database:
    """One database, for use in one thread.

    Batches wait in memory until the file takes them. Queries see them meanwhile.

    Args:
        path: The file; None keeps everything in memory.
        size: The file's maximum size in bytes, with its write-ahead log.
    """

    def __init__(self, path: Path | None, size: int) -> None:
        self._path = path
        self._size = MEMORY_BYTES if path is None else history_tables.database_bytes(size)
        #: None while the file cannot be opened.
        self._connection = history_tables.open_memory(MEMORY_BYTES) if path is None else None
        #: The batches that are not in the database, oldest first.
        self._waiting: deque[Batch] = deque()
        #: The ticks of the database minus the monotonic clock.
        self._tick_offset = 0
        #: The first tick that this process writes.
        self._first_tick = 0
        #: The identities of the file and its write-ahead log, and whether the file had content.
        self._file: tuple[int, int] | None = None
        self._wal: tuple[int, int] | None = None
        self._has_pages = False
        self._retry_at = -math.inf
        self._warned = False
        #: Warnings about the file, until the caller takes them.
        self.warnings: list[str] = []
        #: Uses that were current at the last write, until the caller takes them.
        self.resumed: list[Use] = []

    def close(self) -> None:
        """Close the database; it cannot be used afterwards."""
        if self._connection is not None:
            self._connection.close()

    def open(self, now: float, wall: float) -> None:
        """Open the file if necessary, and write the rows that wait for it.

        Args:
            now: The time of the monotonic clock.
            wall: The same time in seconds since the epoch.
        """
        if self._path is None or now < self._retry_at:
            return
        try:
            if self._connection is not None:
                self._check_file(self._path, self._connection, now)
            if self._connection is None:
                self._open(self._path, now, wall)
        except InvalidFileError as error:
            self._set_aside(str(error), now)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, now)
        else:
            self._write_waiting(now)

    def write(self, batch: Batch, now: float) -> None:
        """Write a batch or, if that fails, keep it until the next attempt."""
        if self._waiting:
            self._waiting[-1].current.clear()  # the new batch has them again
        self._waiting.append(batch)
        self._write_waiting(now)
        while sum(waiting.size for waiting in self._waiting) > MEMORY_BYTES:
            self._waiting.popleft()

    def query(self, function: Callable[[Source], T], now: float) -> T:
        """Run a query on all rows or, if the file fails, on a part of them.

        That are those of the file if it can only be read, as while another program keeps its lock;
        otherwise those that wait for it.

        Raises:
            sqlite3.Error: Even the memory failed.
        """
        if self._connection is not None:
            try:
                with self._waiting_inserted(self._connection):
                    return function(self._source(self._connection))
            except sqlite3.Error as error:
                self._failed(error, now)
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                return function(self._source(self._connection))
        with contextlib.closing(history_tables.open_memory(_UNLIMITED_BYTES)) as memory:
            for batch in self._waiting:
                history_tables.insert(memory, batch, 0)
            return function(Source(memory, 0, 0))

    def _source(self, connection: sqlite3.Connection) -> Source:
        return Source(connection, self._tick_offset, self._first_tick)

    # --- rows --------------------------------------------------------------------------------

    def _write_waiting(self, now: float) -> None:
        """Write the waiting batches, each in a transaction of its own, and delete old rows."""
        if self._connection is None or now < self._retry_at:
            return
        try:
            while self._waiting:
                self._insert(self._connection, self._waiting[0], now)
                self._waiting.popleft()
                self._warned = False
                history_tables.trim(self._connection, self._size)
        except sqlite3.Error as error:
            self._failed(error, now)
        except Exception:
            self._waiting.popleft()  # a bug: it would fail again
            raise

    def _insert(self, connection: sqlite3.Connection, batch: Batch, now: float) -> None:
        """Insert a batch; if the database is full, delete old rows first.

        Raises:
            sqlite3.Error: Nothing was written.
        """
        for may_trim in (True, False):
            try:
                with transaction(connection):
                    history_tables.insert(connection, batch, self._tick_offset)
                    history_tables.thin(connection, int(now) + self._tick_offset)
            except sqlite3.Error as error:
                is_full = _code(error) == sqlite3.SQLITE_FULL
                if not (may_trim and is_full and history_tables.trim(connection, self._size)):
                    raise
            else:
                return

    @contextlib.contextmanager
    def _waiting_inserted(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Insert the waiting batches for one query, in a transaction that is never written."""
        if not self._waiting:
            yield
            return
        history_tables.limit_size(connection, _UNLIMITED_BYTES)
        try:
            with transaction(connection, end="ROLLBACK"):
                for batch in self._waiting:
                    history_tables.insert(connection, batch, self._tick_offset)
                yield
        finally:
            history_tables.limit_size(connection, self._size)

    # --- the file ----------------------------------------------------------------------------

    def _open(self, path: Path, now: float, wall: float) -> None:
        connection = history_tables.open_file(path, self._size)
        try:
            self._tick_offset, self._first_tick = self._first_ticks(connection, now)
            self._file, self._wal, self._has_pages = identity(path), None, False
            self._resume_uses(connection, now, wall)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _check_file(self, path: Path, connection: sqlite3.Connection, now: float) -> None:
        """Notice that another program removed, replaced or truncated what is open."""
        wal = identity(_beside(path, "-wal"))
        if identity(path) != self._file:
            self.warnings.append(
                f"{path}: another program removed or replaced it; a new one is used"
            )
            self._disconnect()
        elif path.stat().st_size < PAGE_BYTES and self._has_pages:
            self._set_aside("another program truncated it", now)
        elif wal != self._wal and self._wal is not None:
            # SQLite goes on in the removed file, which only it can read: its rows are saved.
            result = "its readings were saved"
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                result = f"its readings are lost: {error}"
            self.warnings.append(f"{path}-wal: another program removed or replaced it; {result}")
            self._disconnect()
        else:
            self._wal = wal
            self._has_pages = self._has_pages or path.stat().st_size >= PAGE_BYTES

    def _first_ticks(self, connection: sqlite3.Connection, now: float) -> tuple[int, int]:
        """Compute the tick offset and the first tick that follow those in the file."""
        newest = [
            connection.execute(f"SELECT max(tick) FROM {table}").fetchone()[0]
            for table in ("seconds", "minutes")
        ]
        last = max((tick for tick in newest if tick is not None), default=None)
        if last is None:
            return 0, 0
        seconds = [second for batch in self._waiting for second, _ in batch.samples]
        return last + 1 - min([int(now) - _MAX_PAUSE_S, *seconds]), last + 1

    def _resume_uses(self, connection: sqlite3.Connection, now: float, wall: float) -> None:
        """Read the current uses; those that were seen too long ago have ended."""
        connection.execute("UPDATE uses SET open = 0 WHERE open AND until < ?", (wall - MAX_GAP_S,))
        for uuid, index, began, pid, started, ours, who, user, until in connection.execute(
            "SELECT uuid, idx, began, pid, started, ours, who, user, until"
            " FROM uses JOIN gpus USING (gpu) WHERE open"
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

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._file = None

    def _failed(self, error: sqlite3.Error | OSError, now: float) -> None:
        """Wait for a while, or replace a damaged file."""
        if _code(error) in _PERMANENT:
            self._set_aside(str(error), now)
            return
        self._retry_at = now + _RETRY_S
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


def _code(error: Exception) -> int:
    """Read SQLite's code of an error, without its details."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _beside(path: Path, end: str) -> Path:
    """Return the path of a file that SQLite keeps beside a database."""
    return path.with_name(path.name + end)


#: The file's name in the state folder.
FILE_NAME = "history.db"

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
        # Used in the thread only.
        self._recorder = Recorder()
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
        function: Callable[[Source, float], T],
        take_turn: Callable[[Turns], Awaitable[bool]],
    ) -> T:
        """Run a query on everything that was added before.

        Args:
            function: Called with the database and the time of the monotonic clock.
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
                await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- in the thread --------------------------------------------------------------------------

    def _flush(self) -> list[str]:
        """Write the queue; return warnings."""
        database = self._write()
        warnings, database.warnings = database.warnings, []
        return warnings

    def _read(self, function: Callable[[Source, float], T]) -> T:
        """Write the queue, then run a query.

        Raises:
            sqlite3.Error: The query failed.
        """
        database = self._write()
        now = time.monotonic()
        return database.query(lambda source: function(source, now), now)

    def _close(self) -> None:
        """Write the queue, and close the file."""
        self._write().close()

    def _write(self) -> Database:
        now = time.monotonic()
        if self._database is None:  # created here, since SQLite binds it to this thread
            self._database = Database(self._path, self._size)
        self._database.open(now, time.time())
        for use in self._database.resumed:
            self._recorder.uses.resume(use)
        self._database.resumed.clear()
        records = []
        with contextlib.suppress(IndexError):  # empty; the event loop may have cleared it
            while True:
                records.append(self._queue.popleft())
        if records:
            self._database.write(self._recorder.build_batch(records, now), now)
        return self._database
