"""Notifications to systemd, and events in its journal."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

#: Variables of systemd for one process.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

#: Where systemd-journald listens.
SOCKET = Path("/run/systemd/journal/socket")
#: The variable with the device and the inode of a stream that goes to the journal
#: (systemd.exec(5)).
STREAM_VARIABLE = "JOURNAL_STREAM"
#: The variable with the id of this run of a unit.
INVOCATION_VARIABLE = "INVOCATION_ID"

#: The longest name of a field that the journal accepts.
_MAX_NAME = 64
_SIZE = struct.Struct("<Q")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class SystemdSocket:
    """The connection to the service manager; without one, nothing is sent.

    Args:
        environ: The environment. The variables for this process are removed, so that no child uses
            them.
        pid: The PID that may feed the watchdog; this process by default.

    Attributes:
        watchdog: The watchdog timeout in seconds, or None if it is off.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int | None = None) -> None:
        address, usec, watchdog_pid = (environ.pop(name, "") for name in VARIABLES)
        pid = os.getpid() if pid is None else pid
        self._address = _address(address)
        self._socket: socket.socket | None = None
        self.watchdog: float | None = None
        if self._address is None:
            return
        if usec.isdecimal() and int(usec) > 0 and watchdog_pid in {"", str(pid)}:
            self.watchdog = int(usec) / 1e6
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def enabled(self) -> bool:
        """Whether a manager receives notifications."""
        return self._socket is not None

    def send(self, lines: Sequence[str]) -> bool:
        """Send ``READY=1`` and similar lines in one datagram; return whether it was sent.

        If the manager does not read or is gone, only the notification is lost.
        """
        if self._socket is None or self._address is None or not lines:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _address(text: str) -> bytes | None:
    """Convert the value of a variable to an address: a path, or an abstract one after @."""
    if text.startswith("@") and len(text) > 1:
        return b"\0" + os.fsencode(text[1:])
    return os.fsencode(text) if text.startswith("/") else None


class Journal:
    """A connection to the journal; a restart of systemd-journald does not matter to it.

    Args:
        path: The socket of the journal.
    """

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, fields: Mapping[str, str]) -> None:
        """Send one entry; waits while the journal has no room.

        Raises:
            OSError: The journal cannot be reached, and the entry is lost.
        """
        data = encode(fields)
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            # EMSGSIZE: longer than a datagram may be. ENOBUFS: than the buffer of the socket.
            if error.errno not in {errno.EMSGSIZE, errno.ENOBUFS}:
                raise
            self._send_file(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send_file(self, data: bytes) -> None:
        """Send a long entry as a sealed file in memory, as the protocol has it."""
        file = os.memfd_create("sentinel-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            # Not socket.send_fds: it ignores the address.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
            self._socket.sendmsg([], [rights], 0, self._path)
        finally:
            os.close(file)


def encode(fields: Mapping[str, str]) -> bytes:
    """Encode the fields of an entry: a line each, or with the size of the value if it has lines."""
    parts = []
    for name, text in fields.items():
        value = text.encode(errors="backslashreplace")
        key = name.encode()
        if b"\n" in value:
            parts += [key, b"\n", _SIZE.pack(len(value)), value, b"\n"]
        else:
            parts += [key, b"=", value, b"\n"]
    return b"".join(parts)


def field_name(text: str) -> str:
    """Turn a text into the name of a field: capital letters, digits and underscores."""
    return re.sub(r"[^A-Z0-9_]", "_", text.upper()).lstrip("_0123456789")[:_MAX_NAME]


def gets_stream(file: int, environ: Mapping[str, str], path: Path = SOCKET) -> bool:
    """Check whether what is written to a file goes to the journal, which can be reached.

    A child whose standard error was redirected inherits the variable, but not the stream.
    """
    device, _, inode = environ.get(STREAM_VARIABLE, "").partition(":")
    try:
        there = os.fstat(file)
        matches = (str(there.st_dev), str(there.st_ino)) == (device, inode)
        return matches and stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def match_of_this_run(environ: Mapping[str, str]) -> str:
    """Build the match by which journalctl finds the entries of this process or its unit's run."""
    invocation = environ.get(INVOCATION_VARIABLE, "")
    if re.fullmatch(r"[0-9a-f]{32}", invocation):
        return f"_SYSTEMD_INVOCATION_ID={invocation}"
    return f"_PID={os.getpid()}"
