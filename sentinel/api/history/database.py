"""A history in a file, and in memory as long as the file cannot be written."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sentinel.api.history import retention
from sentinel.api.history.queries import Question
from sentinel.api.history.recorder import SAMPLE, Batch
from sentinel.api.history.schema import (
    DISK,
    MEMORY,
    MINUTE,
    PAGE,
    PATIENCE,
    BadFileError,
    attach,
    create,
    detach,
    number_of,
    room,
)
from sentinel.api.history.usage import CONTINUES, Use
from sentinel.host.paths import identity

T = TypeVar("T")
Row = tuple[Any, ...]

#: What may be kept in memory, in bytes: the last hour of a dozen GPUs, and more of fewer.
IN_MEMORY = 16 * 2**20
#: A file that could not be opened or written is tried again after so many seconds.
_TRY_AGAIN = 5.0
#: A history that begins later than that after the one before leaves a gap in the ticks, in seconds.
_GAP = 60
#: Errors of SQLite's that no second try can mend: SQLITE_CORRUPT and SQLITE_NOTADB.
_BAD = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Database:
    """The file and the memory, as one; all of it by one thread.

    Args:
        path: The file; ``None`` keeps all in memory.
        size: How many bytes the file may have.

    Attributes:
        troubles: What is to be said of the file, until somebody takes it.
        adopted: The uses that went on when the file was written last, until somebody takes them.
    """

    def __init__(self, path: Path | None, size: int) -> None:
        self._path = path
        self._size = size
        self._connection = sqlite3.connect(":memory:", isolation_level=None, timeout=PATIENCE)
        create(self._connection, MEMORY)
        self._connection.execute(f"PRAGMA {MEMORY}.max_page_count = {IN_MEMORY // PAGE}")
        #: By how much ticks are ahead of the monotonic clock.
        self._ahead = {MEMORY: 0}
        #: The first tick of each that is ours; what is before it in the file, others have written.
        self._began = {MEMORY: 0}
        self._file: tuple[int, int] | None = None
        self._again = -math.inf
        self._said = False
        self._owes = False
        self.troubles: list[str] = []
        self.adopted: list[Use] = []

    @property
    def _attached(self) -> bool:
        return DISK in self._ahead

    def close(self) -> None:
        """Close the file; nothing can be done with it afterwards."""
        self._connection.close()

    def open(self, now: float, wall: float) -> None:
        """Open the file where that is to be done, and give it what is in memory.

        Args:
            now: Of the monotonic clock.
            wall: The same in seconds since the epoch.
        """
        if self._path is None or now < self._again:
            return
        if self._attached and identity(self._path) != self._file:
            self._let_go()  # somebody has removed it, and may have put another in its place
        try:
            if not self._attached:
                self._attach(self._path, now, wall)
            if self._owes:
                self._hand_over()
        except BadFileError as error:
            self._set_aside(str(error), now)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, now)

    def write(self, batch: Batch, now: float) -> None:
        """Write all of a batch; into memory where the file does not take it."""
        if self._attached and now >= self._again:
            try:
                self._write(DISK, batch, now)
            except sqlite3.Error as error:
                self._failed(error, now)
            else:
                self._said = False
                self._keep_room(now)
                return
        with contextlib.suppress(sqlite3.Error):  # too much for memory as well: it is lost
            self._write(MEMORY, batch, now)
            self._owes = self._path is not None
            self._make_room(MEMORY)

    def ask(self, question: Callable[[Question], T], now: float) -> T:
        """Return the answer to a question; of what can be read.

        Raises:
            sqlite3.Error: Not even memory answers.
        """
        if self._attached:
            schemas = (DISK, MEMORY)
            try:
                return question(Question(self._connection, schemas, self._ahead, self._began))
            except sqlite3.Error as error:
                self._failed(error, now)
        return question(Question(self._connection, (MEMORY,), self._ahead, self._began))

    # --- the file ----------------------------------------------------------------------------

    def _attach(self, path: Path, now: float, wall: float) -> None:
        attach(self._connection, path, self._size)
        try:
            self._ahead[DISK], self._began[DISK] = self._ticks_ahead(now)
            self._file = identity(path)
            self._adopt(now, wall)
        except BaseException:
            self._let_go()
            raise

    def _ticks_ahead(self, now: float) -> tuple[int, int]:
        """Return how far ticks are ahead of the clock, and our first, after those in the file."""
        latest: list[int | None] = []
        first: list[int | None] = [int(now) - _GAP]
        for table in ("seconds", "minutes"):
            newest = f"SELECT max(tick) FROM {DISK}.{table}"
            oldest = f"SELECT min(tick) FROM {MEMORY}.{table}"
            latest += [row[0] for row in self._connection.execute(newest)]
            first += [row[0] for row in self._connection.execute(oldest)]
        known = [tick for tick in latest if tick is not None]
        if not known:
            return 0, 0
        began = max(known) + 1
        return began - min(tick for tick in first if tick is not None), began

    def _adopt(self, now: float, wall: float) -> None:
        """Read which uses went on; those that were seen too long ago ended then."""
        self._connection.execute(
            f"UPDATE {DISK}.uses SET open = 0 WHERE open AND until < ?",
            (wall - CONTINUES,),
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
            self.adopted.append(use)

    def _let_go(self) -> None:
        self._ahead.pop(DISK, None)
        self._file = None
        with contextlib.suppress(sqlite3.Error):
            detach(self._connection)

    def _failed(self, error: sqlite3.Error | OSError, now: float) -> None:
        """Go on in memory for a while, or with another file where this one is broken."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BAD:
            self._set_aside(str(error), now)
            return
        self._again = now + _TRY_AGAIN
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        self._report_warning(
            f"{self._path}: cannot be written: {why}; the last hour is kept in memory"
        )

    def _set_aside(self, why: str, now: float) -> None:
        """Begin a new file in place of a bad one, which stays to be looked at."""
        assert self._path is not None  # noqa: S101 - there was a file
        self._let_go()
        bad = self._path.with_name(f"{self._path.name}.bad")
        try:
            for end in ("-wal", "-shm", ""):
                old = self._path.with_name(self._path.name + end)
                if old.exists():
                    old.replace(bad.with_name(bad.name + end))
        except OSError as error:
            self._again = now + _TRY_AGAIN
            where = f"{self._path}: {why}; it cannot be set aside: {error.strerror}"
            self._report_warning(f"{where}; the last hour is kept in memory")
            return
        self._again = now + _TRY_AGAIN  # not at once: it may be the disk that makes files bad
        self.troubles.append(
            f"{self._path}: {why}; it was set aside as {bad}, and a new one is begun"
        )

    def _report_warning(self, text: str) -> None:
        """Have something said, once until the file was written again."""
        if not self._said:
            self.troubles.append(text)
        self._said = True

    # --- rows --------------------------------------------------------------------------------

    def _write(self, schema: str, batch: Batch, now: float) -> None:
        """Write a batch, where it is too much after room was made for it.

        Raises:
            sqlite3.Error: Nothing of it was written.
        """
        try:
            self._insert(schema, batch, now)
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            if not full or not self._make_room(schema):
                raise
            self._insert(schema, batch, now)

    def _keep_room(self, now: float) -> None:
        """Make room in the file after what was written; that it failed takes nothing back."""
        try:
            self._make_room(DISK)
        except sqlite3.Error as error:
            self._failed(error, now)

    def _make_room(self, schema: str) -> bool:
        size = IN_MEMORY if schema == MEMORY else room(self._size)
        return retention.trim(self._connection, schema, size)

    def _insert(self, schema: str, batch: Batch, now: float) -> None:
        """Write a batch, and make minutes of what is old, in one transaction."""
        ahead = self._ahead[schema]
        with self._transaction() as execute:
            execute(_GPUS.format(schema), _gpus(batch))
            execute(_SECONDS.format(schema), _seconds(batch, ahead))
            execute(_EVENTS.format(schema), _events(batch))
            execute(_FORGET.format(schema), map(_use_key, batch.renamed))
            execute(_USES.format(schema), (_use(use, going_on) for use, going_on in batch.uses))
            retention.thin(self._connection, schema, int(now) + ahead)

    def _hand_over(self) -> None:
        """Give the file all that is in memory.

        Raises:
            sqlite3.Error: It stays there.
        """
        further = self._ahead[DISK] - self._ahead[MEMORY]
        with self._transaction() as _:
            for table, columns in _COLUMNS.items():
                taken = columns.replace("tick", f"tick + {further}")
                self._connection.execute(
                    f"INSERT OR REPLACE INTO {DISK}.{table} ({columns})"
                    f" SELECT {taken} FROM {MEMORY}.{table}"
                )
                self._connection.execute(f"DELETE FROM {MEMORY}.{table}")
        self._owes = self._said = False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[[str, Iterable[Row]], object]]:
        """Do all or nothing; yields what executes a statement for many rows."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.executemany
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


# --- rows of a batch -------------------------------------------------------------------------

_COLUMNS = {
    "gpus": "gpu, uuid, idx, name",
    "seconds": f"tick, gpu, at, {', '.join(SAMPLE)}",
    "minutes": f"gpu, tick, at, n, {', '.join(MINUTE)}",
    "events": "at, name, gpu, line",
    "uses": "began, gpu, pid, started, ours, who, user, until, open",
}


def _into(table: str) -> str:
    """Return the statement that puts a row into a table of a schema."""
    columns = _COLUMNS[table]
    places = ", ".join("?" for _ in columns.split(","))
    return f"INSERT OR REPLACE INTO {{0}}.{table} ({columns}) VALUES ({places})"


_SECONDS, _EVENTS, _USES = map(_into, ("seconds", "events", "uses"))
#: Said with each batch and seldom new: what is there already is not written again.
_GPUS = (
    "INSERT INTO {0}.gpus (gpu, uuid, idx, name) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET idx = excluded.idx, name = excluded.name"
    " WHERE idx != excluded.idx OR name != excluded.name"
)
_FORGET = "DELETE FROM {0}.uses WHERE began = ? AND gpu = ? AND pid = ? AND started = ?"


def _gpus(batch: Batch) -> Iterator[Row]:
    for uuid, (index, name) in batch.gpus.items():
        yield number_of(uuid), uuid, index, name


def _seconds(batch: Batch, ahead: int) -> Iterator[Row]:
    for (second, uuid), (at, values) in batch.samples.items():
        yield second + ahead, number_of(uuid), at, *values


def _events(batch: Batch) -> Iterator[Row]:
    for at, name, uuid, line in batch.events:
        yield at, name, None if uuid is None else number_of(uuid), line


def _use_key(use: Use) -> Row:
    _, pid, started = use.key
    # What is not known is a number, too, since a key has no NULL; ours has none of the others'.
    pid = -1 if pid is None else pid
    return use.began, number_of(use.gpu), pid, -1 if started is None else started


def _use(use: Use, going_on: bool) -> Row:  # noqa: FBT001 - two of a kind in a batch
    return *_use_key(use), int(use.key[0]), use.who, use.user, use.until, int(going_on)
