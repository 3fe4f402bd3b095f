"""Notice that a CUDA program starts, by how often it opens a GPU's device node.

That is well before its memory shows. It is a hint to read more often and nothing else: a
container's own nodes are other inodes, whose opens nobody reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sentinel.probe.import_stubs import without_ctypes_util

#: Opens of one node that make a CUDA program. On an H200 host cuInit opened the node of a GPU in
#: use 4 or 5 times within 7 ms and once more 10 ms later; NVML clients and nvidia-smi did 3 times
#: within 3 ms, and ``nvidia-smi -l`` a 4th time 6 ms later.
_OPENS = 5

#: A pause in seconds after which the next open begins a new count. nvidia-smi opens a node 3 times
#: again at its end, 30 ms and more after the last, which must not add up.
_PAUSE = 0.015


class Burst:
    """Counts the opens of one device node."""

    def __init__(self) -> None:
        self._count = 0
        self._last = float("-inf")

    def opened(self, now: float) -> bool:
        """Count an open at ``now``, in seconds; return whether it is a CUDA program by now."""
        self._count = self._count + 1 if now - self._last <= _PAUSE else 1
        self._last = now
        return self._count >= _OPENS


class NodeWatch:
    """Follows device nodes in a thread of its own, where the host lets it.

    A host may have no inotify instance left, and a node may not exist: then nothing is ever
    noticed, and readings stay as frequent as they are.
    """

    def __init__(self) -> None:
        with without_ctypes_util():
            from inotify_simple import INotify  # type: ignore[import-untyped]

        self._watched: dict[int, tuple[Burst, Callable[[], None]]] = {}
        try:
            self._inotify = INotify()
        except OSError:
            self._inotify = None
        else:
            threading.Thread(target=self._follow, name="opens", daemon=True).start()

    def add(self, node: str, on_burst: Callable[[], None]) -> bool:
        """Call ``on_burst`` from the watching thread whenever a CUDA program opens ``node``.

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

    def _follow(self) -> None:
        # Woken by every open: the kernel merges equal events that nobody has read yet.
        while True:
            for event in self._inotify.read():
                burst, on_burst = self._watched.get(event.wd, (None, None))
                if burst and on_burst and burst.opened(time.monotonic()):
                    on_burst()
