"""Tell who the processes on a GPU are: since when, in whose session, by which name, of which user.

A user's name may have to come over a network and take for ever, so it is looked up beside the
readings and stands in them as soon as it is known.
"""

from __future__ import annotations

import dataclasses
import pwd
import queue
import threading
from collections.abc import Callable, Iterable

from sentinel.host.procfs import ProcessStat, ancestors_of, read_stat
from sentinel.protocol.gpu import GpuProcess

#: How many processes are remembered. Forgetting one costs a second look at /proc, no more.
_REMEMBERED = 1024


class Identifier:
    """Adds to the driver's processes what /proc and the name service say of them.

    Safe to use from several threads.

    Args:
        find_user: Returns the name of the user whose process this PID is, or ``None``. It may
            block for ever: then users stay unknown, and nothing else suffers.
    """

    def __init__(self, find_user: Callable[[int], str | None] | None = None) -> None:
        self._find_user = find_user or user_of
        self._users: dict[tuple[int, int], str | None] = {}
        # As it was at first: a process whose parent has ended is init's from then on.
        self._ancestors: dict[tuple[int, int], tuple[int, ...]] = {}
        self._asked: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._look_up, name="users", daemon=True).start()

    def identify(self, processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
        """Return ``processes`` with all that is known of each.

        A PID that is not in /proc, as in a container, stays as the driver gave it.
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
        """Return who started a process, and who started that, as it was when it was new here."""
        who = (stat.pid, stat.started)
        known = self._ancestors.get(who)
        if known is None:
            known = ancestors_of(stat)
            if len(self._ancestors) >= _REMEMBERED:
                self._ancestors = {}
            self._ancestors[who] = known
        return known

    def _user(self, who: tuple[int, int]) -> str | None:
        """Return the user of one process if known, and ask for it the first time."""
        if who not in self._users:
            if len(self._users) >= _REMEMBERED:
                self._users = {}
            self._users[who] = None
            self._asked.put(who)
        return self._users.get(who)  # another thread may have emptied it

    def _look_up(self) -> None:
        """Answer one question after the other, for ever."""
        while True:
            who = self._asked.get()
            self._users[who] = self._find_user(who[0])


def user_of(pid: int) -> str | None:
    """Return the name of the user who runs ``pid``, their number where it has no name."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            status = file.read()
    except OSError:
        return None
    number = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return str(number)
