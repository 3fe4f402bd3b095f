"""A history with controlled clocks, and views and events to write into it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from sentinel.api import history_queries
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.history import Database
from sentinel.api.history_hours import gpu_hours
from sentinel.api.history_recorder import EventRow, TimedRecord
from sentinel.protocol.gpu import GpuProcess, Telemetry
from sentinel.protocol.views import GpuView, LogRecord
from tests.harness.gpu_views import gpu_view

UUID = "GPU-aaaa1111-0000-0000-0000-000000000000"
OTHER = "GPU-bbbb2222-0000-0000-0000-000000000000"
#: The start of a test by the monotonic clock and by the wall clock.
BEGIN = 5000.0
WALL = 1_790_000_000.0
SIZE = 64 * 2**20


def make_view(at: float, uuid: str = UUID, **fields: Any) -> GpuView:
    """Build the view of an idle GPU with a current reading and without processes."""
    defaults: dict[str, Any] = {
        "uuid": uuid,
        "stressor": "STOPPED",
        "rule": "idle",
        "reason": "",
        "read": at,
        "temperature_c": 50,
        "power_w": 100.0,
    }
    return gpu_view(0 if uuid == UUID else 1, at, **{**defaults, **fields})


def make_telemetry(at: float, **fields: Any) -> Telemetry:
    return Telemetry(at=at, **fields)


def process(pid: int, name: str = "python", user: str | None = "anna") -> GpuProcess:
    return GpuProcess(pid=pid, name=name, user=user, started=pid * 100)


def busy_view(at: float, *by: GpuProcess, **fields: Any) -> GpuView:
    return make_view(
        at, occupancy="BUSY", rule="process" if by else "computing", processes=by, **fields
    )


def event_rows(count: int, length: int, *, first: int = 0) -> list[EventRow]:
    """Build ``count`` numbered events of ``length`` bytes each."""
    line = json.dumps("x" * length)
    return [(WALL, f"event.{number}", None, line) for number in range(first, first + count)]


class HistoryHarness:
    """A database with simulated time.

    Args:
        path: The file, or None for a history in memory.
        size: The size limit of the file, in bytes.
    """

    def __init__(self, path: Path | None, size: int = SIZE) -> None:
        self.path = path
        self.size = size
        self.now = BEGIN
        self.wall = WALL
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Replace the database, as a new API process does; the file stays."""
        self.database = Database(self.path, self.size)

    def advance(self, seconds: float, jump: float = 0.0) -> None:
        """Advance both clocks; the wall clock may also jump."""
        self.now += seconds
        self.wall += seconds + jump

    def write_views(self, *views: GpuView) -> list[str]:
        """Write views; return the warnings of the database."""
        return self._write([TimedRecord(view, self.wall - self.now) for view in views])

    def write_event(self, name: str = "gpu.idle", **fields: Any) -> list[str]:
        """Write an event; return the warnings of the database."""
        self.number += 1
        record = LogRecord(number=self.number, event={"event": name, "time": "now", **fields})
        return self._write([TimedRecord(LoggedEvent.of(record), self.wall - self.now)])

    def _write(self, records: list[TimedRecord]) -> list[str]:
        self.database.record(records, self.now, self.wall)
        warnings, self.database.warnings = self.database.warnings, []
        return warnings

    def readings(self, seconds: int = 3600, step: int = 1, uuid: str = UUID) -> list[Any]:
        """Query the readings of the last ``seconds``."""
        until = int(self.wall)
        return self.database.query(
            lambda database: history_queries.readings(
                database, uuid, until - seconds + 1, until, step
            ),
            self.now,
        )

    def events(self, **filters: Any) -> list[str]:
        """Query the names of the last events."""
        arguments = {"uuid": None, "since": 0.0, "names": None, "limit": 1000, **filters}
        found = self.database.query(
            lambda database: history_queries.events(database, **arguments), self.now
        )
        return [json.loads(line)["event"] for _, line in found]

    def uses(self, uuid: str | None = None) -> list[dict[str, Any]]:
        return self.database.query(
            lambda database: history_queries.uses(database, uuid, 0.0, 1000), self.now
        )

    def hours(self, uuid: str | None = None, since: float = 0.0) -> dict[str, Any]:
        return self.database.query(lambda database: gpu_hours(database, uuid, since), self.now)

    def rows(self, table: str) -> list[Any]:
        """Read all rows of a table through a separate connection."""
        assert self.path is not None
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        finally:
            connection.close()


def is_intact(path: Path) -> bool:
    """Check the integrity of a database file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()
