"""Sessions in a file, so that they outlive the daemon and a reboot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.host.regular_file import replace_file
from sentinel.host.timed_file import check_times, load_file, monotonic_times
from sentinel.protocol.caller import Caller
from sentinel.protocol.codec import from_json
from sentinel.protocol.views import Session

#: The name of the file in a state folder.
NAME = "sessions.json"
#: The version of the file format. Another version is refused.
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoredSession:
    """One session in the file."""

    name: str
    gpus: tuple[str, ...]
    #: The texts of its settings, by key.
    settings: Mapping[str, str]
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


@dataclass(frozen=True, kw_only=True)
class _File:
    schema_version: int
    sessions: tuple[Mapping[str, Any], ...]


def to_stored(
    sessions: Iterable[Session], *, wall: float, monotonic: float, boot: str
) -> tuple[StoredSession, ...]:
    """Convert sessions to their stored form.

    Args:
        sessions: The sessions in force.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.
    """
    offset = wall - monotonic
    return tuple(
        StoredSession(
            name=one.name,
            gpus=one.gpus,
            settings=one.settings,
            since=round(one.since + offset, 3),
            until=None if one.until is None else round(one.until + offset, 3),
            since_monotonic=one.since,
            until_monotonic=one.until,
            via=one.by.via,
            uid=one.by.uid,
            pid=one.by.pid,
            started=one.by.started,
            boot=boot,
        )
        for one in sessions
    )


def restore(
    stored: Iterable[StoredSession], *, wall: float, monotonic: float, boot: str
) -> tuple[Session, ...]:
    """Convert stored sessions back; the supervisor ends and reports those that are over.

    Args:
        stored: The sessions in the file.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.
    """
    return tuple(
        Session(
            name=one.name,
            gpus=one.gpus,
            settings=one.settings,
            # In another boot, the PID belongs to another process.
            by=Caller(
                via=one.via,
                uid=one.uid,
                pid=one.pid if one.boot == boot else None,
                started=one.started if one.boot == boot else None,
            ),
            since=since,
            until=until,
        )
        for one in stored
        for since, until in [monotonic_times(one, wall, monotonic, boot)]
    )


def parse(text: str) -> tuple[StoredSession, ...]:
    """Parse the text of a file.

    Raises:
        ValueError: It is not a file of sessions, or incomplete.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    file = from_json(_File, body)
    if file.schema_version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: {file.schema_version} is not {SCHEMA_VERSION}")
    stored = tuple(
        from_json(StoredSession, one, f"sessions[{number}]")
        for number, one in enumerate(file.sessions)
    )
    for number, one in enumerate(stored):
        if (one.until is None) != (one.until_monotonic is None):
            raise ValueError(f"sessions[{number}]: until and until_monotonic contradict")
        check_times(one, f"sessions[{number}]")
    return stored


def load(path: Path) -> tuple[tuple[StoredSession, ...], str | None]:
    """Read the sessions in a file, and the problem with the file or None, as ``load_file`` does."""
    return load_file(path, parse, "sessions")


def write(
    path: Path, sessions: Iterable[Session], *, wall: float, monotonic: float, boot: str
) -> None:
    """Replace the content of a file atomically, and return once it is on disk.

    Args:
        path: The file.
        sessions: The sessions in force.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.

    Raises:
        OSError: It cannot be written. The file is unchanged or, if only the rename could not be
            written to the disk, has the new content.
    """
    stored = to_stored(sessions, wall=wall, monotonic=monotonic, boot=boot)
    body = {"schema_version": SCHEMA_VERSION, "sessions": [vars(one) for one in stored]}
    replace_file(path, json.dumps(body, indent=1) + "\n")
