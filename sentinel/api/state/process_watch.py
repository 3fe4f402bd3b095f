"""End reservations and allocations with the process that they are bound to."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping

from sentinel.host.processes.procfs import read_stat
from sentinel.protocol.caller import Caller


def is_alive(holder: Caller) -> bool:
    """Check whether the caller's process exists, and its PID is not another process's."""
    stat = read_stat(holder.pid) if holder.pid is not None else None
    return stat is not None and stat.alive and stat.started == holder.started


class ProcessWatch:
    """Watches the processes that ids are bound to, by pidfd.

    Args:
        on_exit: Called with the id when its process has ended; again at every :meth:`watch` while
            the id is still bound.
    """

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        # By the process as well: the id may be in use again before this process learns of it.
        self._descriptors: dict[tuple[str, Caller], int] = {}
        self._loop = asyncio.get_running_loop()

    def watch(self, bound: Mapping[str, Caller]) -> None:
        """Watch exactly these processes, by the id that is bound to each."""
        wanted = set(bound.items())
        for stale in self._descriptors.keys() - wanted:
            self._remove(*stale)
        for id_, holder in bound.items():
            if (id_, holder) not in self._descriptors:
                self._add(id_, holder)

    def _add(self, id_: str, holder: Caller) -> None:
        """Watch one process; without a pidfd, each :meth:`watch` checks it."""
        descriptor = None
        with contextlib.suppress(OSError, ValueError):  # ended, or no descriptor is left
            descriptor = os.pidfd_open(holder.pid or 0)
        # Checked with the pidfd open: the PID cannot be reused in between.
        if not is_alive(holder):
            if descriptor is not None:
                os.close(descriptor)
            self._on_exit(id_)
        elif descriptor is not None:
            self._descriptors[id_, holder] = descriptor
            self._loop.add_reader(descriptor, self._exited, id_, holder)

    def _exited(self, id_: str, holder: Caller) -> None:
        self._remove(id_, holder)
        self._on_exit(id_)

    def _remove(self, id_: str, holder: Caller) -> None:
        descriptor = self._descriptors.pop((id_, holder))
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
