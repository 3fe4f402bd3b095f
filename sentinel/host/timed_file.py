"""Reservations, sessions and known faults in files, so that they outlive the daemon.

Their times are of the monotonic clock, which cannot be set but restarts at a reboot. So a file has
the moment at which it was written by both clocks; seconds since the epoch are for use after one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from sentinel.host.procfs import boot_id
from sentinel.host.regular_file import load_or_set_aside, read_regular, replace_file
from sentinel.protocol.codec import from_json
from sentinel.protocol.commands import Caller
from sentinel.protocol.views import KnownFaults, Reservation, Session

T = TypeVar("T", Reservation, Session, KnownFaults)

#: A larger file is not one of ours: 256 reservations of 16 GPUs have less.
_MAX_BYTES = 4 * 2**20
#: The version of the format. A file of another version is refused.
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """One moment by both clocks."""

    #: Seconds since the epoch.
    wall: float
    monotonic: float
    #: The boot of the host; empty if it is not known.
    boot: str

    @classmethod
    def read(cls) -> Clocks:
        """Read the clocks of this host."""
        return cls(wall=time.time(), monotonic=time.monotonic(), boot=boot_id())


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The fields of a file besides its items."""

    schema_version: int
    #: When it was written.
    written: Clocks


@dataclass(frozen=True, kw_only=True)
class TimedFile(Generic[T]):
    """One kind of file."""

    #: The name of the file in a state folder.
    name: str
    #: What it has, as its key in the file and in problems, such as ``reservations``.
    what: str
    #: The type of one item.
    kind: type[T]
    #: The field that identifies an item.
    key: str = "id"

    def load(self, path: Path, clocks: Clocks) -> tuple[tuple[T, ...], str | None]:
        """Read the items of a file, and the problem with the file or None.

        A missing file is empty. An invalid file is set aside and counts as empty, so that the
        daemon starts and its content is kept. The supervisor ends and reports items that are over.
        """
        return load_or_set_aside(
            path,
            lambda: self.read(path, clocks),
            empty=(),
            loss=f"its {self.what} are ignored",
        )

    def read(self, path: Path, clocks: Clocks) -> tuple[T, ...]:
        """Read the items of a file.

        Raises:
            OSError: It cannot be read.
            ValueError: It is not such a file.
        """
        return self.parse(read_regular(path, _MAX_BYTES).decode(), clocks)

    def parse(self, text: str, clocks: Clocks) -> tuple[T, ...]:
        """Parse the text of a file, and convert its times to the monotonic clock of now.

        Raises:
            ValueError: It is not such a file, or incomplete.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        head = from_json(_Head, body)
        if head.schema_version != _VERSION:
            raise ValueError(f"schema_version: {head.schema_version} is not {_VERSION}")
        entries = from_json(tuple[Mapping[str, Any], ...], body.get(self.what), self.what)
        found = []
        for number, entry in enumerate(entries):
            where = f"{self.what}[{number}]"
            item = from_json(self.kind, entry, where)
            restored = _restored(item, head.written, clocks, where)
            found += [] if restored is None else [restored]
        return tuple(found)

    def write(self, path: Path, items: Iterable[T], clocks: Clocks) -> None:
        """Replace the content of a file atomically, and return once it is on disk.

        Args:
            path: The file.
            items: The items in force.
            clocks: The current time.

        Raises:
            OSError: It cannot be written. The file is unchanged or, if only the rename could not be
                written to the disk, has the new content.
        """
        body = {"schema_version": _VERSION, "written": clocks, self.what: list(items)}
        replace_file(path, json.dumps(body, indent=1, default=vars) + "\n")


RESERVATIONS = TimedFile(name="reservations.json", what="reservations", kind=Reservation)
SESSIONS = TimedFile(name="sessions.json", what="sessions", kind=Session, key="name")
FAULTS = TimedFile(name="faults.json", what="faults", kind=KnownFaults, key="gpu.uuid")


def _check_dates(item: Reservation | Session, written: Clocks, where: str) -> None:
    """Refuse times that are no dates: the API could not describe its daemon.

    Raises:
        ValueError: One is before the year 1 or after 9999.
    """
    for moment in (item.since, item.until or item.since):
        seconds = moment + written.wall - written.monotonic
        try:
            datetime.fromtimestamp(seconds, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{where}: {seconds:g} is no date: {error}") from error


def _restored(item: T, written: Clocks, clocks: Clocks, where: str) -> T | None:
    """Convert the caller and the times of an item to those of this boot.

    Returns:
        The item; None for faults of another boot, since a reboot resets every GPU.

    Raises:
        ValueError: Its times are no dates.
    """
    if isinstance(item, KnownFaults):
        return item if clocks.boot == written.boot else None  # also if neither is known
    _check_dates(item, written, where)
    by = Caller(via=item.by.via, uid=item.by.uid)
    # A moment in the future was stored by another clock, whatever the boot is called.
    if clocks.boot and clocks.boot == written.boot and written.monotonic <= clocks.monotonic:
        return replace(item, by=replace(by, pid=item.by.pid, started=item.by.started))
    # In another boot, the PID belongs to another process.
    shift = (written.wall - written.monotonic) - (clocks.wall - clocks.monotonic)
    until = item.until
    if until is not None:  # if the clock was set back, at most the whole duration from now
        until = min(until + shift, clocks.monotonic + until - item.since)
    return replace(item, by=by, since=item.since + shift, until=until)
