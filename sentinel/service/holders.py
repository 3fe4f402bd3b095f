"""Watches the processes that reservations are bound to, and ends a reservation with its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from sentinel.control import Asker, Reservation
from sentinel.procfs import read_stat

__all__ = ["Holders", "lives"]


def lives(holder: Asker) -> bool:
    """Return whether this very process is there, and no other one of its number."""
    stat = read_stat(holder.pid) if holder.pid is not None else None
    return stat is not None and stat.alive and stat.started == holder.started


class Holders:
    """The processes of bound reservations, each by its pidfd.

    Args:
        release: Called with the id of a reservation whose process has ended; again at every
            :meth:`watch` for as long as the reservation is there.
    """

    def __init__(self, release: Callable[[str], None]) -> None:
        self._release = release
        self._watched: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()

    def watch(self, reservations: tuple[Reservation, ...]) -> None:
        """Watch the processes of these reservations and of no others."""
        bound = {held.id: held.by for held in reservations if held.bound}
        for gone in self._watched.keys() - bound.keys():
            self._forget(gone)
        for name, holder in bound.items():
            if name not in self._watched:
                self._begin(name, holder)

    def _begin(self, name: str, holder: Asker) -> None:
        """Watch one process; without a descriptor for it, it is looked at each time anew."""
        descriptor = None
        with contextlib.suppress(OSError, ValueError):  # gone, or no room for one more
            descriptor = os.pidfd_open(holder.pid or 0)
        if not lives(holder):  # looked at with the descriptor open: its number cannot be another's
            if descriptor is not None:
                os.close(descriptor)
            self._release(name)
        elif descriptor is not None:
            self._watched[name] = descriptor
            self._loop.add_reader(descriptor, self._ended, name)

    def _ended(self, name: str) -> None:
        self._forget(name)
        self._release(name)

    def _forget(self, name: str) -> None:
        descriptor = self._watched.pop(name)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
