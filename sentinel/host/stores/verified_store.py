"""What each GPU has proved under every daemon so far, in a file: verified work by UUID.

The file has for each GPU the sum, and how much of it is of the last daemon: an API process that is
replaced reads the same counts again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from sentinel.host.files.regular_file import (
    load_or_set_aside,
    open_regular,
    read_regular,
    replace_file,
)
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.codec import from_json
from sentinel.protocol.views import VerifiedCounts

#: The name of the file in a state folder.
NAME = "verified.json"

#: A larger file is not one of ours: a thousand GPUs have less.
_MAX_BYTES = 2**20
#: How long another process may lock the file, and how often that is retried.
_LOCK_TIMEOUT_S = 5.0
_RETRY_INTERVAL_S = 0.02
#: The version of the file format. A later version is refused.
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoredWork:
    """What a GPU has proved. Times are seconds since the epoch."""

    index: int
    name: str
    #: The serial number of the board; None if it has none, or is not known yet.
    serial: str | None = None
    #: Since when it is counted.
    since: float
    #: The end of the last verified work, and its workload; None if there was none.
    last: float | None = None
    workload: str | None = None
    total: VerifiedCounts = field(default_factory=VerifiedCounts)
    #: The part of ``total`` that is of the daemon that began at ``daemon``.
    counted: VerifiedCounts = field(default_factory=VerifiedCounts)
    daemon: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _File:
    schema_version: int
    gpus: Mapping[str, StoredWork]


def load(path: Path) -> tuple[dict[str, StoredWork], str | None]:
    """Read the file: the work by UUID, and the problem with the file or None.

    A missing file is empty. An invalid file is set aside and counts as empty.
    """
    return load_or_set_aside(path, lambda: read(path), empty={}, loss="earlier work is not counted")


def read(path: Path) -> dict[str, StoredWork]:
    """Read the file: the work by UUID; a missing file is empty.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a file of verified work.
    """
    try:
        text = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        return {}
    try:
        file = from_json(_File, json.loads(text))
    except RecursionError as error:
        raise ValueError("not JSON") from error
    if file.schema_version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: {file.schema_version} is not {SCHEMA_VERSION}")
    for work in file.gpus.values():
        try:
            proof_of(work)
        except (OverflowError, OSError) as error:
            raise ValueError(f"a time is out of range: {error}") from error
    return dict(file.gpus)


def proof_of(work: StoredWork) -> GpuProof:
    """Convert the work of a GPU into the form of the API."""
    return GpuProof(
        **vars(work.total),
        since=_moment(work.since),
        last=None if work.last is None else _moment(work.last),
        workload=work.workload,
    )


def _moment(seconds: float) -> datetime:
    """Convert seconds since the epoch into a date with its offset, to the second."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().replace(microsecond=0)


def save(
    path: Path, gpus: Mapping[str, StoredWork], before: Mapping[str, StoredWork]
) -> dict[str, StoredWork]:
    """Replace the content of the file atomically, and return once it is on disk.

    Daemons with sockets of their own share the file. What another one has written since ``before``
    is kept: only what is new in ``gpus`` is added.

    Args:
        path: The file.
        gpus: The work by UUID.
        before: The same, as it was last read or written by this process.

    Returns:
        What the file has now.

    Raises:
        OSError: It cannot be read or written.
    """
    with _locked(path):
        try:
            merged = read(path)
        except ValueError:  # damaged since it was read
            merged = {}
        for uuid, work in gpus.items():
            there, known = merged.get(uuid), before.get(uuid)
            if there is not None and known is not None and _proofs(work) == _proofs(known):
                continue
            if there is None or there == known:
                merged[uuid] = work
            else:
                counted = VerifiedCounts() if known is None else known.total
                merged[uuid] = replace(
                    work,
                    since=min(work.since, there.since),
                    total=add(there.total, work.total, counted),
                )
        body = {
            "schema_version": SCHEMA_VERSION,
            "gpus": {uuid: asdict(one) for uuid, one in merged.items()},
        }
        replace_file(path, json.dumps(body, indent=1) + "\n")
    return merged


def add(total: VerifiedCounts, now: VerifiedCounts, counted: VerifiedCounts) -> VerifiedCounts:
    """Add to a total what counts have more than those that it has already."""
    return VerifiedCounts(
        **{
            one.name: getattr(total, one.name) + getattr(now, one.name) - getattr(counted, one.name)
            for one in fields(VerifiedCounts)
        }
    )


def _proofs(work: StoredWork) -> tuple[VerifiedCounts, float | None]:
    """Return what a GPU has proved, without which daemon counted it."""
    return work.total, work.last


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file against other daemons while it is read and replaced.

    Raises:
        OSError: The lock's file cannot be opened, or another process keeps it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    file = open_regular(path.with_name(f"{path.name}.lock"), flags)
    try:
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(errno.EBUSY, "another process keeps its lock") from None
                time.sleep(_RETRY_INTERVAL_S)
        yield
    finally:
        os.close(file)
