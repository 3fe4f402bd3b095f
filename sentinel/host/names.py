"""Names of the node and of users."""

from __future__ import annotations

import os
import pwd
import queue
import socket
import threading
from collections.abc import Callable

#: In a pod, the name of the host is that of the pod, which changes; Kubernetes gives the node's in
#: a variable (the downward API). dcgm-exporter reads the same one.
VARIABLE = "NODE_NAME"


def node_name() -> str:
    """Read the name of this node: `$NODE_NAME`, or else the name of the host."""
    return os.environ.get(VARIABLE, "").strip() or socket.gethostname()


#: The longest wait for a name that is not known yet, in seconds. Local ones take microseconds.
_PATIENCE_S = 0.1
#: How many names are kept. Dropping them costs another lookup.
_MAX_KEPT = 1024
#: The longest name, in characters: that of useradd(8). A directory may have longer ones.
_MAX_LENGTH = 32


def look_up(uid: int) -> str | None:
    """Return the name of a user, or None if it has none."""
    try:
        name = pwd.getpwuid(uid).pw_name[:_MAX_LENGTH]
    except (KeyError, OSError):
        return None
    return name if name.isprintable() else None


class UserNames:
    """Looks each user up once. Safe to use from several threads.

    Args:
        find: Looks up the name of a user; it may block without limit.
    """

    def __init__(self, find: Callable[[int], str | None] = look_up) -> None:
        self._find = find
        self._lookups: dict[int, _Lookup] = {}
        self._wanted: queue.SimpleQueue[_Lookup] | None = None
        self._lock = threading.Lock()

    def get(self, uid: int | None) -> str | None:
        """Return the name of a user, or None if it has none, or that is not known in time."""
        if uid is None:
            return None
        with self._lock:
            one = self._lookups.get(uid)
            if one is None:
                if len(self._lookups) >= _MAX_KEPT:
                    self._lookups.clear()
                one = self._lookups[uid] = _Lookup(uid)
                if not self._give_to_thread(one):
                    del self._lookups[uid]
                    return None
            elif one.late:  # do not wait each time
                return one.name
        if not one.done.wait(_PATIENCE_S):
            one.late = True
        return one.name

    def _give_to_thread(self, one: _Lookup) -> bool:
        """Have the thread look a user up; return whether there is a thread."""
        if self._wanted is None:
            wanted: queue.SimpleQueue[_Lookup] = queue.SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(wanted,), daemon=True).start()
            except RuntimeError:  # the host refuses the thread
                return False
            self._wanted = wanted
        self._wanted.put(one)
        return True

    def _work(self, wanted: queue.SimpleQueue[_Lookup]) -> None:
        """Look up users, one after the other, without end."""
        while True:
            one = wanted.get()
            one.name = self._find(one.uid)
            one.done.set()


class _Lookup:
    """One lookup, and its result."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.name: str | None = None
        self.done = threading.Event()
        #: Whether a caller has waited for it in vain.
        self.late = False


#: The names of the users of this host.
USER_NAMES = UserNames()
