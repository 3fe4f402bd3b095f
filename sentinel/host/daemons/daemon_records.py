"""Records of this user's daemons: where each has its socket and its log, also after its death.

A daemon may have a socket and a state directory of its own, for example that of simulated GPUs.
Its record is in one directory for each user, so that a command finds it without being told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel.host.files.regular_file import read_regular
from sentinel.host.files.trusted_folder import make_private
from sentinel.host.processes.procfs import boot_id, own_stat, read_stat

#: How many records of daemons that have ended are kept.
MAX_ENDED = 32
_MAX_BYTES = 16_384
_SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True)
class DaemonRecord:
    """One daemon, or a burn-in that holds GPUs without one."""

    pid: int
    #: In clock ticks since boot, and the id of that boot: with the PID, they name one process.
    started: int
    boot: str
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

    @property
    def alive(self) -> bool:
        """Whether the process still runs, as far as it is visible from here."""
        its = read_stat(self.pid) if self.boot == boot_id() else None
        return its is not None and its.alive and its.started == self.started

    def __str__(self) -> str:
        """Describe it for people."""
        if self.run is not None:
            return f"burn-in {Path(self.run).name}, pid {self.pid}, recorded in {self.run}"
        number = self.simulate
        gpus = "" if number is None else f" with {number} simulated GPU{'s' * (number != 1)}"
        return f"pid {self.pid}, socket {self.socket}{gpus}"


def records_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Compute the folder of the records: the same for all daemons of a user."""
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "sentinel" / "daemons"
    if uid == 0:
        return Path("/var/lib/sentinel/daemons")
    return Path(environ.get("HOME") or "/") / ".local/state/sentinel/daemons"


def describe_own(state: Path, **facts: str | int | None) -> DaemonRecord:
    """Build the record of this process, with the given facts."""
    own = own_stat()
    return DaemonRecord(
        pid=own.pid,
        started=own.started,
        boot=boot_id(),
        since=time.time(),
        state=str(state),
        **facts,  # type: ignore[arg-type]
    )


def running_burnins(folder: Path) -> list[DaemonRecord]:
    """List the burn-ins of this user that run without a daemon."""
    return [one for one in read_all(folder) if one.run is not None and one.alive]


def write(record: DaemonRecord, folder: Path) -> bool:
    """Write a record in place of an earlier one of the same socket or run.

    Without a record, the daemon is only found where it is by default.

    Returns:
        Whether it was written.
    """
    key = hashlib.sha256(os.fsencode(record.socket or record.run or "")).hexdigest()[:16]
    path = folder / f"{key}{_SUFFIX}"
    part = path.with_name(f"{path.name}.{record.pid}.part")
    try:
        make_private(folder)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w") as stream:
            json.dump(asdict(record), stream)
        part.replace(path)
    except OSError:
        return False
    _drop_old(folder)
    return True


def remove(record: DaemonRecord, folder: Path) -> None:
    """Remove the record of a process, unless a later one has replaced it."""
    for path, found in _all(folder):
        if (found.pid, found.started, found.boot) == (record.pid, record.started, record.boot):
            with contextlib.suppress(OSError):
                path.unlink()


def read_all(folder: Path) -> list[DaemonRecord]:
    """Read the records of this user, the newest first; invalid ones are left out."""
    return sorted((one for _, one in _all(folder)), key=lambda one: -one.since)


def _all(folder: Path) -> list[tuple[Path, DaemonRecord]]:
    found: list[tuple[Path, DaemonRecord]] = []
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
    except OSError:  # a home that is another user's, as in a container: there are none of this one
        return found
    for path in paths:
        # What another user has put there would lead to a socket of theirs.
        with contextlib.suppress(OSError, ValueError, TypeError):
            if _is_own(path):
                found.append((path, DaemonRecord(**json.loads(read_regular(path, _MAX_BYTES)))))
    return found


def _is_own(path: Path) -> bool:
    return path.lstat().st_uid == os.getuid()


def _drop_old(folder: Path) -> None:
    """Remove the oldest records of those that have ended."""
    ended = sorted((one for one in _all(folder) if not one[1].alive), key=lambda one: -one[1].since)
    for path, _ in ended[MAX_ENDED:]:
        with contextlib.suppress(OSError):
            path.unlink()
