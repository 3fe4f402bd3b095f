"""Files of a daemon's log and of what its processes print, both bounded."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import select
import threading
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.host.regular_file import open_regular

#: The size at which a file is rotated, and how many older ones are kept.
MAX_BYTES = 10 * 10**6
MAX_OLD_FILES = 5

#: How much of the end is kept when the file is cut: the last lines before an exit say the most.
KEPT_BYTES = 64 * 1024
#: A burst wakes the thread at most this often. What is written in between exceeds the limit.
_PAUSE_MS = 20
#: How often the file is checked where no inotify instance is left.
_POLL_MS = 1000
_IN_MODIFY = 2  # inotify(7)


class RotatingLog(io.TextIOBase):
    """A stream of whole lines into ``path``; older files are ``path.1``, ``path.2`` and so on.

    Each write is one or several lines, and reaches the file before it returns. If the file is
    removed or moved, a new one is created. For one thread of one process at a time.

    Args:
        path: The file; its folder exists.
        max_bytes: The size that no file exceeds, except with a single longer line.
        max_old_files: How many older files are kept.

    Raises:
        ConfigError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_old_files: int = MAX_OLD_FILES,
    ) -> None:
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes
        self._max_old_files = max_old_files
        try:
            self._file = _open(path)
        except OSError as error:
            raise ConfigError(
                f"the log {path} cannot be written: {error.strerror}. Nothing was started.",
                "Make it a regular file that you can write, or remove it.",
            ) from error

    def writable(self) -> bool:
        """Return True: the stream is writable."""
        return True

    def write(self, text: str) -> int:
        """Append one or several whole lines.

        Raises:
            OSError: They are lost, and no part of them is in the file.
            ValueError: The log is closed.
        """
        if self._file < 0:
            raise ValueError("the log is closed")
        data = text.encode(errors="backslashreplace")
        self._follow()
        size = os.fstat(self._file).st_size
        if size and size + len(data) > self._max_bytes:
            # If the rotation fails, the file keeps growing.
            with contextlib.suppress(OSError):
                self._rotate()
                size = 0
        self._append(data, size)
        return len(text)

    def close(self) -> None:
        """Close the file, if it is open."""
        super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes, size: int) -> None:
        """Write all of the data or none of it."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._file, size)
            raise

    def _follow(self) -> None:
        """Reopen the file if the path names another one now, or none."""
        current = os.fstat(self._file)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(current, self._path.lstat()):
                return
        self._reopen()

    def _rotate(self) -> None:
        """Rename each file to the next number, drop the last, and start a new one."""
        for number in range(self._max_old_files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))
        if self._max_old_files:
            self._path.replace(self._older(1))
        else:
            self._path.unlink()
        self._reopen()

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _reopen(self) -> None:
        """Switch to the file that the path names now."""
        fresh = _open(self._path)
        os.close(self._file)
        self._file = fresh


def _open(path: Path) -> int:
    """Open a log to append, never through a link."""
    return open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


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
        for part in (self._file, self._end, self._changes):
            if part is not None:
                os.close(part)

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
