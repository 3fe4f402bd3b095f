"""Watches the processes that something is bound to, and ends each thing with its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping

from sentinel.host.procfs import read_stat
from sentinel.protocol.caller import Caller


def is_alive(holder: Caller) -> bool:
    """Return whether this very process is there, and no other one of its number."""
    stat = read_stat(holder.pid) if holder.pid is not None else None
    return stat is not None and stat.alive and stat.started == holder.started


class Holders:
    """The processes that reservations, or parts of a GPU's memory, are bound to, each by its pidfd.

    Args:
        release: Called with the id of what was bound to a process that has ended; again at every
            :meth:`watch` for as long as it is there.
    """

    def __init__(self, release: Callable[[str], None]) -> None:
        self._release = release
        # By the process, too: an id may be used again, by another one, before we hear of it.
        self._watched: dict[tuple[str, Caller], int] = {}
        self._loop = asyncio.get_running_loop()

    def watch(self, bound: Mapping[str, Caller]) -> None:
        """Watch the processes that these ids are bound to and no others."""
        wanted = set(bound.items())
        for gone in self._watched.keys() - wanted:
            self._forget(*gone)
        for name, holder in bound.items():
            if (name, holder) not in self._watched:
                self._begin(name, holder)

    def _begin(self, name: str, holder: Caller) -> None:
        """Watch one process; without a descriptor for it, it is looked at each time anew."""
        descriptor = None
        with contextlib.suppress(OSError, ValueError):  # gone, or no room for one more
            descriptor = os.pidfd_open(holder.pid or 0)
        if not is_alive(
            holder
        ):  # looked at with the descriptor open: its number cannot be another's
            if descriptor is not None:
                os.close(descriptor)
            self._release(name)
        elif descriptor is not None:
            self._watched[name, holder] = descriptor
            self._loop.add_reader(descriptor, self._ended, name, holder)

    def _ended(self, name: str, holder: Caller) -> None:
        self._forget(name, holder)
        self._release(name)

    def _forget(self, name: str, holder: Caller) -> None:
        descriptor = self._watched.pop((name, holder))
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
