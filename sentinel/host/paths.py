"""Where a daemon's socket, lock, state and log are, and the folders that they are in."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import AccessDeniedError, ConfigError

#: Names the socket, where people and scripts want another than the usual one.
SOCKET_VARIABLE = "SENTINEL_SOCKET"
#: The longest path of a Unix socket in bytes: sun_path has 108, and the last ends it.
LONGEST = 107

_SHORTER = f"Set {SOCKET_VARIABLE} to a shorter path, such as /tmp/sentinel/socket."
_ELSEWHERE = f"Set {SOCKET_VARIABLE} to a path in a folder that you can write."


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where one daemon keeps what it has; its clients find it by the same rules.

    ``lock`` says that it runs, ``state`` is the folder for what outlives it, ``log`` the file that
    events go to. ``named``: somebody chose the socket, so its folder is theirs and not ours.
    """

    socket: Path
    lock: Path
    state: Path
    log: Path
    named: bool = False

    @property
    def token(self) -> Path:
        """The file with the secret that clients over TCP show."""
        return self.state / "token"

    @property
    def stray(self) -> Path:
        """The file for what a detached daemon and its children print: nothing, if all is well."""
        return self.log.with_name(f"{self.log.name}.stderr")


def places(environ: Mapping[str, str], uid: int, simulated: Path | None = None) -> Places:
    """Return the places of the daemon that these variables mean; looks at nothing.

    The socket is ``$SENTINEL_SOCKET``, else ``sentinel.sock`` in the first of: the folder of the
    simulated GPUs, systemd's ``$RUNTIME_DIRECTORY``, ``/run/sentinel`` for root,
    ``$XDG_RUNTIME_DIR/sentinel``, ``/tmp/sentinel-<uid>``.

    Args:
        environ: All variables.
        uid: Whose daemon it is.
        simulated: The folder of the simulated GPUs, where those are meant.

    Raises:
        ConfigError: ``$SENTINEL_SOCKET`` is no absolute path.
    """
    named = environ.get(SOCKET_VARIABLE, "")
    if named and not named.startswith("/"):
        raise ConfigError(
            f"{SOCKET_VARIABLE}: {named!r} is no absolute path",
            "A daemon has no current folder: begin it with a slash.",
        )
    socket = Path(named) if named else _runtime(environ, uid, simulated) / "sentinel.sock"
    state = _state(environ, uid, simulated)
    logs = _first(environ, "LOGS_DIRECTORY")
    return Places(
        socket=socket,
        lock=socket.with_name(f"{socket.name}.lock"),
        state=state,
        log=(logs or state) / "sentinel.log",
        named=bool(named),
    )


def prepare(where: Places) -> None:
    """Make the folders that are missing, for us alone, and check those that are there.

    Raises:
        ConfigError: One cannot be made, written or trusted; it says which, and what to do.
    """
    check_length(where.socket)
    if where.named:
        _make(where.socket.parent, _ELSEWHERE)
        _check_writable(where.socket.parent, _ELSEWHERE)
    else:
        _prepare(where.socket.parent, _ELSEWHERE)
    other = "Set XDG_STATE_HOME to a folder that you can write."
    for folder in dict.fromkeys((where.state, where.log.parent)):
        _prepare(folder, other)


def check_length(socket: Path) -> None:
    """Refuse a path that no Unix socket can have.

    Raises:
        ConfigError: It is too long.
    """
    length = len(os.fsencode(socket))
    if length > LONGEST:
        what = (
            f"the path of the socket, {socket}, has {length} bytes; at most {LONGEST} are allowed"
        )
        raise ConfigError(what, _SHORTER)


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first folder of those that systemd lists in a variable."""
    folder, _, _ = environ.get(name, "").partition(":")
    return Path(folder) if folder else None


def _absolute(environ: Mapping[str, str], name: str) -> Path | None:
    """Return an XDG folder; a relative one is not valid and to be ignored, says their standard."""
    text = environ.get(name, "")
    return Path(text) if text.startswith("/") else None


def _runtime(environ: Mapping[str, str], uid: int, simulated: Path | None) -> Path:
    """Return the folder of the socket and the lock."""
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


def _state(environ: Mapping[str, str], uid: int, simulated: Path | None) -> Path:
    """Return the folder for what outlives the daemon."""
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
    """Make one of our own folders; who may change what is in it could take the socket's place.

    In /tmp anybody may have made it before us, or a link to another.
    """
    _make(folder, remedy)
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in {0, os.getuid()}:
        what = f"{folder} is a link that belongs to uid {link.st_uid}, who may be up to something"
        raise ConfigError(what, f"Remove it. Or: {remedy}")
    there = folder.stat()
    if there.st_uid != os.getuid():
        what = f"the folder {folder} belongs to uid {there.st_uid}, and we are uid {os.getuid()}"
        raise ConfigError(what, f"Remove it. Or: {remedy}")
    others = stat.S_IWGRP | stat.S_IWOTH
    if there.st_mode & others:  # a wide umask, most often
        folder.chmod(stat.S_IMODE(there.st_mode) & ~others)
    _check_writable(folder, remedy)


def _make(folder: Path, remedy: str) -> None:
    """Make a folder where there is none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "something else has its name" if is_file else error.strerror
        raise ConfigError(f"the folder {folder} cannot be made: {why}", remedy) from error


def _check_writable(folder: Path, remedy: str) -> None:
    """Refuse a folder in which we cannot make files."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} cannot be written", remedy)


def identity(what: Path | int) -> tuple[int, int] | None:
    """Return what tells a file from every other, ``None`` where there is none."""
    try:
        there = os.fstat(what) if isinstance(what, int) else what.lstat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


#: Where it is set, simulated GPUs are meant.
SIMULATED = "SENTINEL_SIM_DIR"


def find_socket(given: str | None = None, simulated: Path | None = None) -> str:
    """Return the path of the daemon's socket: the one given, or where a daemon of ours puts it.

    Args:
        given: What a person or a script named.
        simulated: The folder of the simulated GPUs, where those are meant.

    Raises:
        AccessDeniedError: Somebody else made our folder, and what answers there is theirs.
        ConfigError: ``$SENTINEL_SOCKET`` is no absolute path.
    """
    if given is not None:
        return given
    where = _places(simulated)
    folder = where.socket.parent
    # A folder in /tmp that anybody could have made before us. One that was named is their affair.
    if not where.named and folder.exists() and folder.lstat().st_uid not in {0, os.getuid()}:
        raise AccessDeniedError(f"{folder} belongs to somebody else, who may be up to something")
    return str(where.socket)


def find_log(simulated: Path | None = None) -> str:
    """Return the path of the log that a daemon of ours writes."""
    return str(_places(simulated).log)


def _places(simulated: Path | None) -> Places:
    folder = os.environ.get(SIMULATED)
    return places(os.environ, os.getuid(), simulated or (Path(folder) if folder else None))
