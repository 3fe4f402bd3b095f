"""Take over the files of a daemon that had its state in the shared folder, once.

Daemons of all sockets had their state in one folder before each got its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.host.daemons.daemon_records import DaemonRecord
from sentinel.host.files.paths import Places, stderr_file
from sentinel.host.files.regular_file import open_regular, read_regular, sync_folder
from sentinel.host.logs.log_file import MAX_OLD_FILES
from sentinel.host.stores.reservation_store import RESERVATIONS

#: What every daemon that used the folder needs, and what one of them alone can have.
_COPIED = (RESERVATIONS.name, "token", "token-read")
_MOVED = ("history.db-wal", "history.db-shm", "history.db")
_MAX_BYTES = 2**24


def take_over(where: Places, known: Sequence[DaemonRecord]) -> list[Path]:
    """Bring the files of this daemon from the shared folder into its own.

    It had its state there if its record says so. That record is replaced at its start, so this is
    done once. Where another daemon had its state there, too, what all of them need is copied, and
    the rest is left to the other.

    Args:
        where: The paths of the daemon, which has the claim to them.
        known: The records of this user, before this daemon writes its own.

    Returns:
        The files that it has now.

    Raises:
        ConfigError: A file cannot be read or written.
    """
    try:
        return _take_over(where, known)
    except OSError as error:
        raise ConfigError(
            f"the files of this daemon in {where.shared} cannot be moved to {where.state}:"
            f" {error.strerror}. Nothing was started.",
            "Move them yourself, or remove the new folder and start again.",
        ) from error


def _take_over(where: Places, known: Sequence[DaemonRecord]) -> list[Path]:
    former = [one for one in known if Path(one.state) == where.shared and one.socket is not None]
    own = [one for one in former if one.socket == str(where.socket)]
    if where.state == where.shared or not own:
        return []
    alone = len(former) == len(own)
    taken = []
    for path, target in [*_files(where), *(_logs(where) if alone else ())]:
        if not path.is_file() or (target.exists() and target.stat().st_size):
            continue
        if alone:
            path.replace(target)
        elif path.name in _COPIED:
            _copy(path, target)
        else:
            continue
        taken.append(target)
    if taken:
        sync_folder(where.state)
    return taken


def _files(where: Places) -> Iterator[tuple[Path, Path]]:
    for name in (*_COPIED, *_MOVED):
        yield where.shared / name, where.state / name


def _logs(where: Places) -> Iterator[tuple[Path, Path]]:
    """Yield the log's files, unless the log is in a folder of its own."""
    if where.log.parent != where.state:
        return
    numbered = [f"{where.log.name}.{number}" for number in range(1, MAX_OLD_FILES + 1)]
    for name in (*numbered, where.log.name, stderr_file(where.log).name):
        yield where.shared / name, where.state / name


def _copy(path: Path, target: Path) -> None:
    """Copy a small file, with the mode of a secret."""
    data = read_regular(path, _MAX_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    part = target.with_name(f"{target.name}.new")
    with os.fdopen(open_regular(part, flags), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
