"""The folder of one burn-in: its header, events and samples, and the earlier runs beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from sentinel.config.plan import Plan
from sentinel.errors import ConfigError
from sentinel.host.last_verdicts import RUNS
from sentinel.host.paths import identity
from sentinel.host.regular_file import (
    File,
    file_errors,
    locked,
    open_regular,
    read_regular,
    replace_file,
)

#: A longer line is none of ours, and neither is a larger file with one object; in bytes.
_MAX_LINE = 2**20
_MAX_OBJECT = 2**26
#: The files are for the administrators of the host, too.
_MODE = 0o644

#: A process that only looks whether a run is recorded holds its lock for a moment, in seconds.
_LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The files of one run."""

    path: Path
    #: What is run, where and with what: written before the start.
    header = File("run.json")
    #: The events, one JSON object a line.
    events = File("events.jsonl")
    #: The samples, one JSON object a line.
    samples = File("samples.jsonl")
    #: The counters of each GPU before and after.
    counters = File("counters.json")
    #: The report for programs; there only if those in all other formats are.
    report = File("report.json")
    #: The SHA-256 of each file, once there is a report, and the signature of that.
    manifest = File("manifest.json")
    signature = File("manifest.json.sig")

    def create(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: It cannot be created, or has a run already.
        """
        with file_errors(f"--report {self.path}"):
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.check_new()

    def check_new(self) -> None:
        """Check that the folder has no run.

        Raises:
            ConfigError: It has one.
        """
        if self.header.exists() or self.events.exists():
            what = f"--report {self.path}: it has a run already"
            raise ConfigError(what, "Name another folder, or go on with that run by --resume.")

    @property
    def is_recorded(self) -> bool:
        """Whether a process still records the run."""
        try:
            with locked(self._open(), 0.0, shared=True):
                return False
        except OSError:
            return self.path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Show other processes that this one records the run, also before it has a file.

        Raises:
            ConfigError: Another process records it.
        """
        folder = self._open()
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder, _LOCK_TIMEOUT_S))
            except OSError:
                raise ConfigError(f"{self.path}: another process records this run") from None
            if identity(self.path.resolve()) != identity(folder):
                raise ConfigError(f"{self.path}: another process has removed it", "Start again.")
            yield

    def _open(self) -> int:
        """Open the folder itself: its files are replaced, and a lock is of one file."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def has_begun(self) -> bool:
        """Whether anything was recorded of the run, or was and is gone."""
        counters = read_regular(self.counters, _MAX_OBJECT) if self.counters.exists() else b""
        recorded = (self.events, self.samples)
        return (
            any(file.exists() and file.stat().st_size for file in recorded)
            or self.manifest.exists()
            or b'"after":' in counters
        )

    def event_count(self) -> int:
        """Count the events, without a last one that was not written completely."""
        try:
            with os.fdopen(open_regular(self.events, os.O_RDONLY), "rb") as file:
                return sum(line.endswith(b"\n") for line in _lines(file))
        except OSError:
            return 0

    def write(self, path: Path, content: Mapping[str, Any] | str) -> None:
        """Write one file completely or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        with file_errors(f"{path} cannot be written"):
            replace_file(path, text + "\n", _MODE)

    def appended(self, path: Path) -> TextIO:
        """Open one file to add lines; a link in its place could lead to any file.

        Raises:
            ConfigError: It cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with file_errors(f"{path} cannot be written"):
            return os.fdopen(open_regular(path, flags, _MODE), "a")

    def remove_if_empty(self) -> None:
        """Remove the run if nothing was started."""
        own = {self.events, self.samples, self.counters, self.header}
        with contextlib.suppress(OSError):
            started = self.events.exists() and self.events.stat().st_size
            if not started and set(self.path.iterdir()) <= own:
                for path in own:
                    path.unlink(missing_ok=True)
                self.path.rmdir()


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that was not written completely."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _MAX_LINE))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)


def digest(path: Path, flags: int = 0) -> str:
    """Compute the SHA-256 of a regular file, opened with these flags.

    Raises:
        OSError: It cannot be read.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY | flags), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object.

    Raises:
        ConfigError: It cannot be read, or has something else.
    """
    try:
        value = json.loads(read_regular(path, _MAX_OBJECT))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; one that is too long, as of another kind of file, comes in pieces."""
    return iter(lambda: file.readline(_MAX_LINE + 1), b"")


def lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read JSON objects, one a line; a last line that is incomplete ends them.

    Raises:
        ConfigError: The file cannot be read, or a line in its middle is invalid: what comes after
            it may be a fault.
    """
    with file_errors(f"{path}"), os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            if len(line) > _MAX_LINE:
                raise ConfigError(f"{path}, line {number}: longer than {_MAX_LINE} bytes")
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"{path}, line {number}: not JSON") from None
            yield value


def count_lines(path: Path) -> int:
    """Count the JSON objects of a file, as ``lines`` reads them."""
    return sum(1 for _ in lines(path))


def last_moment(folder: RunFolder) -> float:
    """Find when the last event or sample of a run was recorded, by the monotonic clock.

    Raises:
        ConfigError: A file is invalid.
    """
    rows = (row for path in (folder.events, folder.samples) for row in lines(path))
    return max((float(row["at"]) for row in rows), default=0.0)


def plan_object(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {**asdict(plan), "hash": plan.hash}


def find_run(state: Path, name: str | None) -> Path:
    """Find the folder of a run.

    Args:
        state: The state directory.
        name: A folder, or the name of a run in the state directory; None for the newest there.

    Raises:
        ConfigError: There is none.
    """
    kept = state / RUNS
    if name is None:
        newest = max(kept.glob("*/run.json"), key=_begun, default=None)
        if newest is None:
            raise ConfigError(f"{kept} has no run", "Name the folder of a run.")
        return newest.parent
    for path in (Path(name), kept / name):
        if RunFolder(path=path).header.exists():
            return path
    raise ConfigError(f"{name} is not a run", f"Name a folder, or a run in {kept}.")


def _begun(header: Path) -> tuple[float, Path]:
    """Return when a run was begun or resumed last, and its header, to sort runs.

    The name of a run has a local time, which a change of the zone or of summer time sets back.
    """
    with contextlib.suppress(ConfigError, LookupError, TypeError, ValueError):
        run = read_object(header)
        last = (run.get("resumed") or [run])[-1]
        return datetime.fromisoformat(last["started"]).timestamp(), header
    return header.stat().st_mtime, header
