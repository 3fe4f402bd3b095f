"""The history in the event loop: records are queued, and a thread writes them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sentinel.api.history.database import Database
from sentinel.api.history.queries import Source
from sentinel.api.history.recorder import Recorder, TimedRecord
from sentinel.api.http.errors import ProblemError
from sentinel.api.state.event_buffer import LoggedEvent
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView

T = TypeVar("T")

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
        self._report_warning = report_warning
        self._queue: collections.deque[TimedRecord] = collections.deque(maxlen=_MAX_QUEUED)
        self._queued_bytes = 0
        self._thread = ThreadPoolExecutor(1, "history")
        self._thread.submit(int)  # starts the thread: a host without one is known at once
        self._writer = _Writer(None if size is None else path, size or 0, self._queue)

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
            write = loop.run_in_executor(self._thread, self._writer.flush)
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

    async def query(self, function: Callable[[Source, float], T]) -> T:
        """Run a query on everything that was added before.

        Args:
            function: Called with the database and the time of the monotonic clock.

        Raises:
            ProblemError: The disk is too slow, or even the memory fails.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_QUERY_TIMEOUT_S):
                return await loop.run_in_executor(self._thread, self._writer.query, function)
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
                await loop.run_in_executor(self._thread, self._writer.close)
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Writer:
    """The work of the thread.

    Args:
        path: The file, or None without one.
        size: The file's maximum size in bytes.
        queue: The records, to which the event loop adds.
    """

    def __init__(self, path: Path | None, size: int, queue: collections.deque[TimedRecord]) -> None:
        self._path = path
        self._size = size
        self._queue = queue
        self._recorder = Recorder()
        self._database: Database | None = None

    def flush(self) -> list[str]:
        """Write the queue; return warnings."""
        database = self._write()
        warnings, database.warnings = database.warnings, []
        return warnings

    def query(self, function: Callable[[Source, float], T]) -> T:
        """Write the queue, then run a query.

        Raises:
            sqlite3.Error: The query failed.
        """
        database = self._write()
        now = time.monotonic()
        return database.query(lambda source: function(source, now), now)

    def close(self) -> None:
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
