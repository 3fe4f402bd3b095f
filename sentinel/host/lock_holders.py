"""Who holds the locks of GPUs: by the records of all users, and by the kernel's list of a file.

A record counts while the process that it names is one of the record's owner, so no user can hold a
GPU in the name of another, or without a process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sentinel.host.process_setup import SENTINEL
from sentinel.host.procfs import ProcessStat, read_command, read_stat, read_status
from sentinel.host.regular_file import open_regular, read_regular, why_untrusted

#: The folders of locks and records. Each usable one is used: a user who may not write the first,
#: which belongs to root on some distributions, shares the second with root.
SHARED_FOLDERS = (Path("/run/lock/sentinel"), Path("/tmp/sentinel-locks"))  # noqa: S108

_RECORD = re.compile(r"(?P<uuid>[\w-]+)\.(?P<uid>0|[1-9][0-9]{0,9})\.json", re.ASCII)
_MAX_RECORD_BYTES = 4096
#: The PID of the process that took the lock of an open file (proc_pid_fdinfo(5)).
_TAKER = re.compile(r"^lock:\s+\d+: FLOCK +ADVISORY +WRITE (\d+) ", re.MULTILINE)


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


@dataclass(frozen=True, kw_only=True)
class LockOwner:
    """What has a lock: sentinels or a stray process; neither if it is not visible."""

    pids: tuple[int, ...] = ()
    stray: StrayHolder | None = None

    def __str__(self) -> str:
        """Describe the sentinels for people."""
        return ", ".join(f"pid {pid}" for pid in self.pids) or "one in another PID namespace"


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


def locked_by(folders: Iterable[Path], uuids: Iterable[str]) -> dict[str, LockOwner]:
    """Find what has the locks of this user, by the UUID of their GPUs.

    A check holds a free lock, shared with other checks, for some microseconds.

    Args:
        folders: The folders of the locks.
        uuids: The GPUs.
    """
    found: dict[str, LockOwner] = {}
    for folder, uuid in itertools.product(folders, uuids):
        with contextlib.suppress(OSError):
            file = open_own(folder / f"{uuid}.{os.getuid()}.lock", os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = who_has(file)
                if uuid not in found or owner.pids or owner.stray is not None:
                    found[uuid] = owner
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


def open_own(path: Path, flags: int) -> int:
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


def who_has(file: int) -> LockOwner:
    """Find the sentinels that have the lock of a file; without one, find a stray process.

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
        return LockOwner(pids=tuple(supervisors))
    stray, _ = found[0]
    title = read_command(stray.pid, stray.started) or stray.name
    return LockOwner(stray=StrayHolder(pid=stray.pid, title=title))


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
