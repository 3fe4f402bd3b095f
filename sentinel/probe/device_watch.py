"""Detect the start of a CUDA program by the number of opens of a GPU's device node.

That is long before its memory appears. It only makes reads more frequent: device nodes inside a
container are other inodes, whose opens are not reported.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from sentinel.host.installed.import_stubs import without_ctypes_util

#: Opens of one node that indicate a CUDA program. On an H200 host cuInit opened the node of a GPU
#: in use 4 or 5 times within 7 ms and once more 10 ms later. NVML clients and nvidia-smi did so 3
#: times within 3 ms, and ``nvidia-smi -l`` a 4th time 6 ms later.
_BURST_OPENS = 5

#: The pause after which the next open starts a new count. nvidia-smi opens a node 3 times again at
#: its end, 30 ms or more after the last open, which must not add up.
_MAX_GAP_S = 0.015


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
