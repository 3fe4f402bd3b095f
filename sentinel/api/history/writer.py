"""The history as the service has it: what comes is noted at once, and written by a thread."""

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
from sentinel.api.history.queries import Question
from sentinel.api.history.recorder import Noted, Recorder
from sentinel.api.http.errors import ProblemError
from sentinel.protocol.api_types import Code
from sentinel.protocol.views import GpuView, LogRecord

T = TypeVar("T")

#: What the file is called in a state folder.
NAME = "history.db"

#: What came is written this often, in seconds: so much a kill of the service may cost.
WRITTEN_EVERY = 2.0
#: What may wait for a disk that takes its time: views and events, and bytes of events. The oldest
#: are lost first.
_MOST_WAITING = 8192
_MOST_BYTES = 4 * 2**20
#: How long an answer may take, in seconds, and what is left to write at the end.
_ANSWERED_WITHIN = 5.0
_LAST_WORDS = 0.5
#: A disk that has not taken anything for so long is said, in seconds.
_STUCK_AFTER = 30.0


class History:
    """What is kept of views and events; made and used in the loop, which never waits for a disk.

    Args:
        path: The file.
        size: How many bytes it may have; ``None`` keeps the last hour in memory and nothing else.
        complain: Called with what is wrong with the file.
    """

    def __init__(self, path: Path, size: int | None, report_warning: Callable[[str], None]) -> None:
        self._report_warning = report_warning
        self._waiting: collections.deque[Noted] = collections.deque(maxlen=_MOST_WAITING)
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, "history")
        self._writer = _Writer(None if size is None else path, size or 0, self._waiting)

    def see(self, what: GpuView | LogRecord) -> None:
        """Note a view or an event."""
        if isinstance(what, LogRecord):
            self._bytes = self._bytes + len(what.line) if self._waiting else len(what.line)
            if self._bytes > _MOST_BYTES:
                self._waiting.clear()
                self._bytes = len(what.line)
        self._waiting.append(Noted(what, time.time() - time.monotonic()))

    async def keep(self) -> None:
        """Have it written every now and then, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            written = loop.run_in_executor(self._thread, self._writer.flush)
            done, _ = await asyncio.wait({written}, timeout=_STUCK_AFTER)
            if not done:
                self._report_warning(f"the disk has not taken anything for {_STUCK_AFTER:g} s")
            try:
                troubles = await written
            except Exception as error:  # noqa: BLE001 - a bug here is to cost rows, not all to come
                troubles = [f"a bug in sentinel, some of the history is lost: {error!r}"]
            for trouble in troubles:
                self._report_warning(trouble)
            await asyncio.sleep(WRITTEN_EVERY)

    async def ask(self, question: Callable[[Question, float], T]) -> T:
        """Return the answer to a question, which also gets the time of the monotonic clock.

        All that was noted before is in it.

        Raises:
            ProblemError: The disk takes too long, or not even memory answers.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN):
                return await loop.run_in_executor(self._thread, self._writer.answer, question)
        except TimeoutError:
            detail = f"The history was not read within {_ANSWERED_WITHIN:g} s."
            raise ProblemError(Code.UNAVAILABLE, detail) from None
        except sqlite3.Error as error:
            detail = f"The history cannot be read: {error}."
            raise ProblemError(Code.UNAVAILABLE, detail) from None

    async def close(self) -> None:
        """Write what is left, if that is done at once."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await loop.run_in_executor(self._thread, self._writer.close)
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Writer:
    """What the thread does.

    Args:
        path: The file, if there is to be one.
        size: How many bytes it may have.
        waiting: What was noted; the loop adds to it.
    """

    def __init__(self, path: Path | None, size: int, waiting: collections.deque[Noted]) -> None:
        self._path = path
        self._size = size
        self._waiting = waiting
        self._recorder = Recorder()
        self._database: Database | None = None

    def flush(self) -> list[str]:
        """Write what was noted; return what is to be said of the file."""
        database = self._write()
        troubles, database.troubles = database.troubles, []
        return troubles

    def answer(self, question: Callable[[Question, float], T]) -> T:
        """Return the answer to a question, after what was noted before it was written.

        Raises:
            sqlite3.Error: There is none.
        """
        database = self._write()
        now = time.monotonic()
        return database.ask(lambda where: question(where, now), now)

    def close(self) -> None:
        """Write what was noted, and close the file."""
        self._write().close()

    def _write(self) -> Database:
        now = time.monotonic()
        if self._database is None:  # here, since it belongs to this thread
            self._database = Database(self._path, self._size)
        self._database.open(now, time.time())
        for use in self._database.adopted:
            self._recorder.uses.adopt(use)
        self._database.adopted.clear()
        noted = []
        with contextlib.suppress(IndexError):  # that is the end; the loop may have taken some away
            while True:
                noted.append(self._waiting.popleft())
        if noted:
            self._database.write(self._recorder.digest(noted, now), now)
        return self._database
