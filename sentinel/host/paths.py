"""Paths of a daemon's socket, record, state and log, and the folders that contain them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.host.regular_file import make_private, why_untrusted

#: The variable that overrides the path of the socket.
SOCKET_VARIABLE = "SENTINEL_SOCKET"
#: The variable with the folder of the simulated GPUs; if it is set, they are used.
SIMULATED = "SENTINEL_SIM_DIR"
#: Whether a WARN ends a command with 1.
STRICT_VARIABLE = "SENTINEL_STRICT"
#: The longest path of a Unix socket: sun_path has 108 bytes, the last of them NUL.
MAX_SOCKET_PATH_BYTES = 107

#: How much of a socket's name is in that of its state, in characters.
_MAX_NAME = 40
_SHORTER = f"Set {SOCKET_VARIABLE} to a shorter path, such as /tmp/sentinel/socket."
ELSEWHERE = f"Set {SOCKET_VARIABLE} to a path in a folder that you can write."
#: The remedy for the folder of simulated GPUs.
SIMULATE_ELSEWHERE = f"Set {SIMULATED} to a folder that you can write."
#: The remedy for the folder of the state.
STATE_ELSEWHERE = (
    "Set HOME or XDG_STATE_HOME to a folder that you can write; root or a service, STATE_DIRECTORY."
)


#: The folder, in the shared one, of the state of daemons with a socket of their own.
SOCKETS = "sockets"

#: systemd's variables for a service's folders.
SERVICE_FOLDERS = ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY")


@dataclass(frozen=True, kw_only=True)
class Places:
    """The paths of one daemon; its clients find it by the same rules."""

    socket: Path
    #: Its file in the registry; see :mod:`sentinel.host.registry`.
    record: Path
    #: The folder for what outlives the daemon and belongs to it alone.
    state: Path
    log: Path
    #: Whether the user chose the socket; its folder is not managed then.
    named: bool = False
    #: Whether the user chose the log; its folder is not managed then.
    log_named: bool = False
    #: Whether it is a daemon of simulated GPUs, whose folder has what is not named.
    simulated: bool = False

    @property
    def shared(self) -> Path:
        """The folder for what outlives the daemon and belongs to the host."""
        return shared_folder(self.state)

    @property
    def token(self) -> Path:
        """The file with the token of clients over TCP."""
        return self.state / "token"

    @property
    def stderr(self) -> Path:
        """The file for the standard error of a detached daemon and its children; normally empty."""
        return stderr_file(self.log)


def stderr_file(log: Path) -> Path:
    """Compute the path of the standard error beside a log."""
    return log.with_name(f"{log.name}.stderr")


def places(environ: Mapping[str, str], uid: int, simulated: Path | None = None) -> Places:
    """Compute the paths of the daemon for this environment, without reading a file.

    The socket is ``$SENTINEL_SOCKET``, else ``sentinel.sock`` in the first of: the folder of the
    simulated GPUs, systemd's ``$RUNTIME_DIRECTORY``, ``/run/sentinel`` for root,
    ``$XDG_RUNTIME_DIR/sentinel``, ``/tmp/sentinel-<uid>``. A daemon of another socket than that has
    a state of its own, unless ``$STATE_DIRECTORY`` names the folder.

    Args:
        environ: The environment.
        uid: The user of the daemon.
        simulated: The folder of the simulated GPUs, if they are used.

    Raises:
        ConfigError: ``$SENTINEL_SOCKET`` is not an absolute path.
    """
    named = environ.get(SOCKET_VARIABLE, "")
    if named and not named.startswith("/"):
        raise ConfigError(
            f"{SOCKET_VARIABLE}: {named!r} is not an absolute path",
            "Start it with a slash: a daemon has no current folder.",
        )
    default = _runtime(environ, uid, simulated) / "sentinel.sock"
    socket = Path(named) if named else default
    state = state_folder(environ, uid, simulated)
    if _first(environ, "STATE_DIRECTORY") is None:
        state = _state_of(socket, default, state)
    logs = _first(environ, "LOGS_DIRECTORY")
    return Places(
        socket=socket,
        record=socket.with_name(f"{socket.name}.json"),
        state=state,
        log=(logs or state) / "sentinel.log",
        named=bool(named),
        simulated=simulated is not None,
    )


def prepare(where: Places) -> None:
    """Create missing folders for this user alone, and check existing ones.

    Raises:
        ConfigError: A folder cannot be created, written or trusted.
    """
    check_length(where.socket)
    if where.named:
        _make(where.socket.parent, ELSEWHERE)
        _check_trusted(where.socket.parent, ELSEWHERE)
        _check_writable(where.socket.parent, ELSEWHERE)
    else:
        _prepare(where.socket.parent, SIMULATE_ELSEWHERE if where.simulated else ELSEWHERE)
    other = SIMULATE_ELSEWHERE if where.simulated else STATE_ELSEWHERE
    managed = (where.shared, where.state, *(() if where.log_named else (where.log.parent,)))
    for folder in dict.fromkeys(managed):
        _prepare(folder, other)
    if where.log_named:
        prepare_log(where.log)


def prepare_log(log: Path) -> None:
    """Create the folder of a log that the user chose, and check it.

    Raises:
        ConfigError: It cannot be created, written or trusted.
    """
    remedy = "Name a file in another folder with --log-file."
    _make(log.parent, remedy)
    _check_trusted(log.parent, remedy)
    _check_writable(log.parent, remedy)


def check_log(log: Path) -> None:
    """Check where :func:`prepare_log` would create the folder of a log, and create nothing.

    Raises:
        ConfigError: It cannot be created, written or trusted.
    """
    remedy = "Name a file in another folder with --log-file."
    if log.exists() and not log.is_file():
        raise ConfigError(f"the log {log} cannot be written: it is no regular file", remedy)
    _check_trusted(check_creatable(log.parent, remedy), remedy)


def check_creatable(folder: Path, remedy: str) -> Path:
    """Check that a folder can be written, or created, and create nothing.

    Returns:
        The folder, or the one that exists and is nearest to it.

    Raises:
        ConfigError: It cannot.
    """
    nearest = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not nearest.is_dir():
        what = f"the folder {nearest} cannot be created: a file of this name exists"
        raise ConfigError(what, remedy)
    _check_writable(nearest, remedy)
    return nearest


def check_length(socket: Path) -> None:
    """Refuse a path that is too long for a Unix socket.

    Raises:
        ConfigError: It is too long.
    """
    length = len(os.fsencode(socket))
    if length > MAX_SOCKET_PATH_BYTES:
        what = (
            f"the path of the socket {socket} has {length} bytes;"
            f" at most {MAX_SOCKET_PATH_BYTES} are allowed"
        )
        raise ConfigError(what, _SHORTER)


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """Take the first folder of those that systemd lists in a variable.

    systemd gives absolute ones. A relative one is of the current folder, which a daemon leaves.
    """
    folders = filter(None, environ.get(name, "").split(":"))
    return next((Path(folder).absolute() for folder in folders), None)


def _absolute(environ: Mapping[str, str], name: str) -> Path | None:
    """Read an XDG folder; a relative one is invalid and ignored, by the XDG specification."""
    text = environ.get(name, "")
    return Path(text) if text.startswith("/") else None


def _runtime(environ: Mapping[str, str], uid: int, simulated: Path | None) -> Path:
    """Compute the folder of the socket and the record."""
    if simulated is not None:
        return simulated
    service = _first(environ, "RUNTIME_DIRECTORY")
    if service is not None:
        return service
    if uid == 0:
        return Path("/run/sentinel")
    user = _absolute(environ, "XDG_RUNTIME_DIR")
    # Not $TMPDIR: a client with another one would look elsewhere.
    return user / "sentinel" if user else Path(f"/tmp/sentinel-{uid}")  # noqa: S108


def lock_folders(
    environ: Mapping[str, str], uid: int, simulated: Path | None = None
) -> tuple[Path, ...]:
    """Compute the folders for the locks of this user's GPUs; the first usable one is for them."""
    folders = [_runtime(environ, uid, simulated)]
    if simulated is None:  # GPUs of two simulations may have one UUID
        folders.append(Path(f"/tmp/sentinel-{uid}"))  # noqa: S108
    return tuple(folder / f"locks-{uid}" for folder in dict.fromkeys(folders))


def _state_of(socket: Path, default: Path, shared: Path) -> Path:
    """Compute the folder for the state of the daemon with this socket."""
    path = os.path.normpath(socket)
    if path == os.path.normpath(default.absolute()):
        return shared
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return shared / SOCKETS / f"{socket.name[:_MAX_NAME]}-{key}"


def shared_folder(state: Path) -> Path:
    """Compute the folder that a daemon with this state folder shares with those of other sockets.

    It has what belongs to the host and its GPUs: verified work, burn-ins and golden checksums.
    """
    return state.parent.parent if state.parent.name == SOCKETS else state


def state_folder(environ: Mapping[str, str], uid: int, simulated: Path | None = None) -> Path:
    """Compute the shared folder, which is also the state of the daemon with the default socket."""
    service = _first(environ, "STATE_DIRECTORY")
    if service is not None:
        return service
    if simulated is not None:
        return simulated
    if uid == 0:
        return Path("/var/lib/sentinel")
    home = Path(environ.get("HOME") or "/")
    return (_absolute(environ, "XDG_STATE_HOME") or home / ".local/state") / "sentinel"


def _prepare(folder: Path, remedy: str) -> None:
    """Create and check one of the daemon's own folders.

    In /tmp, any user may have created it before, or a link to another folder of this user.
    """
    _make(folder, remedy)
    there = check_own(folder, f"Remove it. Or: {remedy}")
    others = stat.S_IWGRP | stat.S_IWOTH
    if there.st_mode & others:  # usually because of a wide umask
        folder.chmod(stat.S_IMODE(there.st_mode) & ~others)
    _check_trusted(folder, remedy)
    _check_writable(folder, remedy)


def own_places(environ: Mapping[str, str], uid: int, simulated: Path | None) -> Places:
    """Compute the paths of what is to be started, as :func:`places` does.

    Raises:
        ConfigError: As :func:`places`; or the simulated GPUs belong to another user.
    """
    if simulated is not None:
        with contextlib.suppress(OSError):  # the folder is made later
            check_own_simulation(simulated)
    return places(environ, uid, simulated)


def check_own_simulation(folder: Path) -> None:
    """Refuse the simulated GPUs of another user.

    Raises:
        ConfigError: They belong to another user.
        OSError: The folder is missing, or cannot be read.
    """
    check_own(folder, f"Set {SIMULATED} to a folder of your own.")


def check_own(folder: Path, remedy: str) -> os.stat_result:
    """Refuse a folder of another user, and return its status.

    Raises:
        ConfigError: It belongs to another user.
        OSError: It is missing, or cannot be read.
    """
    there = folder.stat()
    if there.st_uid != os.getuid():
        what = f"the folder {folder} belongs to uid {there.st_uid}, not to uid {os.getuid()}"
        raise ConfigError(what, remedy)
    return there


def _make(folder: Path, remedy: str) -> None:
    """Create a folder if it is missing, where no other user can lead to another one."""
    try:
        own = folder.is_dir() and not folder.is_symlink()  # its mode is corrected later
    except PermissionError:
        own = False  # the check says why
    _check_trusted(folder.parent if own else folder, remedy)
    try:
        make_private(folder)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a file of this name exists" if is_file else error.strerror
        raise ConfigError(f"the folder {folder} cannot be created: {why}", remedy) from error


def _check_trusted(folder: Path, remedy: str) -> None:
    """Refuse a folder in which another user could replace a file."""
    if (why := why_untrusted(folder)) is not None:
        raise ConfigError(f"the folder {folder} cannot be trusted: {why}", remedy)


def _check_writable(folder: Path, remedy: str) -> None:
    """Refuse a folder in which this process cannot create files."""
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        why = os.strerror(errno.EROFS if read_only else errno.EACCES)
        raise ConfigError(f"the folder {folder} cannot be written: {why}", remedy)


def identity(what: Path | int) -> tuple[int, int] | None:
    """Read the device and inode of a file, which identify it, or None if it is missing."""
    try:
        there = os.fstat(what) if isinstance(what, int) else what.lstat()
    except OSError:
        return None
    return there.st_dev, there.st_ino
