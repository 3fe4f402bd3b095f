"""Tells whether a daemon that was asked to end is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sentinel.client.transport import Address, listener
from sentinel.errors import NotRunningError, SentinelError
from sentinel.procfs import read_stat

__all__ = ["departure"]

#: How long the daemon may take to have room for a connection, in seconds.
_ROOM_WITHIN = 2.0


class _Asked(Protocol):
    """As much of a client as is needed here."""

    address: Address

    def health(self) -> bool:
        """Return whether the daemon is well."""


def departure(client: _Asked, pid: int) -> Callable[[], bool]:
    """Return what says whether the daemon, which is this process, has gone; call it before.

    Its process tells best: it listens on its socket for longer than it answers. But what a daemon
    says of itself is its number in its own PID namespace, and here a stranger may have that one. So
    it counts only if the kernel has the same for who listens on the socket. Otherwise, and on
    another host, nobody listening any more has to do.
    """
    known = listener(client.address, _ROOM_WITHIN) == pid
    before = read_stat(pid) if known else None
    if before is not None:
        started = before.started

        def gone() -> bool:
            now = read_stat(pid)
            return now is None or not now.alive or now.started != started

        return gone

    def silent() -> bool:
        try:
            client.health()
        except NotRunningError:
            return True
        except SentinelError:
            return False
        return False

    return silent
