"""Keep a file small to which child processes print.

A pipe would block its writers when its reader is slow, and break with it; a limit of the kernel
would make a print raise. So children append to a regular file, and a thread of this process cuts
it: no writer waits, and none sees an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading

from sentinel.host.logs.log_file import MAX_BYTES

#: How much of the end is kept when the file is cut: the last lines before an exit say the most.
KEPT_BYTES = 64 * 1024
#: A burst wakes the thread at most this often. What is written in between exceeds the limit.
_PAUSE_MS = 20
#: How often the file is checked where no inotify instance is left.
_POLL_MS = 1000
_IN_MODIFY = 2  # inotify(7)


class BoundedOutput:
    """A thread that cuts a file when it exceeds a limit, and notes in it how much was dropped.

    Args:
        file: A descriptor of a regular file; all its writers append (O_APPEND).
        max_bytes: The limit.
    """

    def __init__(self, file: int, max_bytes: int = MAX_BYTES) -> None:
        self._file = os.dup(file)
        self._max_bytes = max_bytes
        #: How many bytes were dropped so far.
        self.dropped = 0
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._changes = _watch(f"/proc/self/fd/{self._file}")
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut the file once more, and end the thread."""
        os.eventfd_write(self._end, 1)
        self._thread.join()
        for one in (self._file, self._end, self._changes):
            if one is not None:
                os.close(one)

    def _follow(self) -> None:
        changed, ended = select.poll(), select.poll()
        for poll in (changed, ended):
            poll.register(self._end, select.POLLIN)
        if self._changes is not None:
            changed.register(self._changes, select.POLLIN)
        while True:
            changed.poll(None if self._changes is not None else _POLL_MS)
            with contextlib.suppress(BlockingIOError):
                if self._changes is not None:
                    os.read(self._changes, 65_536)
            with contextlib.suppress(OSError):  # a full disk
                self._cut()
            if ended.poll(_PAUSE_MS):
                with contextlib.suppress(OSError):
                    self._cut()
                return

    def _cut(self) -> None:
        """Drop all but the end of the file if it is too large."""
        size = os.fstat(self._file).st_size
        if size <= self._max_bytes:
            return
        kept = min(KEPT_BYTES, self._max_bytes // 2)
        reader = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            tail = os.pread(reader, kept, size - kept)
        finally:
            os.close(reader)
        _, newline, lines = tail.partition(b"\n")
        tail = lines if newline else tail
        # What is written between these calls is dropped uncounted, or stands before the note.
        os.ftruncate(self._file, 0)
        self.dropped += size - len(tail)
        note = f"[sentinel: {self.dropped:,} bytes of output were dropped here]\n"
        os.write(self._file, note.encode() + tail)


def _watch(path: str) -> int | None:
    """Open an inotify instance that reports changes of a file; None if none is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    instance = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if instance < 0:
        return None
    if libc.inotify_add_watch(instance, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(instance)
        return None
    return int(instance)
