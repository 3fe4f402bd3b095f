"""Describe the processes on a GPU: start time, session, ancestry, name and user.

A user's name may come over a network and take long, so it is looked up in a thread and added to
readings once it is known.
"""

from __future__ import annotations

import dataclasses
import pwd
import queue
import threading
from collections.abc import Callable, Iterable

from sentinel.host.processes.procfs import ProcessStat, ancestors_of, read_stat, read_status
from sentinel.protocol.gpu import GpuProcess

#: The number of cached processes. Dropping one costs another read of /proc.
_MAX_CACHED = 1024


class ProcessIdentifier:
    """Adds information from /proc and the name service to the driver's processes.

    Safe to use from several threads.

    Args:
        find_user: Returns the name of the user of a PID, or None. It may block without limit: then
            users stay unknown.
    """

    def __init__(self, find_user: Callable[[int], str | None] | None = None) -> None:
        self._find_user = find_user or user_of
        self._users: dict[tuple[int, int], str | None] = {}
        # The first observation: a process whose parent has ended becomes a child of init.
        self._ancestors: dict[tuple[int, int], tuple[int, ...]] = {}
        self._asked: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._look_up, name="users", daemon=True).start()

    def identify(self, processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
        """Return ``processes`` with everything that is known of each.

        A PID that is not in /proc, as in a container, stays as the driver reported it.
        """
        return tuple(self._identify(process) for process in processes)

    def _identify(self, process: GpuProcess) -> GpuProcess:
        stat = read_stat(process.pid)
        if stat is None:
            return process
        return dataclasses.replace(
            process,
            started=stat.started,
            session=stat.session,
            name=stat.name,
            user=self._user((stat.pid, stat.started)),
            ancestors=self._ancestry(stat),
        )

    def _ancestry(self, stat: ProcessStat) -> tuple[int, ...]:
        """Return the ancestors of a process as they were when it was first seen."""
        who = (stat.pid, stat.started)
        known = self._ancestors.get(who)
        if known is None:
            known = ancestors_of(stat)
            if len(self._ancestors) >= _MAX_CACHED:
                self._ancestors = {}
            self._ancestors[who] = known
        return known

    def _user(self, who: tuple[int, int]) -> str | None:
        """Return the user of a process if known; start the lookup the first time."""
        if who not in self._users:
            if len(self._users) >= _MAX_CACHED:
                self._users = {}
            self._users[who] = None
            self._asked.put(who)
        return self._users.get(who)  # another thread may have emptied it

    def _look_up(self) -> None:
        """Look up users, one after the other, without end."""
        while True:
            who = self._asked.get()
            self._users[who] = self._find_user(who[0])


def user_of(pid: int) -> str | None:
    """Return the name of the user who runs ``pid``, or the number of a user without a name."""
    uids = read_status(pid, "Uid")
    if not uids:
        return None
    number = int(uids[0])
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return str(number)
