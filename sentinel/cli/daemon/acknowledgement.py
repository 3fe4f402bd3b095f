"""Acknowledge wrong results: by the daemon that has the GPU, or in the file where none runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.client import connect
from sentinel.errors import AccessDeniedError, ConfigError, ConflictError, NotRunningError
from sentinel.host.gpus.known_gpus import KnownGpu, select_known
from sentinel.host.stores import verified_store
from sentinel.protocol.api_types import Outcome
from sentinel.units import format_count

#: As long as a daemon allows.
_MAX_REASON_LENGTH = 200


def acknowledge(
    selectors: Sequence[str],
    reason: str,
    gpus: Mapping[KnownGpu, str | None],
    sockets: Sequence[str],
    path: Path,
) -> Outcome:
    """Acknowledge the wrong results of GPUs, and return once that is on disk.

    Args:
        selectors: The GPUs, as for ``select_known``.
        reason: Why the results no longer count.
        gpus: The known GPUs, each with the socket of the daemon that has it, or None.
        sockets: The sockets of all daemons that share the file.
        path: The file of verified work.

    Raises:
        ConfigError: The reason is empty, too long or not one line, or the file cannot be used.
        ConflictError: No wrong results count against these GPUs.
        NoSuchGpuError: A selector matches no GPU, or several.
        SentinelError: A daemon refuses it.
    """
    if not 0 < len(reason) <= _MAX_REASON_LENGTH or not reason.isprintable():
        raise ConfigError(f"--reason: give 1 to {_MAX_REASON_LENGTH} characters of one line")
    chosen = select_known(selectors, list(gpus))
    owners = {gpu.uuid: socket for gpu, socket in gpus.items()}
    texts: list[str] = []
    done: list[str] = []
    for owner in dict.fromkeys(owners[uuid] for uuid in chosen):
        uuids = [uuid for uuid in chosen if owners[uuid] == owner]
        outcome = _by_daemon(uuids, reason, sockets if owner is None else [owner])
        if outcome is None:
            outcome = _in_file(uuids, reason, path)
        texts.append(outcome.text)
        done += outcome.gpus
    return Outcome(text="\n".join(texts), gpus=tuple(done))


def _by_daemon(uuids: Sequence[str], reason: str, sockets: Sequence[str]) -> Outcome | None:
    """Have a daemon do it, which knows also what is not in the file yet; None if none runs."""
    for socket in sockets:
        try:
            return connect(socket).acknowledge(uuids, reason)
        except NotRunningError:
            continue
    return None


def _in_file(uuids: Sequence[str], reason: str, path: Path) -> Outcome:
    """Do it in the file.

    Raises:
        AccessDeniedError: The file is another user's.
        ConfigError: The file cannot be read or written.
        ConflictError: No wrong results count against these GPUs.
    """
    try:
        if path.exists() and path.stat().st_uid != os.geteuid():
            remedy = "Run this as that user: the file would no longer be readable to it."
            raise AccessDeniedError(f"{path} belongs to another user", remedy)
        done = verified_store.acknowledge(path, uuids, _user(), reason) if path.exists() else {}
    except OSError as error:
        raise ConfigError(f"nothing was acknowledged: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no file of verified work: {error}") from None
    if not done:
        raise ConflictError(f"no wrong results count against {', '.join(uuids)}")
    counts = "; ".join(
        f"{format_count(one.errors + one.findings, 'wrong result')} of {uuid}"
        for uuid, one in done.items()
    )
    return Outcome(text=f"acknowledged {counts}; no daemon runs", gpus=tuple(done))


def _user() -> str:
    """Name the user of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"
