"""The identity of a connection's peer, and the token of TCP clients."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from sentinel.host.files.regular_file import open_regular
from sentinel.host.processes.procfs import read_stat
from sentinel.host.user_names import USER_NAMES
from sentinel.protocol.caller import Caller, Level

#: From Linux's <asm-generic/socket.h>; the socket module does not have it.
_SO_PEERGROUPS = 59
#: pid_t, uid_t, gid_t, as in struct ucred.
_UCRED = struct.Struct("iII")
#: The largest buffer of the standard library's getsockopt: 256 groups of four bytes.
_MAX_GROUPS_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end of a connection; ``None`` is unknown, as a PID of another PID namespace."""

    #: The kind of socket: ``unix`` or ``tcp``.
    via: str
    uid: int | None = None
    pid: int | None = None
    #: The start time of the process, read at the connection: the PID may be reused later.
    started: int | None = None
    groups: frozenset[int] = frozenset()
    #: The addresses of this end and of the other one, over TCP.
    address: str | None = None
    remote: str | None = None

    def caller(self, level: Level) -> Caller:
        """Convert the peer into the caller of a command."""
        return Caller(
            via=self.via,
            uid=self.uid,
            user=USER_NAMES.get(self.uid),
            pid=self.pid,
            started=self.started,
            level=level,
        )


def peer_of(connection: socket.socket) -> Peer:
    """Read the identity of the peer at the time of its connection."""
    if connection.family != socket.AF_UNIX:
        remote = None
        with contextlib.suppress(OSError):  # it has disconnected
            remote = str(connection.getpeername()[0])
        return Peer(via="tcp", address=str(connection.getsockname()[0]), remote=remote)
    pid, uid, gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    process = read_stat(pid) if pid else None
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):  # more groups than fit
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS_BYTES)
        groups = struct.unpack(f"{len(data) // 4}I", data)
    return Peer(
        via="unix",
        uid=uid,
        pid=pid or None,
        started=process.started if process else None,
        groups=frozenset({gid, *groups}),
    )


class TokenFile:
    """A file with a bearer token that only its owner can read.

    Args:
        path: The file; it is created with a new token if it does not exist.

    Raises:
        OSError: The file does not exist and cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not os.path.lexists(path):
            self._create()

    def _create(self) -> None:
        """Write the file completely or not at all: an existing one is never written again."""
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self._path)
        finally:
            draft.unlink(missing_ok=True)

    def matches(self, header: str | None) -> bool:
        """Compare an Authorization header with the file's current token.

        Nothing matches a file that other users can read.
        """
        scheme, _, given = (header or "").partition(" ")
        token = self._read()
        if not token or scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(given.strip().encode(), token.encode())

    def _read(self) -> str:
        try:
            file = open_regular(self._path, os.O_RDONLY)
            try:
                found = os.fstat(file)
                if found.st_mode & 0o077 or found.st_uid not in {0, os.getuid()}:
                    return ""
                return os.read(file, 4096).decode("ascii").strip()
            finally:
                os.close(file)
        except (OSError, ValueError):
            return ""
