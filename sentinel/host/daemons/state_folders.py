"""The state directories of this user's daemons, also of those that have ended, and their sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.host.daemons.daemon_lookup import running_daemons
from sentinel.host.daemons.daemon_records import DaemonRecord, read_all, records_folder
from sentinel.host.files.paths import SOCKETS, places, shared_folder, state_folder

#: Directories in a state directory that are not of its daemon alone.
_OTHERS = frozenset({SOCKETS, "daemons"})


@dataclass(frozen=True, kw_only=True)
class KnownDaemon:
    """A daemon of this user that runs or has a state directory."""

    #: Whether its process runs, as far as it is visible from here.
    running: bool
    pid: int | None
    #: When it started, in seconds since the epoch; None if there is no record of it.
    since: float | None
    #: The path of its socket; None if there is no record of it.
    socket: str | None
    #: The number of its simulated GPUs, or None with real ones or without a record.
    simulated: int | None
    state: Path
    #: What the files of its state directory take on the disk, without those of other daemons.
    size: int
    #: When one of these files was changed last, in seconds since the epoch; None without files.
    changed: float | None


def known_daemons(environ: Mapping[str, str], uid: int) -> list[KnownDaemon]:
    """List the daemons that run, then those that have ended, the newest first.

    Raises:
        ConfigError: ``$SENTINEL_SOCKET`` is not an absolute path.
    """
    records = [one for one in read_all(records_folder(environ, uid)) if one.socket is not None]
    running = running_daemons(records, places(environ, uid))
    ended = [one for one in records if not one.alive and Path(one.state).is_dir()]
    found = [_describe(Path(one.state), one, running=True) for one in running]
    found += [_describe(Path(one.state), one) for one in ended]
    shared = {shared_folder(one.state) for one in found} | {state_folder(environ, uid)}
    known = {one.state for one in found}
    others = [_describe(path, None) for path in _of_sockets(shared) if path not in known]
    found += [one for one in others if one.changed is not None]  # there is nothing in the others
    return sorted(found, key=lambda one: (not one.running, -(one.since or one.changed or 0)))


def _describe(state: Path, record: DaemonRecord | None, *, running: bool = False) -> KnownDaemon:
    """Describe a state directory; records are limited, so that its daemon may have left none."""
    size, changed = _measure(state)
    return KnownDaemon(
        running=running,
        pid=record.pid if record is not None and running else None,
        since=(record.since or None) if record is not None else None,
        socket=record.socket if record is not None else None,
        simulated=record.simulate if record is not None else None,
        state=state,
        size=size,
        changed=changed,
    )


def _of_sockets(shared: Iterable[Path]) -> Iterator[Path]:
    """Yield the state directories of daemons with sockets of their own."""
    for folder in sorted(shared):
        try:
            entries = sorted(os.scandir(folder / SOCKETS), key=lambda one: one.name)
        except OSError:  # none has one, or it is another user's
            continue
        yield from (Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))


def _measure(state: Path) -> tuple[int, float | None]:
    """Compute the size of a state directory on the disk, and its last change."""
    size, changed = 0, None
    for folder, folders, files in os.walk(state):
        if Path(folder) == state:
            folders[:] = [name for name in folders if name not in _OTHERS]
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - in a loop
            except OSError:  # removed by its daemon
                continue
            size += found.st_blocks * 512
            changed = max(changed or 0.0, found.st_mtime)
    return size, changed
