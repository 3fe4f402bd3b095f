"""One daemon for each socket: its claim in the registry, and its listening sockets."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.host.paths import Places, identity, prepare
from sentinel.host.registry import DaemonRecord, Entry, describe_own, take

#: How many connections may wait until the API accepts them.
BACKLOG = 512
#: How long the API process of a daemon that was killed may keep its TCP port.
PORT_TIMEOUT_S = 3.0
_RETRY_INTERVAL_S = 0.01


class Claim:
    """The right to be the daemon of these paths, with its listening sockets; see :func:`claim`.

    Attributes:
        places: The paths of the daemon.
        socket: Listens at ``places.socket``.
        tcp: Listens at the TCP address, or None.
        address: That address, as ``host:port``, with the actual port.
        metrics: Listens at another address for metrics alone, or None.
        gid: The number of the group that may use the socket, or None.
    """

    def __init__(
        self,
        places: Places,
        entry: Entry,
        listening: socket.socket,
        tcp: socket.socket | None,
        metrics: socket.socket | None,
        gid: int | None,
    ) -> None:
        self.places = places
        self.socket = listening
        self.tcp = tcp
        self.metrics = metrics
        self.gid = gid
        self.address = None if tcp is None else _address(tcp)
        self._entry: Entry | None = entry
        self._socket_is = identity(places.socket)

    def lost(self) -> bool:
        """Check whether the socket's path is gone or replaced, so that no client can connect."""
        return identity(self.places.socket) != self._socket_is

    def release(self) -> None:
        """Remove the socket, and release the lock; does nothing the second time."""
        if self._entry is None:
            return
        if not self.lost():
            with contextlib.suppress(OSError):
                self.places.socket.unlink()
        self.socket.close()
        for listening in (self.tcp, self.metrics):
            if listening is not None:
                listening.close()
        self._entry.release()
        self._entry = None


def claim(
    places: Places,
    tcp: str | None = None,
    group: str | None = None,
    metrics: str | None = None,
    *,
    is_open: bool = False,
    record: DaemonRecord | None = None,
) -> Claim:
    """Become the daemon of these paths: take the lock, bind the sockets and listen.

    Args:
        places: The paths; missing folders are created.
        tcp: Another address to listen at: ``host:port``, as parsed by
            :func:`sentinel.config.setting.parse_address`.
        group: A group that may use the socket, by name or number.
        metrics: An address for metrics alone, written like ``tcp``.
        is_open: Whether every local user may connect.
        record: What the registry has of this daemon; its paths by default.

    Raises:
        AlreadyRunningError: Another daemon runs; the message names it.
        ConfigError: A folder, the socket, an address or the group cannot be used.
    """
    gid = None if group is None else find_group(group)
    prepare(places)
    with contextlib.ExitStack() as undo:
        own = record or describe_own(places.state, socket=str(places.socket), log=str(places.log))
        entry = take(places.record, own)
        undo.callback(entry.release)
        unix = _bind(places, gid, is_open=is_open)
        undo.callback(unix.close)
        undo.callback(places.socket.unlink, missing_ok=True)
        port = None if tcp is None else undo.enter_context(_bind_tcp(tcp, "--tcp"))
        scraped = None if metrics is None else _bind_tcp(metrics, "--metrics")
        undo.pop_all()
    return Claim(places, entry, unix, port, scraped, gid)


# --- the sockets -----------------------------------------------------------------------------


def _bind(places: Places, gid: int | None, *, is_open: bool) -> socket.socket:
    """Bind and listen at the path, replacing a stale socket. Only under the lock."""
    path = places.socket
    remedy = "Remove the file, or set SENTINEL_SOCKET to another path."
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale(path):
            path.unlink()
        with _umask(0o177):
            listening.bind(str(path))
        try:
            if gid is not None or is_open:
                _admit(path, gid, is_open=is_open, named=places.named)
            listening.listen(BACKLOG)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        listening.close()
        taken = error.errno == errno.EADDRINUSE
        why = "the path exists and is not a socket" if taken else error.strerror
        what = f"the socket {path} cannot be created: {why}. Nothing was started."
        raise ConfigError(what, remedy) from error
    except BaseException:
        listening.close()
        raise
    return listening


def _is_stale(path: Path) -> bool:
    """Check for a socket at the path: under the lock it can only be a dead daemon's."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    """Set the umask of the whole process for a moment."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def find_group(group: str) -> int:
    """Look up the number of a group, given by name or number.

    Raises:
        ConfigError: There is no such group.
    """
    try:
        if group.isascii() and group.isdigit():
            return grp.getgrgid(int(group)).gr_gid
        return grp.getgrnam(group).gr_gid
    except (KeyError, OverflowError):
        raise ConfigError(
            f"the group {group!r} for the socket does not exist",
            "Create it with groupadd, or name another with --socket-group.",
        ) from None


def _admit(path: Path, gid: int | None, *, is_open: bool, named: bool) -> None:
    """Let a group or every user write to the socket, and reach it through the daemon's folder.

    A folder with another mode than those set here is as an administrator wants it.
    """
    folder = path.parent.stat()
    own = not named and folder.st_uid == os.getuid()
    try:
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(0o666 if is_open else 0o660)
        if own and stat.S_IMODE(folder.st_mode) in {0o700, 0o710, 0o711}:
            if gid is not None:
                os.chown(path.parent, -1, gid)
            path.parent.chmod(0o711 if is_open else 0o710)
    except OSError as error:
        who = "every user" if gid is None else f"group {gid}"
        what = f"the socket {path} cannot be opened to {who}: {error.strerror}"
        raise ConfigError(what, "Name a group that you are in with --socket-group.") from error


def _bind_tcp(address: str, flag: str) -> socket.socket:
    """Create a socket that listens at ``host:port``, the value of ``flag``.

    The API process of a daemon that was just killed may keep the port for a moment.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + PORT_TIMEOUT_S
    while True:
        try:
            return _listen(host.strip("[]"), int(port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < until:
                time.sleep(_RETRY_INTERVAL_S)
                continue
            raise _cannot_listen(flag, address, error, ". Nothing was started.") from error


def check_address(address: str, source: str) -> None:
    """Check that this host can listen at ``host:port``; a daemon may do so already.

    Raises:
        ConfigError: It cannot.
    """
    host, _, port = address.rpartition(":")
    try:
        _bound(host.strip("[]"), int(port)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _cannot_listen(source, address, error) from error


def _cannot_listen(source: str, address: str, error: OSError, then: str = "") -> ConfigError:
    what = f"{source}: cannot listen at {address}: {error.strerror or error}{then}"
    return ConfigError(what, "Name an address of this host and a free port.")


def _address(listening: socket.socket) -> str:
    """Read the address of a TCP socket."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    """Create a socket that listens at the address."""
    listening = _bound(host, port)
    try:
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _bound(host: str, port: int) -> socket.socket:
    """Create a socket at the address that does not listen yet."""
    family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind)
    try:
        # Otherwise recently closed connections keep the port for a minute.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except BaseException:
        listening.close()
        raise
    return listening
