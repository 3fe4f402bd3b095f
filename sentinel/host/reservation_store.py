"""Reservations in a file, so that they outlive the daemon and a reboot.

Times are stored by two clocks: the monotonic one, which cannot be set but restarts at a reboot, and
seconds since the epoch for use after one.
"""

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
from sentinel.protocol.views import Reservation

#: The name of the file in a state folder.
NAME = "reservations.json"

#: The version of the file format. A later version is refused.
SCHEMA_VERSION = 2
#: The version before, without monotonic times.
_WITHOUT_MONOTONIC = 1


@dataclass(frozen=True, kw_only=True)
class StoredReservation:
    """One reservation in the file."""

    id: str
    gpus: tuple[str, ...]
    reason: str
    #: When it began and when it ends, in seconds since the epoch.
    since: float
    until: float | None
    #: The same times by the monotonic clock; ``since_monotonic`` is None if they were not stored.
    since_monotonic: float | None
    until_monotonic: float | None
    bound: bool
    via: str
    uid: int | None
    pid: int | None
    started: int | None
    #: The boot of the host during which it was stored; PIDs and monotonic times hold for that boot.
    boot: str


@dataclass(frozen=True, kw_only=True)
class _File:
    schema_version: int
    reservations: tuple[Mapping[str, Any], ...]


def to_stored(
    reservations: Iterable[Reservation], *, wall: float, monotonic: float, boot: str
) -> tuple[StoredReservation, ...]:
    """Convert reservations to their stored form.

    Args:
        reservations: The reservations in force.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.
    """
    offset = wall - monotonic
    return tuple(
        StoredReservation(
            id=held.id,
            gpus=held.gpus,
            reason=held.reason,
            since=round(held.since + offset, 3),
            until=None if held.until is None else round(held.until + offset, 3),
            since_monotonic=held.since,
            until_monotonic=held.until,
            bound=held.bound,
            via=held.by.via,
            uid=held.by.uid,
            pid=held.by.pid,
            started=held.by.started,
            boot=boot,
        )
        for held in reservations
    )


def restore(
    stored: Iterable[StoredReservation], *, wall: float, monotonic: float, boot: str
) -> tuple[Reservation, ...]:
    """Convert stored reservations back; the supervisor ends and reports those that are over.

    A reservation bound to a process of an earlier boot is over. Within one boot, the API process
    checks whether the process is alive.

    Args:
        stored: The reservations in the file.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.
    """
    return tuple(
        Reservation(
            id=one.id,
            gpus=one.gpus,
            reason=one.reason,
            # In another boot, the PID belongs to another process.
            by=Caller(
                via=one.via,
                uid=one.uid,
                pid=one.pid if one.boot == boot else None,
                started=one.started if one.boot == boot else None,
            ),
            since=since,
            until=monotonic if one.bound and one.boot != boot else until,
            bound=one.bound,
            confirmed=True,
        )
        for one in stored
        for since, until in [monotonic_times(one, wall, monotonic, boot)]
    )


def parse(text: str) -> tuple[StoredReservation, ...]:
    """Parse the text of a file.

    Raises:
        ValueError: It is not a file of reservations, or incomplete.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    file = from_json(_File, body)
    if file.schema_version not in {SCHEMA_VERSION, _WITHOUT_MONOTONIC}:
        raise ValueError(f"schema_version: {file.schema_version} is not {SCHEMA_VERSION}")
    absent = {"since_monotonic": None, "until_monotonic": None}
    if file.schema_version == SCHEMA_VERSION:
        absent = {}
    found = tuple(
        from_json(StoredReservation, {**one, **absent}, f"reservations[{number}]")
        for number, one in enumerate(file.reservations)
    )
    for number, one in enumerate(found):
        ends = one.until is not None and one.since_monotonic is not None
        if ends != (one.until_monotonic is not None):
            raise ValueError(f"reservations[{number}]: until and until_monotonic contradict")
        check_times(one, f"reservations[{number}]")
    return found


def load(path: Path) -> tuple[tuple[StoredReservation, ...], str | None]:
    """Read the reservations in a file, and the problem with the file or None.

    A missing file is empty. An invalid file is set aside and counts as empty, so that the daemon
    starts and its content is kept.
    """
    return load_file(path, parse, "reservations")


def write(
    path: Path, reservations: Iterable[Reservation], *, wall: float, monotonic: float, boot: str
) -> None:
    """Store the reservations in force, as of :func:`to_stored`.

    Raises:
        OSError: As of :func:`save`.
    """
    save(path, to_stored(reservations, wall=wall, monotonic=monotonic, boot=boot))


def save(path: Path, reservations: Iterable[StoredReservation]) -> None:
    """Replace the content of a file atomically, and return once it is on disk.

    Raises:
        OSError: It cannot be written. The file is unchanged or, if only the rename could not be
            written to the disk, has the new content.
    """
    body = {"schema_version": SCHEMA_VERSION, "reservations": [vars(one) for one in reservations]}
    replace_file(path, json.dumps(body, indent=1) + "\n")
