"""The log of a daemon: lines in a file that makes room for a new one when it is large.

A disk that is full costs lines and never the daemon, and leaves no half of a line behind.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pathlib import Path

from sentinel.errors import ConfigError

#: The size at which a file makes room, in bytes, and how many older ones are kept.
MOST = 10 * 10**6
KEPT = 5
#: Other people's prints are looked at each time so many lines were written.
_LOOK_EVERY = 64


class RotatingLog(io.TextIOBase):
    """A stream of whole lines into ``path``; older ones are in ``path.1``, ``path.2`` and so on.

    Each write is one line or several, and reaches the file before it returns. A file that somebody
    removed or moved is made anew. For one thread and one process at a time.

    Args:
        path: The file; its folder is there.
        most: The size in bytes that no file goes beyond, but for a single longer line.
        kept: How many older files are kept.
        stray: An open file that others print to, such as standard error, where that is a file of
            the daemon's: it is emptied when it has grown beyond ``most``.

    Raises:
        ConfigError: The file cannot be opened.
    """

    def __init__(
        self, path: Path, *, most: int = MOST, kept: int = KEPT, stray: int | None = None
    ) -> None:
        super().__init__()
        self._path = path
        self._most = most
        self._kept = kept
        self._stray = stray
        self._written = 0
        try:
            self._file = _open(path)
        except OSError as error:
            raise ConfigError(
                f"the log {path} cannot be written: {error.strerror}. Nothing was started.",
                "Make it a file that you can write, or remove it.",
            ) from error

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def write(self, text: str) -> int:
        """Append one or several whole lines.

        Raises:
            OSError: They were lost, and nothing of them is in the file.
            ValueError: It is closed.
        """
        if self._file < 0:
            raise ValueError("the log is closed")
        data = text.encode(errors="backslashreplace")
        self._follow()
        size = os.fstat(self._file).st_size
        if size and size + len(data) > self._most:
            # Where it cannot make room, it goes on as it is.
            with contextlib.suppress(OSError):
                self._rotate()
                size = 0
        self._append(data, size)
        self._written += 1
        if self._written % _LOOK_EVERY == 0:
            self._trim()
        return len(text)

    def close(self) -> None:
        """Close the file. Nothing happens when that was done before."""
        super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes, size: int) -> None:
        """Write all of it or nothing."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._file, size)
            raise

    def _follow(self) -> None:
        """Open the file anew where the path leads to another one now, or to none."""
        ours = os.fstat(self._file)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(ours, self._path.lstat()):
                return
        self._reopen()

    def _rotate(self) -> None:
        """Move each file one on, the last of them out, and begin a new one."""
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))
        if self._kept:
            self._path.replace(self._older(1))
        else:
            self._path.unlink()
        self._reopen()

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _reopen(self) -> None:
        """Go over to the file that the path leads to now."""
        fresh = _open(self._path)
        os.close(self._file)
        self._file = fresh

    def _trim(self) -> None:
        """Empty the file that others print to when it is large."""
        if self._stray is None:
            return
        with contextlib.suppress(OSError):
            there = os.fstat(self._stray)
            if stat.S_ISREG(there.st_mode) and there.st_size > self._most:
                os.ftruncate(self._stray, 0)


def _open(path: Path) -> int:
    """Open a log to append, never through a link, and never waiting for who reads a pipe."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no file")
    return file
