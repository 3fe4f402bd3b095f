"""Files of things that end at a time: reservations and sessions, with their callers.

Times are stored by two clocks. The monotonic clock cannot be set but restarts at a reboot; seconds
since the epoch are for use after one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar

from sentinel.host.files.regular_file import load_or_set_aside, read_regular, replace_file
from sentinel.host.processes.procfs import boot_id
from sentinel.protocol.caller import Caller
from sentinel.protocol.codec import from_json

#: A larger file is not one of ours: 256 reservations of 16 GPUs have less.
_MAX_BYTES = 4 * 2**20


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


class Timed(Protocol):
    """The times of a thing by the monotonic clock, and its caller."""

    @property
    def by(self) -> Caller:
        """The process that began it."""

    @property
    def since(self) -> float:
        """When it began."""

    @property
    def until(self) -> float | None:
        """When it ends, or None."""


class Begun(TypedDict):
    """The same as arguments."""

    by: Caller
    since: float
    until: float | None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The times of a thing in a file, and its caller."""

    #: When it began and when it ends, in seconds since the epoch.
    since: float
    until: float | None
    #: The same times by the monotonic clock.
    since_monotonic: float
    until_monotonic: float | None
    via: str
    uid: int | None
    pid: int | None
    started: int | None
    #: The boot of the host during which it was stored; PIDs and monotonic times hold for that boot.
    boot: str


T = TypeVar("T", bound=Timed)
S = TypeVar("S", bound=Stored)


def stored_fields(one: Timed, clocks: Clocks) -> dict[str, Any]:
    """Build the fields of :class:`Stored` for a thing.

    Args:
        one: The thing.
        clocks: The current time.
    """
    offset = clocks.wall - clocks.monotonic
    return vars(
        Stored(
            since=round(one.since + offset, 3),
            until=None if one.until is None else round(one.until + offset, 3),
            since_monotonic=one.since,
            until_monotonic=one.until,
            via=one.by.via,
            uid=one.by.uid,
            pid=one.by.pid,
            started=one.by.started,
            boot=clocks.boot,
        )
    )


def restored_fields(one: Stored, clocks: Clocks) -> Begun:
    """Compute the caller of a stored thing, and its times by the monotonic clock of this boot.

    Args:
        one: The stored thing.
        clocks: The current time.
    """
    same = one.boot == clocks.boot
    since, until = _monotonic_times(one, clocks)
    # In another boot, the PID belongs to another process.
    by = Caller(
        via=one.via,
        uid=one.uid,
        pid=one.pid if same else None,
        started=one.started if same else None,
    )
    return Begun(by=by, since=since, until=until)


def _monotonic_times(one: Stored, clocks: Clocks) -> tuple[float, float | None]:
    since = one.since_monotonic
    # A start in the future was stored by another clock, whatever the boot is called.
    if since <= clocks.monotonic and clocks.boot and one.boot == clocks.boot:
        return since, one.until_monotonic
    offset = clocks.wall - clocks.monotonic
    if one.until is None:
        return one.since - offset, None
    # If the clock was set back, it lasts at most its whole duration from now.
    until = min(one.until, clocks.wall + one.until - one.since)
    return one.since - offset, until - offset


@dataclass(frozen=True, kw_only=True)
class TimedFile(Generic[T, S]):
    """One kind of file: its name, its format and the conversion of what it has."""

    #: The name of the file in a state folder.
    name: str
    #: What it has, as its key in the file and in problems, such as ``reservations``.
    what: str
    #: The type of one entry.
    kind: type[S]
    store: Callable[[T, Clocks], S]
    restore_one: Callable[[S, Clocks], T]
    #: The version of the format. A file of another version is refused.
    version: int

    def to_stored(self, items: Iterable[T], clocks: Clocks) -> tuple[S, ...]:
        """Convert things in force to their stored form.

        Args:
            items: The things in force.
            clocks: The current time.
        """
        return tuple(self.store(one, clocks) for one in items)

    def restore(self, stored: Iterable[S], clocks: Clocks) -> tuple[T, ...]:
        """Convert stored things back; the supervisor ends and reports those that are over.

        Args:
            stored: The things in the file.
            clocks: The current time.
        """
        return tuple(self.restore_one(one, clocks) for one in stored)

    def parse(self, text: str) -> tuple[S, ...]:
        """Parse the text of a file.

        Raises:
            ValueError: It is not such a file, or incomplete.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        version = from_json(_Head, body).schema_version
        if version != self.version:
            raise ValueError(f"schema_version: {version} is not {self.version}")
        entries = from_json(tuple[Mapping[str, Any], ...], body.get(self.what), self.what)
        found = []
        for number, entry in enumerate(entries):
            where = f"{self.what}[{number}]"
            one = from_json(self.kind, entry, where)
            _check_times(one, where)
            found.append(one)
        return tuple(found)

    def load(self, path: Path) -> tuple[tuple[S, ...], str | None]:
        """Read what a file has, and the problem with the file or None.

        A missing file is empty. An invalid file is set aside and counts as empty, so that the
        daemon starts and its content is kept.
        """
        return load_or_set_aside(
            path,
            lambda: self.parse(read_regular(path, _MAX_BYTES).decode()),
            empty=(),
            loss=f"its {self.what} are ignored",
        )

    def write(self, path: Path, items: Iterable[T], clocks: Clocks) -> None:
        """Store the things in force.

        Args:
            path: The file.
            items: The things in force.
            clocks: The current time.

        Raises:
            OSError: As of :meth:`save`.
        """
        self.save(path, self.to_stored(items, clocks))

    def save(self, path: Path, stored: Iterable[S]) -> None:
        """Replace the content of a file atomically, and return once it is on disk.

        Raises:
            OSError: It cannot be written. The file is unchanged or, if only the rename could not be
                written to the disk, has the new content.
        """
        body = {"schema_version": self.version, self.what: [vars(one) for one in stored]}
        replace_file(path, json.dumps(body, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class _Head:
    schema_version: int


def _check_times(one: Stored, where: str) -> None:
    """Refuse times that contradict, or are no dates: the API could not describe its daemon.

    Raises:
        ValueError: One is before the year 1 or after 9999, or stored by one clock only.
    """
    if (one.until is None) != (one.until_monotonic is None):
        raise ValueError(f"{where}: until and until_monotonic contradict")
    for seconds in (one.since, one.until):
        try:
            datetime.fromtimestamp(seconds or 0.0, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{where}: {seconds:g} is no date: {error}") from error
