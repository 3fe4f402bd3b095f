"""Locks that allow one sentinel per user and GPU, and records that show it to all users.

A lock is a flock. The kernel drops it with the last process that holds the file open. So a dead
sentinel leaves none behind, and a stressor that outlives its supervisor for a moment keeps it. A
process that a workload left behind may keep it for longer, which blocks its GPU alone.
Who can open a file can lock it: each user has files of their own, which only they can open.

A record beside a lock tells other users.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from sentinel.errors import AccessDeniedError, GpuHeldError
from sentinel.host.lock_holders import (
    SHARED_FOLDERS,
    LockHolder,
    StrayHolder,
    holders,
    open_own,
    who_has,
)
from sentinel.host.procfs import own_stat
from sentinel.host.registry import records_folder, running_burnins
from sentinel.host.regular_file import make_private, why_untrusted
from sentinel.protocol.gpu import Gpu, HeldGpu

#: The modes of the two kinds of folders.
_SHARED, _PRIVATE = 0o1777, 0o700
#: How long what has the lock of a dead supervisor may take to end, in seconds: a lease.
_ENDING_S = 3.0
_RETRY_S = 0.02
_REMEDY = (
    "Stop it, or choose other GPUs with --gpus (in Python: gpus=); "
    "`sentinel doctor` shows who holds each. Nothing was started."
)


class _StrayError(Exception):
    """A stray process has the lock of a GPU."""

    def __init__(self, holder: StrayHolder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class GpuLocks:
    """The locks of some GPUs, held until :meth:`release` and by every child that inherits them.

    Either all are taken or none. A GPU with a sentinel of another user is left to that one, but
    root uses it, too: each yields to the stressors of the other. A GPU that only a stray process
    has is left out.

    Args:
        gpus: The GPUs to lock.
        private: Folders of this user for locks. In those of all users, another user may have
            created the files before.
        shared: Folders of all users, for locks and records.

    Attributes:
        gpus: The GPUs that are locked.
        others: The sentinels of other users on the GPUs, by UUID.
        strays: The stray processes on the GPUs that are left out, by UUID.
        unrecorded: Why other users do not see this sentinel on a GPU, a reason for each folder.

    Raises:
        GpuHeldError: Another sentinel of this user holds a GPU, or other users or stray processes
            hold all of them; the message names them.
        AccessDeniedError: A GPU can be locked in none of the folders.
    """

    def __init__(
        self, gpus: Iterable[Gpu], private: Sequence[Path], shared: Sequence[Path] = SHARED_FOLDERS
    ) -> None:
        self._files: dict[str, list[int]] = {}
        self._records: list[Path] = []
        self._reasons: list[str] = []
        self._shared: list[Path] = []
        self._seen = tuple(shared)
        self._asked = self.gpus = tuple(gpus)
        self.others: Mapping[str, LockHolder] = {}
        self.strays: dict[str, StrayHolder] = {}
        self.unrecorded: list[str] = []
        self._patient_until = time.monotonic() + _ENDING_S
        if not self.gpus:
            return
        self._shared = [path for path in shared if self._prepare(path, _SHARED)]
        folders = [*self._shared, *(path for path in private if self._prepare(path, _PRIVATE))]
        self._leave_others()
        try:
            self._lock_all(folders)
        except BaseException:
            self.release()
            raise

    @property
    def held_elsewhere(self) -> tuple[HeldGpu, ...]:
        """The GPUs that are left out, each with its holder."""
        left = [gpu for gpu in self._asked if gpu not in self.gpus]
        found = [(gpu, *self._holder(gpu)) for gpu in left]
        return tuple(
            HeldGpu(
                uuid=gpu.uuid,
                index=gpu.index,
                pci_bus_id=gpu.pci_bus_id,
                holder=holder,
                remedy=remedy,
            )
            for gpu, holder, remedy in found
        )

    def _holder(self, gpu: Gpu) -> tuple[str, str]:
        """Describe the holder of a GPU that is left out, and how to end it."""
        stray = self.strays.get(gpu.uuid)
        if stray is not None:
            return str(stray), f"End it: kill {stray.pid}"
        return f"another sentinel: {self.others[gpu.uuid]}", "Have its user stop it"

    def files(self, gpu: Gpu) -> tuple[int, ...]:
        """List the file descriptors of a GPU's locks, for a child to inherit."""
        return tuple(self._files.get(gpu.uuid, ()))

    def release(self) -> None:
        """Release the locks; a lock that a child shares is released when the child exits."""
        for record in self._records:  # under the locks: the next sentinel writes them, too
            with contextlib.suppress(OSError):
                record.unlink()
        self._records.clear()
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files.clear()

    def _prepare(self, folder: Path, mode: int) -> bool:
        """Create a folder if it is missing; return whether it can be used, or keep the reason."""
        reason = why_untrusted(folder)
        if reason is None:
            try:
                if not folder.exists():
                    if mode == _PRIVATE:
                        make_private(folder.parent)
                    with contextlib.suppress(FileExistsError):  # another start was first
                        folder.mkdir(mode=mode)
                        folder.chmod(mode)  # regardless of the umask
                reason = why_untrusted(folder)  # because of who created it meanwhile
            except OSError as error:
                reason = error.strerror
        if reason is None and not os.access(folder, os.W_OK | os.X_OK):
            reason = "it is not writable"
        if reason is not None:
            self._reasons.append(f"{folder}: {reason}")
        return reason is None

    def _leave_others(self) -> None:
        """Find the sentinels of other users, and leave them their GPUs unless this is root's."""
        uid, held = os.getuid(), holders(self._seen, {gpu.uuid for gpu in self.gpus})
        self.others = {
            gpu.uuid: holder
            for gpu in self.gpus
            for holder in held.get(gpu.uuid, ())
            if holder.uid != uid
        }
        free = tuple(gpu for gpu in self.gpus if uid == 0 or gpu.uuid not in self.others)
        if not free:
            what = "; ".join(_another(gpu, self.others[gpu.uuid]) for gpu in self.gpus)
            raise GpuHeldError(what, _REMEDY)
        self.gpus = free

    def _lock_all(self, folders: Sequence[Path]) -> None:
        """Take the locks of all GPUs, and leave out those that stray processes have."""
        for gpu in self.gpus:
            try:
                self._lock(gpu, folders)
            except _StrayError as error:
                for file in self._files.pop(gpu.uuid, ()):
                    os.close(file)
                self.strays[gpu.uuid] = error.holder
            else:
                self._record(gpu)
        blocked = [gpu for gpu in self.gpus if gpu.uuid in self.strays]
        self.gpus = tuple(gpu for gpu in self.gpus if gpu.uuid not in self.strays)
        if not self.gpus:
            what = "; ".join(_held(gpu, self.strays[gpu.uuid]) for gpu in blocked)
            pids = " ".join(str(pid) for pid in sorted({s.pid for s in self.strays.values()}))
            raise GpuHeldError(what, f"End it: kill {pids}. Nothing was started.")

    def _lock(self, gpu: Gpu, folders: Iterable[Path]) -> None:
        """Take the lock of one GPU in each folder where this user can.

        Raises:
            _StrayError: A stray process has it.
        """
        for folder in folders:
            path = folder / f"{gpu.uuid}.{os.getuid()}.lock"
            try:
                file = open_own(path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                self._reasons.append(f"{path}: {error.strerror}")
                continue
            try:
                self._wait(gpu, file)
            except BaseException:
                os.close(file)
                raise
            self._files.setdefault(gpu.uuid, []).append(file)
        if gpu.uuid not in self._files:
            raise AccessDeniedError(
                f"GPU {gpu.index} ({gpu.uuid}) cannot be locked: {'; '.join(self._reasons)}",
                "Create one of the folders for this user, or set XDG_RUNTIME_DIR to another.",
            )

    def _wait(self, gpu: Gpu, file: int) -> None:
        """Take the lock of a file of a GPU; what is ending has some time to release it.

        Raises:
            GpuHeldError: A sentinel of this user has it.
            _StrayError: A stray process has it.
        """
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            them = holders(self._seen, {gpu.uuid}).get(gpu.uuid, ())
            own = [holder for holder in them if holder.uid == os.getuid()]
            if own:
                raise GpuHeldError(_another(gpu, own[0]) + _burnin_of(own), _REMEDY)
            if time.monotonic() >= self._patient_until:
                break
            time.sleep(_RETRY_S)
        owner = who_has(file)
        if owner.stray is not None:
            raise _StrayError(owner.stray)
        raise GpuHeldError(_another(gpu, owner), _REMEDY)

    def _record(self, gpu: Gpu) -> None:
        """Write the identity of this process where other users look.

        Where that fails everywhere, other users do not see this sentinel, and yield to its
        stressors.
        """
        own = own_stat()
        identity = {
            "pid": own.pid,
            "started": own.started,
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        }
        reasons, text = [], json.dumps(identity).encode()
        for folder in self._shared:
            path = folder / f"{gpu.uuid}.{os.getuid()}.json"
            try:
                _write_record(path, text)
            except OSError as error:
                reasons.append(f"{path}: {error.strerror}")
            else:
                self._records.append(path)
        if len(reasons) == len(self._shared):
            self.unrecorded += reasons


def _write_record(path: Path, text: bytes) -> None:
    """Write a record of this user; leave none if there is no room for it.

    Raises:
        OSError: It cannot be written.
    """
    file = open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.fchmod(file, 0o644)
        os.ftruncate(file, 0)
        is_whole = os.pwrite(file, text, 0) == len(text)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)
    if not is_whole:
        path.unlink()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _burnin_of(holders_: Sequence[LockHolder]) -> str:
    """Name the burn-in that the holder of a GPU runs without a daemon, if it does."""
    for running_burnin in running_burnins(records_folder(os.environ, os.getuid())):
        if any(holder.pid == running_burnin.pid for holder in holders_):
            return f", a burn-in in a terminal that is recorded in {running_burnin.run}"
    return ""


def _another(gpu: Gpu, holder: object) -> str:
    return _held(gpu, f"another sentinel: {holder}")


def _held(gpu: Gpu, holder: object) -> str:
    return f"GPU {gpu.index} ({gpu.uuid}) is held by {holder}"
