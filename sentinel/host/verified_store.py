"""What each GPU has proved under every daemon so far, in a file: verified work by UUID.

The file has for each GPU the sum, and how much of it is of the last daemon: an API process that is
replaced reads the same counts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sentinel.host.regular_file import read_regular, replace_file, set_aside
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.codec import from_json
from sentinel.protocol.views import VerifiedCounts

#: The name of the file in a state folder.
NAME = "verified.json"

#: A larger file is not one of ours: a thousand GPUs have less.
_MAX_BYTES = 2**20
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
    try:
        return read(path), None
    except OSError as error:
        return {}, f"{path}: cannot be read: {error.strerror}; earlier work is not counted"
    except ValueError as error:
        try:
            bad = set_aside(path)
        except OSError as failed:
            return {}, f"{path}: {error}; renaming it failed: {failed.strerror}"
        return {}, f"{path}: {error}; it was renamed to {bad}, and earlier work is not counted"


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


def save(path: Path, gpus: Mapping[str, StoredWork]) -> None:
    """Replace the content of the file atomically, and return once it is on disk.

    Raises:
        OSError: It cannot be written.
    """
    body = {
        "schema_version": SCHEMA_VERSION,
        "gpus": {uuid: asdict(one) for uuid, one in gpus.items()},
    }
    replace_file(path, json.dumps(body, indent=1) + "\n")
