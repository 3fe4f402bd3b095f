"""Who is at the other end of a connection, and the secret that a client over TCP must know."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from sentinel.host.procfs import read_stat
from sentinel.protocol.caller import Caller

#: From Linux's <asm-generic/socket.h>; the socket module does not have it.
_SO_PEERGROUPS = 59
#: pid_t, uid_t, gid_t, as in struct ucred.
_UCRED = struct.Struct("iII")
#: The most that getsockopt of the standard library takes, in bytes: 256 groups of four.
_MOST_GROUPS = 1024


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One end of a connection: a process by ``uid`` and ``pid`` on a Unix socket, else nothing.

    ``started`` is when that process did, read when it connected: while a connection is idle its
    process may end, and another one get its number. ``address`` is our own end's, over TCP. What
    the kernel does not tell is ``None``: a process of another PID namespace has no PID here.
    """

    via: str
    uid: int | None = None
    pid: int | None = None
    started: int | None = None
    groups: frozenset[int] = frozenset()
    address: str | None = None

    def caller(self) -> Caller:
        """Return it as the one who asks for something, proved by its process's start."""
        return Caller(via=self.via, uid=self.uid, pid=self.pid, started=self.started)


def peer_of(connection: socket.socket) -> Peer:
    """Return who is at the other end, as it was when it connected."""
    if connection.family != socket.AF_UNIX:
        name = connection.getsockname()
        return Peer(via="tcp", address=str(name[0]))
    pid, uid, gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    process = read_stat(pid) if pid else None
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):  # more groups than there is room for
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
        groups = struct.unpack(f"{len(data) // 4}I", data)
    return Peer(
        via="unix",
        uid=uid,
        pid=pid or None,
        started=process.started if process else None,
        groups=frozenset({gid, *groups}),
    )


def group_of(path: str) -> int | None:
    """Return the group that may use the socket at ``path``, ``None`` where its mode lets none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_gid if found.st_mode & stat.S_IWGRP else None


class Secret:
    """A bearer token in a file of its own, which only its owner can read.

    Args:
        path: The file. One that is missing is written, with a new token.

    Raises:
        OSError: It is missing and cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")

    def matches(self, header: str | None) -> bool:
        """Return whether an Authorization header has the token that the file has at present.

        A file that others may read keeps no secret: nothing matches it.
        """
        scheme, _, given = (header or "").partition(" ")
        token = self._read()
        if not token or scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(given.strip().encode(), token.encode())

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_mode & 0o077 or found.st_uid not in {0, os.getuid()}:
                    return ""
                return file.read(4096).decode("ascii").strip()
        except (OSError, ValueError):
            return ""
