"""Locks that allow one sentinel per user and GPU, and records that show it to all users.

A lock is a flock. The kernel drops it with the last process that holds the file open. So a dead
sentinel leaves none behind, and a stressor that outlives its supervisor for a moment keeps it. A
process that a workload left behind may keep it for longer, which blocks its GPU alone.
Who can open a file can lock it: each user has files of their own, which only they can open.

A record beside a lock tells other users. It counts while the process that it names is one of the
record's owner, so no user can hold a GPU in the name of another, or without a process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sentinel.errors import AccessDeniedError, GpuHeldError
from sentinel.host.process_setup import SENTINEL
from sentinel.host.procfs import ProcessStat, own_stat, read_command, read_stat, read_status
from sentinel.host.registry import records_folder, running_burnins
from sentinel.host.regular_file import make_private, open_regular, read_regular, why_untrusted
from sentinel.protocol.gpu import Gpu

#: The folders of locks and records. Each usable one is used: a user who may not write the first,
#: which belongs to root on some distributions, shares the second with root.
SHARED_FOLDERS = (Path("/run/lock/sentinel"), Path("/tmp/sentinel-locks"))  # noqa: S108

_RECORD = re.compile(r"(?P<uuid>[\w-]+)\.(?P<uid>0|[1-9][0-9]{0,9})\.json", re.ASCII)
_MAX_RECORD_BYTES = 4096
#: The PID of the process that took the lock of an open file (proc_pid_fdinfo(5)).
_TAKER = re.compile(r"^lock:\s+\d+: FLOCK +ADVISORY +WRITE (\d+) ", re.MULTILINE)
#: The modes of the two kinds of folders.
_SHARED, _PRIVATE = 0o1777, 0o700
#: How long what has the lock of a dead supervisor may take to end, in seconds: a lease.
_ENDING_S = 3.0
_RETRY_S = 0.02
_REMEDY = (
    "Stop it, or choose other GPUs with --gpus (in Python: gpus=); "
    "`sentinel doctor` shows who holds each. Nothing was started."
)


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The supervisor that holds a GPU, by its record."""

    pid: int
    uid: int
    #: Local time in ISO 8601.
    since: str

    def __str__(self) -> str:
        """Describe it for people."""
        return f"pid {self.pid} of uid {self.uid} since {self.since}"

    def by_name(self) -> str:
        """Describe it with the name of its user, whose lookup may block without limit."""
        from sentinel.host.lookups import look_up  # a supervisor does without

        user = look_up(self.uid) or f"uid {self.uid}"
        since = datetime.fromisoformat(self.since).astimezone()  # it may be of another time zone
        return f"the sentinel of {user} (pid {self.pid}) since {since:%Y-%m-%d %H:%M}"


@dataclass(frozen=True, kw_only=True)
class StrayHolder:
    """A process that has the lock of a GPU, and whose sentinel has ended."""

    pid: int
    title: str

    def __str__(self) -> str:
        """Describe it for people."""
        return f"pid {self.pid} ({self.title}), which a workload of an ended sentinel left behind"


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
        self.gpus = tuple(gpus)
        self.others: Mapping[str, LockHolder] = {}
        self.strays: dict[str, StrayHolder] = {}
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
                file = _open_own(path, os.O_RDWR | os.O_CREAT)
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
        supervisors, stray = _who_has(file)
        if stray is not None:
            raise _StrayError(stray)
        pids = ", ".join(f"pid {pid}" for pid in supervisors)
        raise GpuHeldError(_another(gpu, pids or "one in another PID namespace"), _REMEDY)

    def _record(self, gpu: Gpu) -> None:
        """Write the identity of this process where other users look.

        Where that fails, other users do not see this sentinel, and yield to its stressors.
        """
        own = own_stat()
        identity = {
            "pid": own.pid,
            "started": own.started,
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        }
        for folder in self._shared:
            path = folder / f"{gpu.uuid}.{os.getuid()}.json"
            with contextlib.suppress(OSError):
                file = _open_own(path, os.O_WRONLY | os.O_CREAT)
                try:
                    os.fchmod(file, 0o644)
                    os.ftruncate(file, 0)
                    os.pwrite(file, json.dumps(identity).encode(), 0)
                finally:
                    os.close(file)
                self._records.append(path)


def holders(
    shared: Iterable[Path] = SHARED_FOLDERS, uuids: Collection[str] | None = None
) -> dict[str, list[LockHolder]]:
    """Find the living sentinels of all users by their records, by the UUID of their GPUs.

    Nothing is locked or created, and invalid records are ignored. A user has one record for each
    GPU and folder. The folder may be of the user who was first to need it: who owns it can remove
    records, but write none of others.

    Args:
        shared: The folders of the records.
        uuids: The GPUs; all that have a record by default.
    """
    found: dict[str, list[LockHolder]] = {}
    for folder in shared:
        for path in _records_in(folder):
            match = _RECORD.fullmatch(path.name)
            if match is None or (uuids is not None and match["uuid"] not in uuids):
                continue
            holder = _read(path, int(match["uid"]))
            if holder is not None and holder not in found.get(match["uuid"], ()):
                found.setdefault(match["uuid"], []).append(holder)
    return found


def strays(folders: Iterable[Path], uuids: Iterable[str]) -> dict[str, StrayHolder]:
    """Find the stray processes that have locks of this user, by the UUID of their GPUs.

    A check holds a free lock, shared with other checks, for some microseconds.

    Args:
        folders: The folders of the locks.
        uuids: The GPUs.
    """
    found: dict[str, StrayHolder] = {}
    for folder, uuid in itertools.product(folders, uuids):
        with contextlib.suppress(OSError):
            file = _open_own(folder / f"{uuid}.{os.getuid()}.lock", os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                _, stray = _who_has(file)
                found |= {} if stray is None else {uuid: stray}
            finally:
                os.close(file)
    return found


def _records_in(folder: Path) -> Iterator[Path]:
    """List the files in a shared folder; a link of another user could lead to a dead server."""
    follow = 0 if why_untrusted(folder) is None else os.O_NOFOLLOW
    if follow and why_untrusted(folder.parent) is not None:
        return
    with contextlib.suppress(OSError):
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
        try:
            yield from sorted(Path(f"/proc/self/fd/{place}").iterdir())
        finally:
            os.close(place)


def _open_own(path: Path, flags: int) -> int:
    """Open a file of this user, or create it with O_CREAT.

    Raises:
        OSError: It cannot be opened, or another user may have created it to read what is written
            or to lock it.
    """
    file = open_regular(path, flags | os.O_NOFOLLOW)
    there = os.fstat(file)
    if (there.st_uid, there.st_nlink) != (os.getuid(), 1):
        os.close(file)
        raise OSError(errno.EPERM, f"it belongs to uid {there.st_uid}, or has another name")
    return file


def _read(path: Path, uid: int) -> LockHolder | None:
    """Read a record; None unless it belongs to the user in its name, and so does its process."""
    try:
        there = path.lstat()
        if there.st_uid != uid or there.st_nlink != 1:  # another link may have another name
            return None
        note = json.loads(read_regular(path, _MAX_RECORD_BYTES, os.O_NOFOLLOW))
        pid = note["pid"]
        if type(pid) is not int or pid <= 0:
            return None
        process = read_stat(pid)
        if process is None or not process.alive or process.started != note["started"]:
            return None
        # Another user's text: nothing but a time may reach a terminal.
        since = datetime.fromisoformat(note["since"]).isoformat(timespec="seconds")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return (
        LockHolder(pid=pid, uid=uid, since=since) if str(uid) in read_status(pid, "Uid") else None
    )


def _burnin_of(holders_: Sequence[LockHolder]) -> str:
    """Name the burn-in that the holder of a GPU runs without a daemon, if it does."""
    for running_burnin in running_burnins(records_folder(os.environ, os.getuid())):
        if any(holder.pid == running_burnin.pid for holder in holders_):
            return f", a burn-in in a terminal that is recorded in {running_burnin.run}"
    return ""


def _who_has(file: int) -> tuple[list[int], StrayHolder | None]:
    """List the sentinels that have the lock of a file; without one, find a stray process.

    A sentinel took the lock, and what it started inherits that. Where the kernel does not say who
    took it, each process with the name of a sentinel is one.
    """
    found = _processes_with(file)
    supervisors = [
        process.pid
        for process, taker in found
        if process.name == SENTINEL and taker in {process.pid, 0}
    ]
    if supervisors or not found:
        return supervisors, None
    stray, _ = found[0]
    title = read_command(stray.pid, stray.started) or stray.name
    return [], StrayHolder(pid=stray.pid, title=title)


def _processes_with(file: int) -> list[tuple[ProcessStat, int]]:
    """List the other living processes that have the lock of a file, as far as they are visible.

    Returns:
        Each with the PID of the process that took the lock, 0 if the kernel does not say it.
    """
    there, found = os.fstat(file), list[tuple[ProcessStat, int]]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            opened = [number for number in (entry / "fd").iterdir() if _is_same(there, number)]
            process = read_stat(entry.name) if opened else None
            if process is not None and process.alive:
                found.append((process, max(map(_taker, opened))))
    # One that only waits for the lock has the file open, too.
    having = [pair for pair in found if pair[1]] or found
    return sorted(having, key=lambda pair: pair[0].pid)


def _taker(descriptor: Path) -> int:
    """Read which process took the lock of a descriptor in /proc; 0 if it has none, or not known."""
    info = (descriptor.parent.with_name("fdinfo") / descriptor.name).read_text()
    match = _TAKER.search(info)
    return int(match[1]) if match else 0


def _is_same(file: os.stat_result, descriptor: Path) -> bool:
    """Check whether a descriptor in /proc is of this file."""
    try:
        other = descriptor.stat()
    except OSError:  # it was closed
        return False
    return (other.st_dev, other.st_ino) == (file.st_dev, file.st_ino)


def _another(gpu: Gpu, holder: object) -> str:
    return _held(gpu, f"another sentinel: {holder}")


def _held(gpu: Gpu, holder: object) -> str:
    return f"GPU {gpu.index} ({gpu.uuid}) is held by {holder}"
