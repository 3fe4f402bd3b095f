"""Look up what may take for ever to read, by threads that are left to reads that do not end.

A name of a user may come from a name service that does not answer. A command line is in the memory
of its process: where its owner has mapped a file of a file system in user space over that memory,
the read waits for that file system (proc(5), fuse(4)). Neither must take the thread with it that
answers all clients.
"""

from __future__ import annotations

import os
import pwd
import queue
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from sentinel.host.procfs import read_command

K = TypeVar("K")

#: In a pod, the name of the host is that of the pod, which changes; Kubernetes gives the node's in
#: a variable (the downward API). dcgm-exporter reads the same one.
VARIABLE = "NODE_NAME"
#: The longest wait for a text that has not been read yet, in seconds. It is normally read in less
#: than a millisecond.
_PATIENCE_S = 0.1
#: How many threads may be left to reads that do not end; then no more is read.
_MAX_STUCK = 8
#: How many texts are kept.
_MAX_KEPT = 1024
#: The longest name, in characters: that of useradd(8). A directory may have longer ones.
_MAX_LENGTH = 32
#: PID, start and name: another program has another one of these.
Program = tuple[int, int, str | None]


def node_name() -> str:
    """Read the name of this node: `$NODE_NAME`, or else the name of the host."""
    return os.environ.get(VARIABLE, "").strip() or socket.gethostname()


def look_up(uid: int | None) -> str | None:
    """Return the name of a user, or None if it has none, or there is no user."""
    if uid is None:
        return None
    try:
        name = pwd.getpwuid(uid).pw_name[:_MAX_LENGTH]
    except (KeyError, OSError):
        return None
    return name if name.isprintable() else None


class Lookups(Generic[K]):
    """Reads the text of each key once. Safe to use from several threads.

    Args:
        read: Reads the text of a key, or None if it has none; it may block without limit.
    """

    def __init__(self, read: Callable[[K], str | None]) -> None:
        self._read = read
        self._lookups: OrderedDict[K, _Lookup[K]] = OrderedDict()
        #: What the current thread is to read; None without one.
        self._wanted: queue.SimpleQueue[_Lookup[K]] | None = None
        self._stuck = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> str | None:
        """Return the text of a key, or None if it has none, or cannot be read at once."""
        with self._lock:
            lookup = self._lookups.get(key)
            if lookup is None:
                lookup = self._begin(key)
            else:
                self._lookups.move_to_end(key)
        if lookup is None or lookup.late:  # do not wait each time
            return None if lookup is None else lookup.text
        if not lookup.done.wait(_PATIENCE_S):
            with self._lock:
                lookup.late = True
                if self._wanted is lookup.wanted and not lookup.done.is_set():
                    self._wanted = None  # the next lookup gets a thread of its own
                    self._stuck += 1
        return lookup.text

    def _begin(self, key: K) -> _Lookup[K] | None:
        """Have a thread read the text of a key, or return None if there is none."""
        if self._wanted is None:
            wanted: queue.SimpleQueue[_Lookup[K]] = queue.SimpleQueue()
            try:
                if self._stuck >= _MAX_STUCK:
                    return None
                threading.Thread(target=self._work, args=(wanted,), daemon=True).start()
            except RuntimeError:  # the host refuses the thread
                return None
            self._wanted = wanted
        lookup = self._lookups[key] = _Lookup(key, self._wanted)
        if len(self._lookups) > _MAX_KEPT:
            self._lookups.popitem(last=False)
        self._wanted.put(lookup)
        return lookup

    def _work(self, wanted: queue.SimpleQueue[_Lookup[K]]) -> None:
        """Read what is wanted; after a read that lasted too long, only what waits already."""
        while True:
            lookup = wanted.get()
            lookup.text = self._read(lookup.key)
            with self._lock:
                lookup.done.set()
                if self._wanted is not wanted and wanted.empty():  # it was only slow
                    self._stuck -= 1
                    return


class _Lookup(Generic[K]):
    """One lookup, and its result."""

    def __init__(self, key: K, wanted: queue.SimpleQueue[_Lookup[K]]) -> None:
        self.key = key
        self.text: str | None = None
        self.done = threading.Event()
        #: What its thread reads.
        self.wanted = wanted
        #: Whether a caller has waited for it in vain.
        self.late = False


#: The names of the users of this host, by number.
USER_NAMES = Lookups(look_up)


#: The command lines of the processes of this host.
COMMAND_LINES: Lookups[Program] = Lookups(lambda program: read_command(program[0], program[1]))
