"""Golden checksums: what good GPUs of one model compute, in a file that many processes share.

One line of JSON for each record, written once and never changed; the first record of a key is
valid. A GPU with a reproducible fault agrees with itself, and with no record of another GPU.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.host.paths import state_folder
from sentinel.host.regular_file import locked, open_regular, why_replaceable
from sentinel.protocol.codec import from_json

#: The version of a line. A line of another version is skipped.
SCHEMA = 1

#: The name of the file in a state folder.
NAME = "goldens.jsonl"

#: How long another process may lock the file. One that was stopped while it wrote must not block a
#: stressor.
_LOCK_TIMEOUT_S = 1.0

#: What is read back from the text of a key.
_KEY = re.compile(r", (\d+) SMs, torch .*, (\S+) \S+ v\d+, seed \d+$")


@dataclass(frozen=True, kw_only=True)
class GoldenKey:
    """The inputs of a result: two good GPUs with the same key compute the same bits."""

    gpu: str
    #: The number of multiprocessors.
    sms: int
    torch: str
    #: The version of the BLAS library.
    blas: str
    dtype: str
    #: The size of the operands.
    shape: str
    #: The seed of the operands.
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.gpu}, {self.sms} SMs, torch {self.torch}, BLAS {self.blas}, "
            f"{self.dtype} {self.shape}, seed {self.seed}"
        )


def sms_of(key: str) -> int:
    """Return the number of multiprocessors of a key as text, or 0 if it has none."""
    match = _KEY.search(key)
    return int(match[1]) if match else 0


def dtype_of(key: str) -> str | None:
    """Return the dtype of a key as text, or None if it has none."""
    match = _KEY.search(key)
    return match[2] if match else None


@dataclass(frozen=True, kw_only=True)
class _Format:
    """The fields of a line besides those of its key."""

    schema_version: int
    checksum: str = ""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One record: a key, its checksum, and its file and line."""

    key: GoldenKey
    checksum: int
    file: Path
    line: int


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Two records of one key with different checksums; the first is valid."""

    first: Golden
    later: Golden


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A line that is not a record, and why."""

    file: Path
    line: int
    why: str


# --- where -----------------------------------------------------------------------------------


def locate(
    setting: str | None, environment: Mapping[str, str], simulation: Path | None = None
) -> Path | None:
    """Compute the absolute path that ``setting`` means, or None if it is ``off``.

    Args:
        setting: A path, which may begin with ``~/``, or ``off``; None for the default.
        environment: The environment.
        simulation: The folder of the simulated GPUs, which have records of their own.
    """
    home = Path(environment.get("HOME") or "/")
    if setting == "off":
        return None
    if setting is None:
        path = (simulation or state_folder(environment, os.getuid())) / NAME
    elif setting.startswith("~/"):
        path = home / setting.removeprefix("~/")
    else:
        path = Path(setting)
    return path.absolute()


# --- one file --------------------------------------------------------------------------------


def _open(path: Path, flags: int, mode: int = 0) -> int:
    """Open the file that decides which GPU is right, unless another user could change it.

    Raises:
        OSError: As of :func:`open_regular`; also if another user could write or replace it.
    """
    if (why := why_replaceable(path.absolute())) is not None:
        raise OSError(errno.EPERM, f"it is not trusted: {why}", str(path))
    return open_regular(path, flags, mode)


class _File:
    """The records of one file, read incrementally."""

    def __init__(self, path: Path, opener: Callable[[Path, int], int] = open_regular) -> None:
        self.path = path
        self._open = opener
        self.records: list[Golden] = []
        self.skipped: list[Skipped] = []
        self.first: dict[GoldenKey, Golden] = {}
        self._offset = 0
        self._line = 0

    def refresh(self) -> None:
        """Read what was added since; an incomplete last line is left for later.

        Raises:
            OSError: The file exists and cannot be read.
        """
        try:
            descriptor = self._open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(descriptor).st_size
            if size < self._offset:  # the file was replaced
                self._offset = self._line = 0
            data = _read(descriptor, self._offset, size)
        finally:
            os.close(descriptor)
        whole, end, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(end)
        for line in whole.split(b"\n") if end else ():
            self._line += 1
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            key, checksum = _parse(line)
        except (ValueError, RecursionError) as error:
            self.skipped.append(Skipped(file=self.path, line=self._line, why=_reason(error)))
            return
        golden = Golden(key=key, checksum=checksum, file=self.path, line=self._line)
        self.records.append(golden)
        self.first.setdefault(key, golden)


def _read(descriptor: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        piece = os.pread(descriptor, end - start - len(data), start + len(data))
        if not piece:
            break
        data += piece
    return data


def _parse(line: bytes) -> tuple[GoldenKey, int]:
    """Parse a record.

    Raises:
        ValueError, RecursionError: The line is not a record.
    """
    body = json.loads(line)
    form = from_json(_Format, body)
    if form.schema_version != SCHEMA:
        raise ValueError(f"its schema_version is {form.schema_version}, not {SCHEMA}")
    return from_json(GoldenKey, body), int(form.checksum, 16)


def _reason(error: Exception) -> str:
    """Describe why a line is not a record."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it is not JSON, or only a part of a line"
    return str(error)


def _format(key: GoldenKey, checksum: int) -> bytes:
    """Format a record as a line. The checksum is text: many JSON readers round large numbers."""
    body = {"schema_version": SCHEMA, **vars(key), "checksum": f"{checksum:#x}"}
    return json.dumps(body).encode() + b"\n"


# --- all of them -----------------------------------------------------------------------------


def _to_stderr(text: str) -> None:
    """Print a warning; standard output belongs to the events."""
    print(f"sentinel: {text}", file=sys.stderr, flush=True)  # noqa: T201


class Goldens:
    """The golden checksums of one file, and of others that are only read.

    Several processes may use one file at once. A file that cannot be read or written causes one
    warning and no error.

    Args:
        path: The file that records are added to; it and its folder are created with the first. It
            is not used if another user could change it: a false record accuses a good GPU.
        others: Files that are read besides; ``path`` goes before them, and they keep their order.
        warn: Reports a problem with a file.
    """

    def __init__(
        self,
        path: Path,
        others: Sequence[Path] = (),
        warn: Callable[[str], None] = _to_stderr,
    ) -> None:
        self.path = path
        self._own = _File(path, _open)
        self._files = (self._own, *(_File(other) for other in others))
        self._warn = warn
        self._warned: set[tuple[Path, str]] = set()

    def known(self, key: GoldenKey) -> int | None:
        """Look up the first checksum of ``key`` that any process has recorded."""
        for file in self._refreshed():
            if key in file.first:
                return file.first[key].checksum
        return None

    def record(self, key: GoldenKey, checksum: int) -> None:
        """Record the checksum of ``key`` unless there is one, and return once it is on disk.

        If another process was first, nothing is written, so call :meth:`known` afterwards as well.
        """
        if self.known(key) is not None:
            return
        try:
            self.add({key: checksum})
        except OSError as error:
            self._warn_once(self.path, "write", f"no checksum can be recorded: {_why(error)}")

    def add(self, records: Mapping[GoldenKey, int]) -> int:
        """Add the records with new keys to ``path``; return how many these were.

        Raises:
            OSError: It cannot be written or trusted, or another process keeps it locked.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with locked(_open(self.path, flags, 0o644), _LOCK_TIMEOUT_S) as descriptor:
            self._own.refresh()
            new = {key: value for key, value in records.items() if key not in self._own.first}
            if not new:
                return 0
            data = b"".join(_format(key, checksum) for key, checksum in new.items())
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a writer died in the middle of a line
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        self._own.refresh()
        return len(new)

    def records(self) -> tuple[Golden, ...]:
        """List the valid record of each key, file by file."""
        found: dict[GoldenKey, Golden] = {}
        for golden in self._all():
            found.setdefault(golden.key, golden)
        return tuple(found.values())

    def conflicts(self) -> tuple[Conflict, ...]:
        """List every record that differs from the valid one of its key."""
        holds = {golden.key: golden for golden in self.records()}
        return tuple(
            Conflict(first=holds[golden.key], later=golden)
            for golden in self._all()
            if golden.checksum != holds[golden.key].checksum
        )

    def ensure_readable(self) -> None:
        """Read all of the files.

        Raises:
            OSError: One of them exists and cannot be read.
        """
        for file in self._files:
            file.refresh()

    def skipped(self) -> tuple[Skipped, ...]:
        """List the lines that are not records."""
        return tuple(line for file in self._refreshed() for line in file.skipped)

    def keys_in(self, file: Path) -> set[GoldenKey]:
        """List the keys in one of the files."""
        return {golden.key for golden in self._all() if golden.file == file}

    def _all(self) -> Iterator[Golden]:
        for file in self._refreshed():
            yield from file.records

    def _refreshed(self) -> Iterable[_File]:
        """Refresh the files as far as they can be read, and return them."""
        for file in self._files:
            try:
                file.refresh()
            except OSError as error:
                self._warn_once(file.path, "read", f"cannot be read: {_why(error)}")
            if file.skipped:
                first = file.skipped[0]
                text = f"line {first.line} is skipped, since {first.why}; others may be, too"
                self._warn_once(file.path, "line", text)
        return self._files

    def _warn_once(self, path: Path, about: str, text: str) -> None:
        if (path, about) not in self._warned:
            self._warned.add((path, about))
            self._warn(f"{path}: {text}")


def _why(error: OSError) -> str:
    return error.strerror or str(error)
