"""Notifications to systemd, over the socket that it names. Never waits and never raises."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping, Sequence

#: Variables of systemd for one process.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
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
