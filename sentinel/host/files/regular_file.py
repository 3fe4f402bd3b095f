"""Open, read and set aside regular files: a FIFO would block, and a device may never end."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: How many invalid files of one name are kept.
MAX_SET_ASIDE = 5


def open_regular(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file; without O_NOFOLLOW in ``flags``, a link to one is followed.

    Args:
        path: The file.
        flags: As for ``os.open``; O_CLOEXEC is added.
        mode: The mode of a file that is created.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise _irregular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _irregular(path)
    return file


def read_regular(path: Path, limit: int, flags: int = 0) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger.
    """
    file = open_regular(path, os.O_RDONLY | flags)
    try:
        data = b""
        while piece := os.read(file, limit + 1 - len(data)):
            data += piece
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return data
    finally:
        os.close(file)


def set_aside(path: Path) -> Path:
    """Rename an invalid file, so that its content is kept; return its new path.

    The names are ``PATH.bad``, ``PATH.bad.2`` and so on; beyond ``MAX_SET_ASIDE`` of them, the
    oldest is replaced.

    Raises:
        OSError: It cannot be renamed.
    """
    numbered = [path.with_name(f"{path.name}.bad.{n}") for n in range(2, MAX_SET_ASIDE + 1)]
    names = [path.with_name(f"{path.name}.bad"), *numbered]
    free = [name for name in names if not os.path.lexists(name)]
    chosen = free[0] if free else min(names, key=lambda name: name.lstat().st_ctime_ns)
    path.replace(chosen)
    return chosen


def sync_folder(path: Path) -> None:
    """Write the entries of a folder to disk, so that a renamed file has its new name after a crash.

    Raises:
        OSError: The disk reports an error.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a file system that has no such thing
            raise
    finally:
        os.close(folder)


def replace_file(path: Path, text: str, mode: int = 0o600, *, temporary: str | None = None) -> None:
    """Replace the content of a file atomically, and return once it is on disk.

    Args:
        path: The file.
        text: Its new content.
        mode: The mode of the new file, less the umask.
        temporary: The name of the file that is renamed, where several processes may write at once.
            [default: that of the file and .new]

    Raises:
        OSError: It cannot be written. The file is unchanged or, if only the rename could not be
            written to the disk, has the new content.
    """
    new = path.with_name(temporary or f"{path.name}.new")
    try:
        # A link in its place could lead to any file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(new, flags | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def load_or_set_aside(
    path: Path, read: Callable[[], T], *, empty: T, loss: str
) -> tuple[T, str | None]:
    """Read what a file has, and the problem with the file or None.

    A missing file is empty. An invalid file is set aside and counts as empty, so that a daemon
    starts and the content is kept.

    Args:
        path: The file.
        read: Reads and parses it, or raises OSError or ValueError.
        empty: What an empty file has.
        loss: What follows from a problem, such as ``its sessions are ignored``.
    """
    try:
        return read(), None
    except FileNotFoundError:
        return empty, None
    except OSError as error:
        return empty, f"{path}: cannot be read: {error.strerror}; {loss}"
    except ValueError as error:
        try:
            bad = set_aside(path)
        except OSError as failed:
            return empty, f"{path}: {error}; renaming it failed: {failed.strerror}"
        return empty, f"{path}: {error}; it was renamed to {bad}, and {loss}"


def _irregular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
