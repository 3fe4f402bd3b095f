"""Find the daemon that a command of this user means: the one it names, or the only one there is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import AccessDeniedError, ConfigError
from sentinel.host.daemons.daemon_records import DaemonRecord, read_all, records_folder
from sentinel.host.files.paths import (
    SIMULATED,
    SOCKET_VARIABLE,
    Places,
    places,
    shared_folder,
)
from sentinel.host.files.regular_file import open_regular
from sentinel.host.files.trusted_folder import why_untrusted

_CHOOSE = (
    "Choose one: --socket PATH or SENTINEL_SOCKET; one of simulated GPUs also by SENTINEL_SIM_DIR."
)
#: The socket of the service of the host, in a folder of root.
SERVICE_SOCKET = places({}, 0).socket
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
    known = read_all(records_folder(os.environ, os.getuid()))
    folder = os.environ.get(SIMULATED)
    chosen = simulated or (Path(folder) if folder else None)
    usual = places(os.environ, os.getuid(), chosen)
    if socket is not None:
        return _at(socket, chosen, known)
    if not usual.named and chosen is None:
        running = running_daemons(known, usual)
        if len(running) > 1:
            listed = "".join(f"\n  {one}" for one in running)
            raise ConfigError(f"{len(running)} daemons of this user run:{listed}", _CHOOSE)
        if running:
            return _of_record(running[0])
    _check_trusted(usual)
    return _at(str(usual.socket), chosen, known)


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
    logged = [one for one in known if one.socket is not None and (one.log or one.journal)]
    return _of_record(max(logged, key=_last_active)) if logged else found


def running_daemons(known: Sequence[DaemonRecord], usual: Places) -> list[DaemonRecord]:
    """List the daemons of this user that run, including one at the default paths without a record.

    Args:
        known: The records of this user.
        usual: The default paths.
    """
    running = [one for one in known if one.socket is not None and one.alive]
    if all(one.socket != str(usual.socket.absolute()) for one in running):
        running += _unrecorded(usual)
    return running


def list_daemons(simulated: Path | None = None) -> list[DaemonRecord]:
    """List the daemons of this user that run, whatever GPUs and sockets they have.

    Args:
        simulated: The folder of the simulated GPUs, if they are used.

    Raises:
        ConfigError: ``$SENTINEL_SOCKET`` is not an absolute path.
    """
    known = read_all(records_folder(os.environ, os.getuid()))
    return running_daemons(known, places(os.environ, os.getuid(), simulated))


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
        real = [one for one in running if one.simulated is None] or running
        folders = {shared_folder(Path(one.state)) for one in real}
        if len(running) > 1 and len(folders) == 1 and not os.environ.get(SOCKET_VARIABLE):
            return folders.pop()
    return shared_folder(locate(socket, simulated).state)


def daemons_sharing(folder: Path, simulated: Path | None = None) -> list[str]:
    """List the sockets of this user's running daemons that have this as their shared directory.

    Raises:
        ConfigError: As :func:`list_daemons`.
    """
    return [
        one.socket
        for one in list_daemons(simulated)
        if one.socket is not None and shared_folder(Path(one.state)) == folder
    ]


def find_simulation() -> Path:
    """Find the folder of the simulated GPUs: the chosen one, or that of the only daemon with some.

    Raises:
        ConfigError: Several daemons have simulated GPUs, and none is chosen.
    """
    from sentinel.host.gpus.simulation import default_folder  # slow to import, and seldom needed

    if os.environ.get(SIMULATED):
        return default_folder()
    known = read_all(records_folder(os.environ, os.getuid()))
    running = [one for one in known if one.simulated is not None and one.alive]
    if len(running) > 1:
        listed = "".join(f"\n  {one}" for one in running)
        what = f"{len(running)} daemons of this user have simulated GPUs:{listed}"
        raise ConfigError(what, f"Choose one: {SIMULATED}, the folder of its socket.")
    return Path(running[0].simulated or "") if running else default_folder()


def _service_is_meant() -> bool:
    """Check whether no daemon is chosen, none of this user runs, and the host has a service."""
    usual = places(os.environ, os.getuid())
    if os.getuid() == 0 or usual.named or os.environ.get(SIMULATED):
        return False
    with contextlib.suppress(OSError):
        if SERVICE_SOCKET.is_socket() and why_untrusted(SERVICE_SOCKET.parent) is None:
            return not running_daemons(read_all(records_folder(os.environ, os.getuid())), usual)
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


def _at(socket: str, chosen: Path | None, known: Sequence[DaemonRecord]) -> Location:
    """Describe the daemon of a socket by its record, or else by the paths that follow from it."""
    path = os.path.abspath(socket)  # noqa: PTH100 - a link is not followed
    for record in known:
        if record.socket == path:
            return _of_record(record)
    its = places({**os.environ, SOCKET_VARIABLE: path}, os.getuid(), chosen)
    return Location(socket=socket, state=its.state, log=its.log)


def _check_trusted(usual: Places) -> None:
    """Refuse a folder that any user could have created first; a named one is not checked."""
    folder = usual.socket.parent
    if not usual.named and (why := why_untrusted(folder)) is not None:
        raise AccessDeniedError(f"the socket in {folder} cannot be trusted: {why}", _NAME_IT)


def _unrecorded(usual: Places) -> list[DaemonRecord]:
    """Describe the daemon of the default paths if it runs, by its lock.

    Where another user could have put that lock, it is none: it could lead to a socket of theirs.
    """
    if why_untrusted(usual.socket.parent) is not None:
        return []
    try:
        file = open_regular(usual.lock, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(file, 4096, 0)
    else:
        return []
    finally:
        os.close(file)
    try:
        pid = int(json.loads(text)["pid"])
    except (ValueError, KeyError, TypeError):
        pid = 0
    return [
        DaemonRecord(
            pid=pid,
            started=0,
            boot="",
            since=0.0,
            state=str(usual.state),
            socket=str(usual.socket),
            log=str(usual.log),
        )
    ]
