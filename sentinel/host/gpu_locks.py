"""One sentinel per GPU and host: a file lock that every user can see, and who holds it.

The lock is a flock: the kernel drops it with the last process that holds the file open, so a dead
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
from sentinel.protocol.gpu import Gpu

#: Where locks live. Every folder that can be used is: a user who may not write the first (it
#: belongs to root on some distributions) still meets root in the second.
DEFAULT_FOLDERS = (Path("/run/lock/sentinel"), Path("/tmp/sentinel-locks"))  # noqa: S108


class GpuLocks:
    """The locks of some GPUs, held until :meth:`release` and by every child that got the files.

    Args:
        gpus: All of them are locked, or none.
        folders: Where the locks are; at least one must be usable.

    Raises:
        GpuHeldError: Another process holds one; it is named.
        AccessDeniedError: None of the folders can be used.
    """

    def __init__(self, gpus: Iterable[Gpu], folders: Sequence[Path] = DEFAULT_FOLDERS) -> None:
        self._files: dict[str, list[int]] = {}
        usable = [folder for folder in folders if _prepare(folder)]
        if not usable:
            names = " nor ".join(str(folder) for folder in folders)
            raise AccessDeniedError(
                f"no lock can be taken: neither {names} can be written",
                "Make one of them a folder that everybody may write (mode 1777).",
            )
        try:
            for gpu in gpus:
                for folder in usable:
                    self._lock(gpu, folder / f"{gpu.uuid}.lock")
        except BaseException:
            self.release()
            raise

    def files(self, gpu: Gpu) -> tuple[int, ...]:
        """Return the open files of a GPU's locks, for a child to share."""
        return tuple(self._files.get(gpu.uuid, ()))

    def release(self) -> None:
        """Let go of the locks, as far as no child holds them too."""
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files.clear()

    def _lock(self, gpu: Gpu, path: Path) -> None:
        """Take one lock and write down who we are, for the message that others get."""
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(file)
            os.close(file)
            raise GpuHeldError(
                f"GPU {gpu.index} ({gpu.uuid}) is held by another sentinel: {holder}",
                "Stop that one, or choose other GPUs with --gpus. Nothing was started.",
            ) from error
        self._files.setdefault(gpu.uuid, []).append(file)
        stat = own_stat()
        note = {
            "pid": stat.pid,
            "started": stat.started,
            "uid": os.getuid(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(note).encode(), 0)


def holder_of(path: Path) -> str | None:
    """Return who holds a lock that is there, ``None`` where nobody does or there is none.

    The look itself holds the lock, shared with other looks, for some microseconds: who starts a
    sentinel in just these is told that the GPU is held.

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
    """Make the folder one that everybody may write; return whether locks can be made there."""
    try:
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _open(path: Path) -> int:
    """Open the lock file of a GPU, whoever made it.

    Without O_CREAT first: in a sticky folder the kernel may refuse that on another user's file
    (fs.protected_regular). Never through a link.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            file = os.open(path, flags | os.O_CREAT, 0o666)
            os.fchmod(file, 0o666)  # whatever the umask is
            return file
    except OSError as error:
        raise AccessDeniedError(
            f"the lock {path} cannot be opened: {error.strerror}",
            "It must be a plain file that everybody may read and write (mode 0666).",
        ) from error


def _holder(file: int) -> str:
    """Return who wrote the lock, and whether that process still lives."""
    try:
        note: Mapping[str, object] = json.loads(os.pread(file, 4096, 0))
        stat = read_stat(int(str(note["pid"])))
        alive = stat is not None and stat.started == note["started"]
        gone = "" if alive else ", which has ended; a stressor of it is ending too"
        return f"pid {note['pid']} of uid {note['uid']} since {note['since']}{gone}"
    except (ValueError, KeyError, TypeError):
        return "it did not say who it is"
