"""Command lines of processes, read by threads: a user can make the read of one wait forever.

A command line is in the memory of its process. Where its owner has mapped a file of a file system
in user space over that memory, the read waits for that file system (proc(5), fuse(4)). It must not
take the thread with it that answers all clients.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable

from sentinel.host.procfs import read_command

#: The longest wait for a command line that has not been read yet, in seconds. It is normally read
#: in less than a millisecond.
_PATIENCE_S = 0.1
#: How many threads may be left to reads that do not end; then no more is read.
_MAX_STUCK = 8
_MAX_CACHED = 1024

#: PID, start and name: another program has another one of these.
_Key = tuple[int, int, str | None]


class CommandLines:
    """Reads each command line once, and again when another program has its PID.

    Args:
        read: Reads that of a process, by its PID and start.
    """

    def __init__(self, read: Callable[[int, int], str | None] = read_command) -> None:
        self._read = read
        self._cache: OrderedDict[_Key, str | None] = OrderedDict()
        #: What the current thread is to read; None without one.
        self._wanted: queue.SimpleQueue[_Reading] | None = None
        self._stuck = 0
        self._lock = threading.Lock()

    def get(self, pid: int, started: int, name: str | None) -> str | None:
        """Return a command line, or None if it cannot be read at once."""
        key = (pid, started, name)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            if self._stuck >= _MAX_STUCK:
                return None
            self._cache[key] = None
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
            one = _Reading(key)
            if not self._give_to_thread(one):
                del self._cache[key]
                return None
        if one.done.wait(_PATIENCE_S):
            return one.text
        with self._lock:
            if not one.done.is_set():
                self._wanted = None  # the next one gets a thread of its own
                self._stuck += 1
            return one.text

    def _give_to_thread(self, one: _Reading) -> bool:
        """Have a thread read it; return whether there is one."""
        if self._wanted is None:
            wanted: queue.SimpleQueue[_Reading] = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(wanted,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the host refuses the thread
                return False
            self._wanted = wanted
        self._wanted.put(one)
        return True

    def _work(self, wanted: queue.SimpleQueue[_Reading]) -> None:
        """Read what is wanted, until a read has lasted too long."""
        while True:
            one = wanted.get()
            text = self._read(one.key[0], one.key[1])
            with self._lock:
                one.text = text
                one.done.set()
                if one.key in self._cache:
                    self._cache[one.key] = text
                if self._wanted is not wanted:  # it was only slow
                    self._stuck -= 1
                    return


class _Reading:
    """One read, and its result."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.text: str | None = None
        self.done = threading.Event()
