"""What each GPU has proved, in a file: verified work by UUID."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentinel.errors import ConfigError
from sentinel.host.last_verdicts import LastVerdict, last_verdicts, report_paths
from sentinel.host.regular_file import (
    files_set_aside,
    load_or_set_aside,
    locked,
    make_private,
    open_regular,
    read_regular,
    replace_file,
)
from sentinel.protocol.api_types import AcknowledgedResults, GpuProof, GpuStatus, RepairOutcome
from sentinel.protocol.codec import from_json
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.views import GpuView, VerifiedCounts

#: The name of the file in a state folder.
NAME = "verified.json"

#: A larger file is not one of ours: a thousand GPUs have less.
_MAX_BYTES = 2**20
#: How long another process may lock the file.
_LOCK_TIMEOUT_S = 5.0
_COUNTS = fields(VerifiedCounts)
#: The version of the file format. A later version is refused.
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoredAcknowledgement:
    """Wrong results or faults that no longer count; see ``AcknowledgedResults`` for the fields."""

    at: float
    by: str
    reason: str
    errors: int
    findings: int
    outcome: RepairOutcome | None = None


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
    #: What was acknowledged, oldest first. Only :func:`acknowledge` adds to it, in the file.
    acknowledged: tuple[StoredAcknowledgement, ...] = ()


def known_gpus(state: Path) -> dict[str, str]:
    """Describe the GPUs of a state folder's verified work and reports, by UUID.

    A file that cannot be read names none: they help to find a GPU, and decide nothing.
    """
    found: dict[str, StoredWork | LastVerdict] = {}
    with contextlib.suppress(OSError, ValueError):
        found.update(read(state / NAME))
    found.update(last_verdicts(report_paths(state)))
    return {uuid: _describe(uuid, gpu) for uuid, gpu in found.items()}


def _describe(uuid: str, gpu: StoredWork | LastVerdict) -> str:
    address = gpu.pci_bus_id if isinstance(gpu, LastVerdict) else None
    more = {"serial": gpu.serial, "PCI": address}
    return ", ".join(
        [f"GPU {gpu.index} {uuid}", *(f"{name} {value}" for name, value in more.items() if value)]
    )


def confirmed_faulty(state: Path) -> dict[str, int]:
    """Count the GPUs of a state folder whose fault is confirmed, and those Sentinel found first.

    A file that cannot be read has none: they are shown, and decide nothing.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        for work in read(state / NAME).values():
            outcomes = [results.outcome for results in work.acknowledged if results.outcome]
            if outcomes[-1:] == [RepairOutcome.CONFIRMED]:
                found.append(any(one.errors or one.findings for one in work.acknowledged))
    return {"known": len(found), "found_first": sum(found)}


def acknowledged_at(state: Path) -> dict[str, float]:
    """Read when the faults of each GPU of a state folder were acknowledged last, by its UUID.

    Seconds since the epoch. A file that cannot be read has none: what is told twice harms nothing.
    """
    with contextlib.suppress(OSError, ValueError):
        works = read(state / NAME).items()
        return {uuid: work.acknowledged[-1].at for uuid, work in works if work.acknowledged}
    return {}


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


def read_for_command(path: Path) -> dict[str, StoredWork]:
    """Read the file for a command, as :func:`read`; one that was written must still be there.

    Raises:
        ConfigError: It cannot be read, is gone, or is not a file of verified work.
    """
    if not path.exists() and _lock_of(path).exists():
        what = f"{path} is missing: what its daemons have found is not known"
        raise ConfigError(what, f"Restore it, or remove {_lock_of(path).name} to begin again.")
    try:
        return read(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no file of verified work: {error}") from None


def why_forgotten(path: Path) -> str | None:
    """Explain why what was found earlier is not known, or return None.

    A daemon has set a damaged file aside and begun another. Wrong results are not taken back by
    that: only the removal of the damaged file says that its content no longer matters.
    """
    kept = files_set_aside(path)
    what = "is damaged: what it had is not known until it is removed (read it first)"
    return f"{kept[0]} {what}" if kept else None


def proof_of(work: StoredWork) -> GpuProof:
    """Convert the work of a GPU into the form of the API."""
    return GpuProof(
        **vars(work.total),
        since=_moment(work.since),
        last=None if work.last is None else _moment(work.last),
        workload=work.workload,
        acknowledged=tuple(
            AcknowledgedResults(**{**vars(results), "at": _moment(results.at)})
            for results in work.acknowledged
        ),
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
                    # No less than what this process has counted, also if the file is an older copy.
                    total=highest(add(there.total, work.total, counted), work.total),
                    acknowledged=there.acknowledged,
                )
        _write(path, merged)
    return merged


def add_work(path: Path, gpus: Iterable[GpuStatus]) -> None:
    """Add to the file what GPUs have proved under a private daemon, at its end.

    What the daemons of the host have counted meanwhile is kept.

    Args:
        path: The file.
        gpus: The GPUs, as that daemon has them.

    Raises:
        OSError: It cannot be read or written, or would be too large.
        ValueError: It is not a file of verified work, and stays as it is.
    """
    make_private(path.parent)
    with _locked(path):
        merged = read(path)
        for gpu in gpus:
            proof = gpu.verified
            if proof is None or proof.last is None:
                continue
            since, last = proof.since.timestamp(), proof.last.timestamp()
            there = merged.get(gpu.uuid) or StoredWork(index=gpu.index, name=gpu.name, since=since)
            now = VerifiedCounts(**{count.name: getattr(proof, count.name) for count in _COUNTS})
            merged[gpu.uuid] = replace(
                there,
                index=gpu.index,
                serial=gpu.serial,
                last=last,
                workload=proof.workload,
                total=add(there.total, now, VerifiedCounts()),
            )
        _write(path, merged)


def unworked(gpu: Gpu | GpuView) -> StoredWork:
    """Build what is stored of a GPU that has verified nothing."""
    since = round(time.time(), 3)
    return StoredWork(index=gpu.index, name=gpu.name, serial=gpu.serial, since=since)


def acknowledge(
    path: Path,
    uuids: Iterable[str],
    by: str,
    reason: str,
    outcome: RepairOutcome | None = None,
    faulty: Mapping[str, StoredWork] = MappingProxyType({}),
) -> dict[str, StoredAcknowledgement]:
    """Acknowledge all wrong results of GPUs in the file, and return once that is on disk.

    The counts stay as they are. A later wrong result counts again.

    Args:
        path: The file.
        uuids: The GPUs; one without wrong results that count is left out, unless its fault is
            confirmed: then Sentinel has not found it, which is recorded, too. One with earlier
            acknowledgements gets a later outcome.
        by: The user.
        reason: Why they no longer count.
        outcome: What became of the GPUs; None if that is not known.
        faulty: The GPUs with known faults, which are acknowledged, too, by UUID; see
            :func:`unworked`.

    Returns:
        What was acknowledged, by UUID.

    Raises:
        OSError: It cannot be read or written, or would be too large.
        ValueError: It is not a file of verified work.
    """
    done: dict[str, StoredAcknowledgement] = {}
    if not path.exists() and not faulty:
        return done
    with _locked(path):
        gpus = read(path)
        for uuid in uuids:
            work = gpus.get(uuid, faulty.get(uuid))
            if work is None:
                continue
            before = work.acknowledged
            is_later = outcome is not None and bool(before)
            is_confirmed = outcome is RepairOutcome.CONFIRMED
            if not (proof_of(work).wrong or is_later or is_confirmed or uuid in faulty):
                continue
            done[uuid] = StoredAcknowledgement(
                at=round(time.time(), 3),
                by=by,
                reason=reason,
                errors=work.total.errors - sum(results.errors for results in before),
                findings=work.total.findings - sum(results.findings for results in before),
                outcome=outcome,
            )
            gpus[uuid] = replace(work, acknowledged=(*before, done[uuid]))
        if done:
            _write(path, gpus)
    return done


def _write(path: Path, gpus: Mapping[str, StoredWork]) -> None:
    """Replace the content of the file atomically, and return once it is on disk.

    Raises:
        OSError: It cannot be written, or is larger than a file that is read.
    """
    body = {
        "schema_version": SCHEMA_VERSION,
        "gpus": {uuid: asdict(gpu) for uuid, gpu in gpus.items()},
    }
    text = json.dumps(body, indent=1) + "\n"
    if len(text) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it would have more than {_MAX_BYTES:,} bytes", str(path))
    replace_file(path, text)


def add(total: VerifiedCounts, now: VerifiedCounts, counted: VerifiedCounts) -> VerifiedCounts:
    """Add to a total what counts have more than those that it has already.

    The difference comes first: ``total + now - now`` can be less than ``total`` in its last digit,
    which a reader of a counter takes for a restart from zero.
    """
    return _combine(lambda *values: values[0] + max(0, values[1] - values[2]), total, now, counted)


def highest(first: VerifiedCounts, second: VerifiedCounts) -> VerifiedCounts:
    """Return the higher of each two counts."""
    return _combine(max, first, second)


def _combine(function: Callable[..., Any], *counts: VerifiedCounts) -> VerifiedCounts:
    names = [field.name for field in _COUNTS]
    return VerifiedCounts(
        **{name: function(*(getattr(count, name) for count in counts)) for name in names}
    )


def _proofs(work: StoredWork) -> tuple[VerifiedCounts, float | None]:
    """Return what a GPU has proved, without which daemon counted it."""
    return work.total, work.last


def _locked(path: Path) -> contextlib.AbstractContextManager[int]:
    """Lock the file against other daemons while it is read and replaced.

    Raises:
        OSError: The lock's file cannot be opened, or another process keeps it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    return locked(open_regular(_lock_of(path), flags), _LOCK_TIMEOUT_S)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
