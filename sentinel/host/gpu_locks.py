"""Locks that allow one sentinel per GPU and host, visible to all users.

A lock is a flock: the kernel drops it with the last process that holds the file open. So a dead
sentinel leaves none behind, and a stressor that outlives its supervisor for a moment keeps it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from sentinel.errors import AccessDeniedError, GpuHeldError
from sentinel.host.procfs import own_stat, read_stat
from sentinel.host.regular_file import open_regular
from sentinel.protocol.gpu import Gpu

#: The folders of the locks. Each usable one is used: a user who may not write the first, which
#: belongs to root on some distributions, shares the second with root.
DEFAULT_FOLDERS = (Path("/run/lock/sentinel"), Path("/tmp/sentinel-locks"))  # noqa: S108


class GpuLocks:
    """The locks of some GPUs, held until :meth:`release` and by every child that inherits them.

    Args:
        gpus: The GPUs to lock: all of them, or none.
        folders: The folders of the locks; at least one must be usable.

    Raises:
        GpuHeldError: Another process holds a lock; the message names it.
        AccessDeniedError: None of the folders is usable.
    """

    def __init__(self, gpus: Iterable[Gpu], folders: Sequence[Path] = DEFAULT_FOLDERS) -> None:
        self._files: dict[str, list[int]] = {}
        usable = [folder for folder in folders if _prepare(folder)]
        if not usable:
            names = " nor ".join(str(folder) for folder in folders)
            raise AccessDeniedError(
                f"GPUs cannot be locked: neither {names} is writable",
                "Create one of them as a folder that all users may write (mode 1777).",
            )
        try:
            for gpu in gpus:
                for folder in usable:
                    self._lock(gpu, folder / f"{gpu.uuid}.lock")
        except BaseException:
            self.release()
            raise

    def files(self, gpu: Gpu) -> tuple[int, ...]:
        """List the file descriptors of a GPU's locks, for a child to inherit."""
        return tuple(self._files.get(gpu.uuid, ()))

    def release(self) -> None:
        """Release the locks; a lock that a child shares is released when the child exits."""
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files.clear()

    def _lock(self, gpu: Gpu, path: Path) -> None:
        """Take one lock and write the identity of this process into it."""
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(file)
            os.close(file)
            raise GpuHeldError(
                f"GPU {gpu.index} ({gpu.uuid}) is held by another sentinel: {holder}",
                "Stop it, or choose other GPUs with --gpus. Nothing was started.",
            ) from error
        self._files.setdefault(gpu.uuid, []).append(file)
        stat = own_stat()
        identity = {
            "pid": stat.pid,
            "started": stat.started,
            "uid": os.getuid(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(identity).encode(), 0)


def holder_of(path: Path) -> str | None:
    """Describe the holder of a lock, or None if it is free or does not exist.

    The check holds the lock, shared with other checks, for some microseconds: a sentinel that
    starts at this moment finds the GPU held.

    Raises:
        AccessDeniedError: It cannot be opened, so no sentinel could take it either.
    """
    if not os.path.lexists(path):
        return None
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(file)
    else:
        return None
    finally:
        os.close(file)


def _prepare(folder: Path) -> bool:
    """Create a folder that all users may write; return whether locks can be created in it."""
    try:
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)  # regardless of the umask
    except FileExistsError:
        pass
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _open(path: Path) -> int:
    """Open or create the lock file of a GPU, never through a link.

    Without O_CREAT first: in a sticky folder the kernel may refuse that on another user's file
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        try:
            return open_regular(path, flags)
        except FileNotFoundError:
            file = open_regular(path, flags | os.O_CREAT, 0o666)
            os.fchmod(file, 0o666)  # regardless of the umask
            return file
    except OSError as error:
        raise AccessDeniedError(
            f"the lock {path} cannot be opened: {error.strerror}",
            "It must be a regular file that all users may read and write (mode 0666).",
        ) from error


def _holder(file: int) -> str:
    """Describe the process that wrote the lock, and whether it is alive."""
    try:
        note: Mapping[str, object] = json.loads(os.pread(file, 4096, 0))
        stat = read_stat(int(str(note["pid"])))
        alive = stat is not None and stat.started == note["started"]
        gone = "" if alive else ", which has exited; its stressor is exiting too"
        return f"pid {note['pid']} of uid {note['uid']} since {note['since']}{gone}"
    except (ValueError, KeyError, TypeError):
        return "an unknown process"
