"""``sentinel health --acknowledge``: the wrong results of a repaired GPU no longer count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.cli.daemon.known_faults import acknowledge_stored, stored_faults
from sentinel.client import connect
from sentinel.config.gpu_selection import KnownGpu, select_known
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    NoSuchGpuError,
    NotRunningError,
)
from sentinel.host import verified_store
from sentinel.host.lookups import look_up
from sentinel.protocol.api_types import AcknowledgedResults, Outcome, RepairOutcome
from sentinel.units import format_count

#: As long as a daemon allows.
_MAX_REASON_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class OwnedGpu(KnownGpu):
    """A GPU, with the daemon that has it."""

    #: The socket of the running daemon that has it; None if none has.
    socket: str | None = None


def acknowledge(
    selectors: Sequence[str],
    reason: str,
    cards: Sequence[OwnedGpu],
    sockets: Sequence[str],
    path: Path,
    outcome: RepairOutcome | None = None,
) -> Outcome:
    """Acknowledge the wrong results of GPUs, and return once that is on disk.

    Args:
        selectors: The GPUs, as for ``select_known``.
        reason: Why the results no longer count.
        cards: The known GPUs.
        sockets: The sockets of all daemons that share the file.
        path: The file of verified work.
        outcome: What became of the GPUs; None if that is not known.

    Raises:
        ConfigError: The reason is empty, too long or not one line, or the file cannot be used.
        ConflictError: No wrong results count against these GPUs.
        NoSuchGpuError: A selector matches no GPU, or several.
        SentinelError: A daemon refuses it.
    """
    if not 0 < len(reason) <= _MAX_REASON_LENGTH or not reason.isprintable():
        raise ConfigError(f"--reason: give 1 to {_MAX_REASON_LENGTH} characters of one line")
    owners = {card.uuid: card.socket for card in cards}
    by_owner: dict[str | None, list[str]] = {}
    for uuid in select_known(selectors, cards):
        by_owner.setdefault(owners[uuid], []).append(uuid)
    outcomes = [
        (
            _by_daemon(uuids, reason, outcome, [owner])
            if owner is not None
            else _without_owner(uuids, reason, outcome, sockets, path)
        )
        or _in_file(uuids, reason, outcome, path)
        for owner, uuids in by_owner.items()
    ]
    return Outcome(
        text="\n".join(done.text for done in outcomes),
        gpus=tuple(gpu for done in outcomes for gpu in done.gpus),
    )


def _by_daemon(
    uuids: Sequence[str], reason: str, outcome: RepairOutcome | None, sockets: Sequence[str]
) -> Outcome | None:
    """Acknowledge through a daemon, which also has unwritten counts; None if none runs."""
    for socket in sockets:
        try:
            return connect(socket).acknowledge(uuids, reason, outcome)
        except NotRunningError:
            continue
    return None


def _without_owner(
    uuids: Sequence[str],
    reason: str,
    outcome: RepairOutcome | None,
    sockets: Sequence[str],
    path: Path,
) -> Outcome | None:
    """Do it through a daemon that has other GPUs; None if none runs.

    It does not know the faults that another one has stored before it ended.
    """
    try:
        return _by_daemon(uuids, reason, outcome, sockets)
    except (ConflictError, NoSuchGpuError):
        if not _faulty(path).keys() & set(uuids):
            raise
        return None


def _faulty(path: Path) -> dict[str, verified_store.StoredWork]:
    """Return the GPUs whose stored faults can be acknowledged; see ``verified_store.unworked``."""
    faults = (one for one in stored_faults(path.parent) if one.xids)
    return {one.gpu.uuid: verified_store.unworked(one.gpu) for one in faults}


def _in_file(
    uuids: Sequence[str], reason: str, outcome: RepairOutcome | None, path: Path
) -> Outcome:
    """Do it in the file.

    Raises:
        AccessDeniedError: The file is another user's.
        ConfigError: The file cannot be read or written.
        ConflictError: No wrong results or XIDs count against these GPUs.
    """
    try:
        if path.exists() and path.stat().st_uid != os.geteuid():
            remedy = "Run this as that user: the file would no longer be readable to it."
            raise AccessDeniedError(f"{path} belongs to another user", remedy)
        user = look_up(os.getuid()) or f"user {os.getuid()}"
        done = verified_store.acknowledge(path, uuids, user, reason, outcome, _faulty(path))
        acknowledge_stored(path.parent, uuids)
    except OSError as error:
        raise ConfigError(f"nothing was acknowledged: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no file of verified work: {error}") from None
    if not done:
        raise ConflictError(f"no wrong results or XIDs count against {', '.join(uuids)}")
    counts = "; ".join(f"{count_of(one)} of {uuid}" for uuid, one in done.items())
    text = f"acknowledged {counts}; no running daemon knew of it"
    return Outcome(text=text, gpus=tuple(done))


def count_of(results: verified_store.StoredAcknowledgement | AcknowledgedResults) -> str:
    """Count what was acknowledged; without wrong results, it was faults."""
    wrong = results.errors + results.findings
    return format_count(wrong, "wrong result") if wrong else "faults"
