"""A history whose clocks a test turns, and views and events to put into it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from sentinel.api.history import queries
from sentinel.api.history.database import Database
from sentinel.api.history.recorder import EventRow, Recorder, TimedRecord
from sentinel.api.state.event_buffer import LoggedEvent
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.telemetry import Telemetry
from sentinel.protocol.views import GpuView, LogRecord

UUID = "GPU-aaaa1111-0000-0000-0000-000000000000"
OTHER = "GPU-bbbb2222-0000-0000-0000-000000000000"
#: When a test begins, by the monotonic clock and by the wall's.
BEGIN = 5000.0
WALL = 1_790_000_000.0
SIZE = 64 * 2**20


def shown(at: float, uuid: str = UUID, **fields: Any) -> GpuView:
    """Return the view of a GPU at this time: idle, fresh and without processes."""
    given: dict[str, Any] = {
        "occupancy": "IDLE",
        "stressor": "STOPPED",
        "rule": "idle",
        "read": at,
        "temperature_c": 50,
        "power_w": 100.0,
    }
    return GpuView(
        at=at,
        uuid=uuid,
        index=0 if uuid == UUID else 1,
        name="NVIDIA H200",
        pci_bus_id="00000000:01:00.0",
        memory_total=140 * 2**30,
        admin="ENABLED",
        reason="",
        findings=0,
        **{**given, **fields},
    )


def told(at: float, **fields: Any) -> Telemetry:
    return Telemetry(at=at, **fields)


def process(pid: int, name: str = "python", user: str | None = "anna") -> GpuProcess:
    return GpuProcess(pid=pid, name=name, user=user, started=pid * 100)


def busy(at: float, *by: GpuProcess, **fields: Any) -> GpuView:
    return shown(
        at, occupancy="BUSY", rule="process" if by else "computing", processes=by, **fields
    )


def lines(count: int, length: int, *, first: int = 0) -> list[EventRow]:
    """Return so many events of so many bytes, which are numbered."""
    line = json.dumps("x" * length)
    return [(WALL, f"event.{number}", None, line) for number in range(first, first + count)]


class Past:
    """A database and its recorder, at a time of its own.

    Args:
        path: The file.
        size: How many bytes it may have.
    """

    def __init__(self, path: Path | None, size: int = SIZE) -> None:
        self.path = path
        self.size = size
        self.now = BEGIN
        self.wall = WALL
        self.number = 0
        self.begin()

    def begin(self) -> None:
        """Begin as another service does, with the file as it is."""
        self.recorder = Recorder()
        self.database = Database(self.path, self.size)

    def go_on(self, seconds: float, jump: float = 0.0) -> None:
        """Let time go on; the wall's clock may jump as well."""
        self.now += seconds
        self.wall += seconds + jump

    def put(self, *views: GpuView) -> list[str]:
        """Write views, and return what is said of the file."""
        return self._write([TimedRecord(view, self.wall - self.now) for view in views])

    def say(self, name: str = "gpu.idle", **fields: Any) -> list[str]:
        """Write an event."""
        self.number += 1
        record = LogRecord(number=self.number, event={"event": name, "time": "now", **fields})
        return self._write([TimedRecord(LoggedEvent.of(record), self.wall - self.now)])

    def _write(self, noted: list[TimedRecord]) -> list[str]:
        self.database.open(self.now, self.wall)
        for use in self.database.resumed:
            self.recorder.uses.resume(use)
        self.database.resumed.clear()
        self.database.write(self.recorder.build_batch(noted, self.now), self.now)
        troubles, self.database.warnings = self.database.warnings, []
        return troubles

    def readings(self, seconds: int = 3600, step: int = 1, uuid: str = UUID) -> list[Any]:
        """Return the readings of the last so many seconds."""
        until = int(self.wall)
        return self.database.query(
            lambda where: queries.readings(where, uuid, until - seconds + 1, until, step), self.now
        )

    def events(self, **more: Any) -> list[str]:
        """Return the names of the last events."""
        asked = {"uuid": None, "since": 0.0, "name": None, "limit": 1000, **more}
        found = self.database.query(lambda where: queries.events(where, **asked), self.now)
        return [json.loads(line)["event"] for _, line in found]

    def uses(self, uuid: str | None = None) -> list[queries.RecordedUse]:
        return self.database.query(lambda where: queries.uses(where, uuid, 0.0, 1000), self.now)

    def rows(self, table: str) -> list[Any]:
        """Return all rows of a table of the file, by another connection."""
        assert self.path is not None
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        finally:
            connection.close()


def whole(path: Path) -> bool:
    """Return whether a file is a whole database."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()
