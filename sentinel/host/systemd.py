"""Tells systemd how we are, over the socket that it names. Never waits and never raises."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping, Sequence

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """The way to the service manager; where there is none, nothing is sent and nothing is wanted.

    Args:
        environ: All variables. Those that are for us are taken out of it, so that no child
            believes that they are for it.
        pid: Who is to feed the watchdog, if it says so; this process by default.

    Attributes:
        watchdog: How many seconds the manager waits for ``WATCHDOG=1`` before it takes us for
            stuck; ``None`` where it does not.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int | None = None) -> None:
        address, usec, whose = (environ.pop(name, "") for name in _VARIABLES)
        pid = os.getpid() if pid is None else pid
        self._address = _address(address)
        self._socket: socket.socket | None = None
        self.watchdog: float | None = None
        if self._address is None:
            return
        if usec.isdecimal() and int(usec) > 0 and whose in {"", str(pid)}:
            self.watchdog = int(usec) / 1e6
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def listened(self) -> bool:
        """Whether somebody wants to know."""
        return self._socket is not None

    def send(self, lines: Sequence[str]) -> bool:
        """Send ``READY=1`` and its like in one datagram; return whether that went out.

        A manager that does not read, and one that is gone, cost only what was sent.
        """
        if self._socket is None or self._address is None or not lines:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Send nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _address(text: str) -> bytes | None:
    """Return the address that a variable names: a path, or an abstract one, which begins with @."""
    if text.startswith("@") and len(text) > 1:
        return b"\0" + os.fsencode(text[1:])
    return os.fsencode(text) if text.startswith("/") else None
