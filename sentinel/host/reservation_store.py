"""Reservations in a file, so that a new daemon keeps free what the one before promised.

A time is kept by two clocks: the monotonic one, which nobody can set, but which begins anew at a
boot; and for after a boot in seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.protocol.caller import Caller
from sentinel.protocol.views import Reservation

#: What the file is called in a state folder.
NAME = "reservations.json"

#: The version of the file. One of a later version is a bad one.
SCHEMA = 2
#: The version before, which had no monotonic times.
_WITHOUT_MONOTONIC = 1

#: What can go wrong with a file that somebody else wrote.
_NOT_OURS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One reservation as it outlives a daemon; times are seconds since the epoch.

    ``boot`` is the boot of the host during which it was made: a PID of another one means nothing,
    nor do ``since_monotonic`` and ``until_monotonic``, the same times by the monotonic clock. Where
    there is no ``since_monotonic``, they were not stored.
    """

    id: str
    gpus: tuple[str, ...]
    reason: str
    since: float
    until: float | None
    since_monotonic: float | None
    until_monotonic: float | None
    bound: bool
    via: str
    uid: int | None
    pid: int | None
    started: int | None
    boot: str


def boot_id() -> str:
    """Return which boot of this host it is; empty where /proc does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def stored(
    reservations: Iterable[Reservation], *, wall: float, monotonic: float, boot: str
) -> tuple[Stored, ...]:
    """Return reservations as they are stored.

    Args:
        reservations: Those that hold.
        wall: Now, in seconds since the epoch.
        monotonic: Now, by the clock of the reservations.
        boot: This boot of the host.
    """
    ahead = wall - monotonic
    return tuple(
        Stored(
            id=held.id,
            gpus=held.gpus,
            reason=held.reason,
            since=round(held.since + ahead, 3),
            until=None if held.until is None else round(held.until + ahead, 3),
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


def revive(
    found: Iterable[Stored], *, wall: float, monotonic: float, boot: str
) -> tuple[Reservation, ...]:
    """Return those of what was stored that hold still, by the monotonic clock.

    Left out is what is over, and what ended with its process because the host was booted anew.
    Whether such a process still lives within one boot is for the one who watches it.

    Args:
        found: What was stored.
        wall: Now, in seconds since the epoch.
        monotonic: Now, by the clock that the reservations are to have.
        boot: This boot of the host.
    """
    return tuple(
        Reservation(
            id=one.id,
            gpus=one.gpus,
            reason=one.reason,
            # Its process is none of this boot's, so nobody may be named by its number.
            by=Caller(
                via=one.via,
                uid=one.uid,
                pid=one.pid if one.boot == boot else None,
                started=one.started if one.boot == boot else None,
            ),
            since=since,
            until=until,
            bound=one.bound,
            confirmed=True,
        )
        for one in found
        for since, until in [_times(one, wall, monotonic, boot)]
        if (until is None or until > monotonic) and (not one.bound or one.boot == boot)
    )


def _times(one: Stored, wall: float, monotonic: float, boot: str) -> tuple[float, float | None]:
    """Return when it began and when it ends, by the monotonic clock."""
    since = one.since_monotonic
    # What is yet to begin was not stored by this clock, whatever the boot is called.
    if since is not None and since <= monotonic and boot and one.boot == boot:
        return since, one.until_monotonic
    ahead = wall - monotonic
    until = None if one.until is None else _end(one.since, one.until, wall) - ahead
    return one.since - ahead, until


def _end(since: float, until: float, wall: float) -> float:
    """Return when it ends: where the clock was set back, no later than its whole time from now."""
    return min(until, wall + until - since)


def parse(text: str) -> tuple[Stored, ...]:
    """Return the reservations in the text of a file.

    Raises:
        ValueError: It is none of ours, or not whole.
    """
    try:
        body = json.loads(text)
        version = body["schema_version"]
        if version not in {SCHEMA, _WITHOUT_MONOTONIC}:
            raise ValueError(f"its schema_version is {version!r}, not {SCHEMA}")
        absent = {} if version == SCHEMA else {"since_monotonic": None, "until_monotonic": None}
        return tuple(_stored({**one, **absent}) for one in body["reservations"])
    except _NOT_OURS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def load(path: Path) -> tuple[tuple[Stored, ...], str | None]:
    """Return what a file has, and what is to be said of it if it is bad.

    A missing file has nothing. A bad one is set aside as ``.bad`` and has nothing either: nobody is
    kept from starting, and what was promised can be read there.
    """
    try:
        return parse(path.read_text()), None
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{path}: cannot be read: {error.strerror}; what was reserved is not known"
    except ValueError as error:
        bad = path.with_name(f"{path.name}.bad")
        try:
            path.replace(bad)
        except OSError as failed:
            return (), f"{path}: {error}; it cannot be set aside either: {failed.strerror}"
        return (), f"{path}: {error}; it was set aside as {bad}, and nothing is reserved"


def store(path: Path, reservations: Iterable[Stored]) -> None:
    """Put reservations in place of what a file has: all of them, or none if that fails.

    Raises:
        OSError: It cannot be written; the file is as it was.
    """
    body = {"schema_version": SCHEMA, "reservations": [vars(one) for one in reservations]}
    new = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(body, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _stored(body: dict[str, Any]) -> Stored:
    """Return one record; raises one of ``_NOT_OURS`` where it is none."""
    one = Stored(
        id=_of(str, body["id"]),
        gpus=tuple(_of(str, uuid) for uuid in _of(list, body["gpus"])),
        reason=_of(str, body["reason"]),
        since=_time(body["since"]),
        until=_time_or_none(body["until"]),
        since_monotonic=_time_or_none(body["since_monotonic"]),
        until_monotonic=_time_or_none(body["until_monotonic"]),
        bound=_of(bool, body["bound"]),
        via=_of(str, body["via"]),
        uid=_number(body["uid"]),
        pid=_number(body["pid"]),
        started=_number(body["started"]),
        boot=_of(str, body["boot"]),
    )
    ends = one.until is not None and one.since_monotonic is not None
    if ends != (one.until_monotonic is not None):
        raise ValueError(f"the ends of {one.id!r} are not one")
    return one


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def _number(value: Any) -> int | None:
    number: int | None = None if value is None else _of(int, value)
    return number


def _time_or_none(value: Any) -> float | None:
    return None if value is None else _time(value)


def _time(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return float(value)
