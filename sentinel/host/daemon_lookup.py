"""Find the daemon that a command of this user means, and list all that run or have ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import AccessDeniedError, ConfigError
from sentinel.host.paths import (
    SIMULATED,
    SOCKET_VARIABLE,
    SOCKETS,
    Places,
    places,
    shared_folder,
    state_folder,
)
from sentinel.host.registry import DaemonRecord, read, read_all, records_folder, why_not_linked
from sentinel.host.regular_file import why_untrusted

_CHOOSE = (
    "Choose one: --socket PATH or SENTINEL_SOCKET; one of simulated GPUs also by SENTINEL_SIM_DIR."
)
#: The socket of the service of the host, in a folder of root.
SERVICE_SOCKET = places({}, 0).socket
#: Directories in a state directory that are not of its daemon alone.
_OTHERS = frozenset({SOCKETS, "daemons"})
#: A named socket is not checked.
_NAME_IT = "Name it if its user is trusted: --socket PATH or SENTINEL_SOCKET."


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where one daemon has its files, running or not."""

    socket: str
    state: Path
    #: The file of the log, or None if it has none.
    log: Path | None
    #: The match for journalctl if the log is in the journal, or None.
    journal: str | None = None
    #: The folder of its simulated GPUs, or None.
    simulated: Path | None = None
    #: The latest daemon there, or None if none is known.
    record: DaemonRecord | None = None


def locate(socket: str | None = None, simulated: Path | None = None) -> Location:
    """Find a daemon of this user.

    It is that of ``socket``, of ``simulated``, of ``$SENTINEL_SOCKET`` or of ``$SENTINEL_SIM_DIR``.
    If none of them is given, it is the only daemon of this user that runs; if none runs, the one of
    the default paths.

    Args:
        socket: The path that a user or a script gave.
        simulated: The folder of the simulated GPUs, if they are used.

    Raises:
        AccessDeniedError: Another user could have put the socket there.
        ConfigError: Several daemons run, or ``$SENTINEL_SOCKET`` is not an absolute path.
    """
    folder = os.environ.get(SIMULATED)
    chosen = simulated or (Path(folder) if folder else None)
    usual = places(os.environ, os.getuid(), chosen)
    if socket is not None:
        return _at(socket, chosen)
    if not usual.named and chosen is None:
        running = _running(usual)
        if len(running) > 1:
            listed = "".join(f"\n  {daemon}" for daemon in running)
            raise ConfigError(f"{len(running)} daemons of this user run:{listed}", _CHOOSE)
        if running:
            return _of_record(running[0])
    _check_trusted(usual)
    return _at(str(usual.socket), chosen)


def last_location() -> Location:
    """Find the daemon that runs or ran last, among those of which :func:`locate` has a choice.

    Raises:
        AccessDeniedError: As :func:`locate`.
        ConfigError: As :func:`locate`.
    """
    found = locate()
    if os.environ.get(SIMULATED) or places(os.environ, os.getuid()).named:
        return found
    if found.record is not None and found.record.alive:
        return found
    known = read_all(records_folder(os.environ, os.getuid()))
    logged = [
        record for record in known if record.socket is not None and (record.log or record.journal)
    ]
    return _of_record(max(logged, key=_last_active)) if logged else found


def running_daemons(known: Sequence[DaemonRecord], usual: Places) -> list[DaemonRecord]:
    """List the daemons of this user that run, including one at the default paths without a link.

    Where no home can be written, none has a link: then that at the default paths of simulated GPUs
    counts, too.

    Args:
        known: The records of this user.
        usual: The default paths.
    """
    running = [daemon for daemon in known if daemon.socket is not None and daemon.alive]
    if all(daemon.socket != str(usual.socket.absolute()) for daemon in running):
        running += _running_at(usual)
    if running or usual.named or why_not_linked(os.environ, os.getuid()) is None:
        return running
    from sentinel.host.simulation import default_folder  # slow to import, and seldom needed

    return _running_at(places(os.environ, os.getuid(), default_folder().absolute()))


def _running_at(where: Places) -> list[DaemonRecord]:
    """Return the daemon that runs at these paths, if there is one.

    Where another user could have put its record, it does not count: that could lead to a socket of
    theirs.
    """
    found = None if why_untrusted(where.socket.parent) else read(where.record)
    return [found] if found is not None and found.alive else []


def list_daemons(simulated: Path | None = None) -> list[DaemonRecord]:
    """List the daemons of this user that run, whatever GPUs and sockets they have.

    Args:
        simulated: The folder of the simulated GPUs, if they are used.

    Raises:
        ConfigError: ``$SENTINEL_SOCKET`` is not an absolute path.
    """
    return _running(places(os.environ, os.getuid(), simulated))


def _running(usual: Places) -> list[DaemonRecord]:
    return running_daemons(read_all(records_folder(os.environ, os.getuid())), usual)


def find_socket(given: str | None = None, simulated: Path | None = None) -> str:
    """Find the path of the daemon's socket: see :func:`locate`, or else the service of the host.

    Raises:
        AccessDeniedError: As :func:`locate`.
        ConfigError: As :func:`locate`.
    """
    if given is not None:
        return given
    found = locate(None, simulated).socket
    return str(SERVICE_SOCKET) if simulated is None and _service_is_meant() else found


def find_shared(simulated: Path | None = None, socket: str | None = None) -> Path:
    """Find the directory with what belongs to the host of this user's daemon: see shared_folder.

    Several daemons with real GPUs usually share it; then none of them needs to be named. Those of
    simulated GPUs count only if there are no others.

    Args:
        simulated: The folder of the simulated GPUs, if they are used.
        socket: The path that a user or a script gave.

    Raises:
        AccessDeniedError: As :func:`locate`.
        ConfigError: As :func:`locate`.
    """
    if socket is None and simulated is None and not os.environ.get(SIMULATED):
        running = list_daemons()
        real = [record for record in running if record.simulated is None] or running
        folders = {shared_folder(Path(record.state)) for record in real}
        if len(running) > 1 and len(folders) == 1 and not os.environ.get(SOCKET_VARIABLE):
            return folders.pop()
    return shared_folder(locate(socket, simulated).state)


def daemons_sharing(folder: Path, simulated: Path | None = None) -> list[str]:
    """List the sockets of this user's running daemons that have this as their shared directory.

    Raises:
        ConfigError: As :func:`list_daemons`.
    """
    return [
        daemon.socket
        for daemon in list_daemons(simulated)
        if daemon.socket is not None and shared_folder(Path(daemon.state)) == folder
    ]


def find_simulation() -> Path:
    """Find the folder of the simulated GPUs: the chosen one, or that of the only daemon with some.

    Raises:
        ConfigError: Several daemons have simulated GPUs, and none is chosen.
    """
    from sentinel.host.simulation import default_folder  # slow to import, and seldom needed

    if os.environ.get(SIMULATED):
        return default_folder()
    known = read_all(records_folder(os.environ, os.getuid()))
    running = [record for record in known if record.simulated is not None and record.alive]
    if len(running) > 1:
        listed = "".join(f"\n  {daemon}" for daemon in running)
        what = f"{len(running)} daemons of this user have simulated GPUs:{listed}"
        raise ConfigError(what, f"Choose one: {SIMULATED}, the folder of its socket.")
    return Path(running[0].simulated or "") if running else default_folder()


def simulated_folder(*, chosen: bool) -> Path | None:
    """Return the folder of the simulated GPUs if chosen, also by its variable, or None.

    Raises:
        ConfigError: As for :func:`find_simulation`.
    """
    return find_simulation() if chosen or os.environ.get(SIMULATED) else None


def _service_is_meant() -> bool:
    """Check whether no daemon is chosen, none of this user runs, and the host has a service."""
    usual = places(os.environ, os.getuid())
    if os.getuid() == 0 or usual.named or os.environ.get(SIMULATED):
        return False
    with contextlib.suppress(OSError):
        if SERVICE_SOCKET.is_socket() and why_untrusted(SERVICE_SOCKET.parent) is None:
            return not _running(usual)
    return False


def _last_active(record: DaemonRecord) -> float:
    """Compute when a daemon last wrote to its log, or started, in seconds since the epoch."""
    with contextlib.suppress(OSError):
        if record.log is not None:
            return max(record.since, Path(record.log).stat().st_mtime)
    return record.since


def _of_record(record: DaemonRecord) -> Location:
    return Location(
        socket=record.socket or "",
        state=Path(record.state),
        log=None if record.log is None else Path(record.log),
        journal=record.journal,
        simulated=None if record.simulated is None else Path(record.simulated),
        record=record,
    )


def _at(socket: str, chosen: Path | None) -> Location:
    """Describe the daemon of a socket by its record, or else by the paths that follow from it."""
    path = os.path.abspath(socket)  # noqa: PTH100 - a link is not followed
    paths = places({**os.environ, SOCKET_VARIABLE: path}, os.getuid(), chosen)
    record = read(paths.record)
    if record is not None and record.socket == path:
        return _of_record(record)
    return Location(socket=socket, state=paths.state, log=paths.log)


def _check_trusted(usual: Places) -> None:
    """Refuse a folder that any user could have created first; a named one is not checked."""
    folder = usual.socket.parent
    if not usual.named and (why := why_untrusted(folder)) is not None:
        raise AccessDeniedError(f"the socket in {folder} cannot be trusted: {why}", _NAME_IT)


# --- daemons that run or have ended --------------------------------------------------------


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
    records = [
        record for record in read_all(records_folder(environ, uid)) if record.socket is not None
    ]
    running = running_daemons(records, places(environ, uid))
    ended = [record for record in records if not record.alive and Path(record.state).is_dir()]
    found = [_describe(Path(record.state), record, running=True) for record in running]
    found += [_describe(Path(record.state), record) for record in ended]
    shared = {shared_folder(daemon.state) for daemon in found} | {state_folder(environ, uid)}
    known = {daemon.state for daemon in found}
    others = [_describe(path, None) for path in _of_sockets(shared) if path not in known]
    found += [
        other for other in others if other.changed is not None
    ]  # there is nothing in the others
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
        yield from (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


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
