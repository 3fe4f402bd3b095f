"""The registry of daemons: one locked JSON file each, which is record and claim.

The file of a daemon is beside its socket, so that all who could be that daemon lock the same one,
whatever their environment is. The lock is a flock, which the kernel drops with the process: a
daemon that was killed leaves no false record. No child inherits the file, so a new daemon can start
at once. In a folder of the user there is a link to each file, by which a command finds it.

A burn-in that holds GPUs without a daemon is in the registry, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from sentinel.errors import AlreadyRunningError, ConfigError, SentinelError
from sentinel.host.paths import Places, check_creatable, identity
from sentinel.host.procfs import own_stat, read_stat
from sentinel.host.regular_file import make_private, open_regular

#: How many links to daemons that have ended are kept.
MAX_ENDED = 32
#: How long the process that took a lock may take to write its record.
RECORD_TIMEOUT_S = 1.0
_RETRY_INTERVAL_S = 0.01
_MAX_BYTES = 16_384
_SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True)
class DaemonRecord:
    """One daemon, or a burn-in that holds GPUs without one."""

    pid: int
    #: In clock ticks since boot; with the PID, it names one process. 0 once that has ended.
    started: int
    uid: int
    #: When the record was written, in seconds since the epoch.
    since: float
    #: The state directory.
    state: str
    #: The socket; None if it serves no clients.
    socket: str | None = None
    #: The file of the log; None if there is none.
    log: str | None = None
    #: The match for journalctl; None if the log is not in the journal.
    journal: str | None = None
    #: The folder of the simulated GPUs and their number; None with real ones.
    simulated: str | None = None
    simulate: int | None = None
    #: The folder of the burn-in that this process runs, or None.
    run: str | None = None
    #: The socket at which such a burn-in can be cancelled; it is no daemon's.
    burnin_socket: str | None = None
    #: Whether its process held the lock when the file was read.
    alive: bool = False

    @property
    def visible(self) -> bool:
        """Whether the process runs in this PID namespace."""
        process = read_stat(self.pid)
        return process is not None and process.alive and process.started == self.started

    def __str__(self) -> str:
        """Describe it for people."""
        if self.run is not None:
            return f"burn-in {Path(self.run).name}, pid {self.pid}, recorded in {self.run}"
        number = self.simulate
        gpus = "" if number is None else f" with {number} simulated GPU{'s' * (number != 1)}"
        return f"pid {self.pid}, socket {self.socket}{gpus}"


def describe_own(state: Path, **facts: str | int | None) -> DaemonRecord:
    """Build the record of this process, or of the one whose ``pid`` and ``started`` are facts."""
    own = own_stat()
    known = {"pid": own.pid, "started": own.started, "uid": os.getuid(), **facts}
    return DaemonRecord(since=time.time(), state=str(state), **known)  # type: ignore[arg-type]


# --- the claim -------------------------------------------------------------------------------


class Entry:
    """The locked file of this process; see :func:`take`."""

    def __init__(self, path: Path, file: int, record: DaemonRecord) -> None:
        self.path = path
        self._file = file
        self._record = record

    def write(self, record: DaemonRecord) -> None:
        """Replace the record.

        Raises:
            ConfigError: It cannot be written.
        """
        fields = asdict(record)
        del fields["alive"]
        body = json.dumps(fields).encode() + b"\n"
        why: str | None = os.strerror(errno.ENOSPC)
        try:
            os.ftruncate(self._file, 0)
            if os.pwrite(self._file, body, 0) == len(body):
                return
        except OSError as error:
            why = error.strerror
        raise ConfigError(
            f"{self.path} cannot be written: {why}. Nothing was started.",
            "Free some space, or set SENTINEL_SOCKET to a path on another file system.",
        )

    def release(self) -> None:
        """Release the lock; the file stays, as the record of a daemon that has ended.

        To remove it could take it from a process that has just opened it. The start is removed from
        it: this process may run on, and is not the next one that takes the lock.
        """
        with contextlib.suppress(ConfigError):
            self.write(replace(self._record, started=0))
        os.close(self._file)


def take(path: Path, record: DaemonRecord) -> Entry:
    """Lock the file of a daemon, and write the record of this process into it.

    Raises:
        AlreadyRunningError: Another process has it; the message names that process.
        ConfigError: The file cannot be opened or written.
    """
    until = time.monotonic() + RECORD_TIMEOUT_S
    while True:
        file = _open_own(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _parse(file)
            os.close(file)
            is_known = holder is not None and holder.visible
            # The winner has not written its record yet; or it is only a check (see read).
            if not is_known and time.monotonic() < until:
                time.sleep(_RETRY_INTERVAL_S)
                continue
            _refuse(record, holder if is_known else None)
        if identity(path) == identity(file):
            break
        os.close(file)  # the file was removed between the open and the lock
    entry = Entry(path, file, record)
    try:
        entry.write(record)
    except BaseException:
        entry.release()
        raise
    return entry


def _open_own(path: Path) -> int:
    """Open or create a file, never through a link and never another user's."""
    remedy = "Remove it, or set SENTINEL_SOCKET to a path in another folder."
    try:
        file = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"the lock {path} cannot be opened: {error.strerror}", remedy) from error
    there = os.fstat(file)
    if not _is_own(there):
        os.close(file)
        raise ConfigError(f"the lock {path} belongs to uid {there.st_uid}", remedy)
    return file


def _refuse(own: DaemonRecord, holder: DaemonRecord | None) -> NoReturn:
    """Raise the error that names the running daemon."""
    holder_text = "a process that is not visible from here, maybe in another container"
    if holder is not None:
        since = datetime.fromtimestamp(holder.since).astimezone().isoformat(timespec="seconds")
        holder_text = f"pid {holder.pid} of uid {holder.uid} since {since}"
    raise AlreadyRunningError(
        f"a daemon is already running: {holder_text}, socket {own.socket}",
        "Use it, or stop it with: sentinel stop. Nothing was started.",
    )


# --- the records -----------------------------------------------------------------------------


def read(path: Path) -> DaemonRecord | None:
    """Read the file of a daemon; None if this user has none there.

    What another user has put there would lead to a socket of theirs. The check whether the daemon
    is alive holds the lock, shared with other checks, for some microseconds.
    """
    try:
        file = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        record = _parse(file) if _is_own(os.fstat(file)) else None
        return None if record is None else replace(record, alive=_is_locked(file))
    finally:
        os.close(file)


def running(places: Places) -> int | None:
    """Find the PID of the daemon that runs at these paths, or None.

    0 is one that is not visible from here.
    """
    record = read(places.record)
    if record is None or not record.alive:
        return None
    return record.pid if record.visible else 0


def _parse(file: int) -> DaemonRecord | None:
    try:
        return DaemonRecord(**json.loads(os.pread(file, _MAX_BYTES, 0)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _is_own(there: os.stat_result) -> bool:
    return there.st_uid == os.getuid()


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


# --- the links -------------------------------------------------------------------------------


def records_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Compute the folder of the links: the same for all daemons of a user."""
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "sentinel" / "daemons"
    if uid == 0:
        return Path("/var/lib/sentinel/daemons")
    return Path(environ.get("HOME") or "/") / ".local/state/sentinel/daemons"


def link(path: Path, folder: Path) -> bool:
    """Link the file of a daemon in the folder of its user; return whether that succeeded.

    Without a link, the daemon is only found where it is by default.
    """
    target = _link_of(path, folder)
    new = target.with_suffix(f".{os.getpid()}.new")
    try:
        make_private(folder)
        new.unlink(missing_ok=True)
        new.symlink_to(path)
        new.replace(target)
    except OSError:
        return False
    _drop_old(folder)
    return True


def why_not_linked(environ: Mapping[str, str], uid: int) -> str | None:
    """Return why no daemon of this user can be linked, or None if it can."""
    try:
        check_creatable(records_folder(environ, uid), "")
    except ConfigError as error:
        return error.what
    return None


@contextlib.contextmanager
def recorded(path: Path, record: DaemonRecord, folder: Path) -> Iterator[None]:
    """Keep a record of this process in the registry, as far as that is possible, for the block."""
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError, SentinelError):
            _drop_burnins(folder)
            make_private(path.parent)
            entry = take(path, record)
            undo.callback(entry.release)
            undo.callback(path.unlink, missing_ok=True)
            link(path, folder)
            undo.callback(_link_of(path, folder).unlink, missing_ok=True)
        yield


def _link_of(path: Path, folder: Path) -> Path:
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return folder / f"{key}{_SUFFIX}"


def read_all(folder: Path) -> list[DaemonRecord]:
    """Read the records of this user, the newest first; invalid ones are left out."""
    found = (record for _, record in _all(folder) if record is not None)
    return sorted(found, key=lambda record: -record.since)


def running_burnins(folder: Path) -> list[DaemonRecord]:
    """List the burn-ins of this user that run without a daemon."""
    return [record for record in read_all(folder) if record.run is not None and record.alive]


def _all(folder: Path) -> list[tuple[Path, DaemonRecord | None]]:
    """Read all links; the record of one is None if its file is gone or invalid."""
    links: list[Path] = []
    with contextlib.suppress(OSError):  # a home that is another user's, as in a container
        links = sorted(folder.glob(f"*{_SUFFIX}"))
    return [(path, _linked(path)) for path in links]


def _linked(path: Path) -> DaemonRecord | None:
    try:
        return read(path.readlink()) if _is_own(path.lstat()) else None
    except OSError:  # no link, or just removed
        return None


def _drop_burnins(folder: Path) -> None:
    """Remove the files of burn-ins that a SIGKILL has ended: no other burn-in takes one again."""
    for path, record in _all(folder):
        if record is not None and record.run is not None and not record.alive:
            with contextlib.suppress(OSError):
                path.readlink().unlink(missing_ok=True)
                path.unlink()


def _drop_old(folder: Path) -> None:
    """Remove the oldest links to those that have ended."""
    ended = [
        (0.0 if record is None else -record.since, path)
        for path, record in _all(folder)
        if record is None or not record.alive
    ]
    for _, path in sorted(ended)[MAX_ENDED:]:
        with contextlib.suppress(OSError):
            path.unlink()
