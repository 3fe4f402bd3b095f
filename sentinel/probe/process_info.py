"""Observe the programs on a GPU without the driver: opens of its device node, and /proc.

Opens of the node show the start of a CUDA program long before its memory appears. They only make
reads more frequent: device nodes inside a container are other inodes, whose opens are not reported.

A user's name may come over a network and take long, so it is looked up in a thread and added to
readings once it is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pwd
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sentinel.host.process_setup import without_ctypes_util
from sentinel.host.procfs import ProcessStat, ancestors_of, read_stat, read_status
from sentinel.protocol.gpu import GpuProcess

#: Opens of one node that indicate a CUDA program. On an H200 host cuInit opened the node of a GPU
#: in use 4 or 5 times within 7 ms and once more 10 ms later. NVML clients and nvidia-smi did so 3
#: times within 3 ms, and ``nvidia-smi -l`` a 4th time 6 ms later.
_BURST_OPENS = 5

#: The pause after which the next open starts a new count. nvidia-smi opens a node 3 times again at
#: its end, 30 ms or more after the last open, which must not add up.
_MAX_GAP_S = 0.015

#: The number of cached processes. Dropping one costs another read of /proc.
_MAX_CACHED = 1024


class Burst:
    """Counts the opens of one device node."""

    def __init__(self) -> None:
        self._count = 0
        self._last = float("-inf")

    def opened(self, now: float) -> bool:
        """Count an open at ``now``; return whether the burst indicates a CUDA program."""
        self._count = self._count + 1 if now - self._last <= _MAX_GAP_S else 1
        self._last = now
        return self._count >= _BURST_OPENS


class NodeWatch:
    """Follows device nodes in a thread of its own, if the host allows it.

    If no inotify instance or thread is left, or a node does not exist, nothing is detected and
    reads keep their usual interval.
    """

    def __init__(self) -> None:
        with without_ctypes_util():
            from inotify_simple import INotify  # type: ignore[import-untyped]

        self._watched: dict[int, tuple[Burst, Callable[[], None]]] = {}
        self._inotify: Any = None
        with contextlib.suppress(OSError, RuntimeError):  # no instance or no thread is left
            inotify = INotify()
            arguments = (inotify,)
            threading.Thread(target=self._follow, args=arguments, name="opens", daemon=True).start()
            self._inotify = inotify

    def add(self, node: str, on_burst: Callable[[], None]) -> bool:
        """Call ``on_burst`` from the watching thread when a CUDA program opens ``node``.

        It may be called several times for one program. Returns whether ``node`` is watched.
        """
        from inotify_simple import flags

        if self._inotify is None:
            return False
        try:
            descriptor = self._inotify.add_watch(node, flags.OPEN)
        except OSError:
            return False
        self._watched[descriptor] = (Burst(), on_burst)
        return True

    def _follow(self, inotify: Any) -> None:
        # Wake up for every open: the kernel merges equal events that are still unread.
        while True:
            for event in inotify.read():
                burst, on_burst = self._watched.get(event.wd, (None, None))
                if burst and on_burst and burst.opened(time.monotonic()):
                    on_burst()


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
