"""Read the end of a log, and follow it while it is rotated by whatever program."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sentinel.host.log_file import MAX_OLD_FILES
from sentinel.host.regular_file import file_errors, open_regular

#: Checks a line of a log.
_Wanted = Callable[[str], bool]

#: How often a log is polled.
POLL_INTERVAL_S = 0.25

_BLOCK_BYTES = 64 * 1024
#: How much before the position of a follower is compared; a line of the log has its own time.
_MARK_BYTES = 256
#: A longer line is truncated at its beginning.
_MAX_LINE_BYTES = 2**20
#: How much of the end of a log is searched for wanted lines.
_MAX_SEARCHED_BYTES = 2**23


def every(_: str) -> bool:
    """Accept each line."""
    return True


def last_lines(path: Path, count: int, wanted: _Wanted = every) -> list[str]:
    """Return the last ``count`` lines of a file that are wanted, without newlines.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        return _end(file, count, wanted)[0]


def last_wanted(path: Path, count: int, wanted: _Wanted) -> list[str]:
    """Return the last ``count`` lines of a file that are wanted, of its last 8 MiB.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        return _end(file, count, wanted, _MAX_SEARCHED_BYTES)[0]


def follow(
    path: Path,
    count: int,
    wait: Callable[[float], None] = time.sleep,
    *,
    wanted: _Wanted = every,
) -> Iterator[str]:
    """Yield the last ``count`` wanted lines of a file, then each new line, without end.

    A renamed file is read to its end before its successor. Of a truncated file, the copy beside it
    is read to its end, if there is one, and then the file from its start.

    Args:
        path: The file.
        count: The number of lines to start with.
        wait: Sleeps between two polls; a test may raise in it to end the loop.
        wanted: Checks a line of those to start with.

    Raises:
        ConfigError: The file cannot be read at the start.
    """
    file = _opened(path)
    try:
        lines, rest = _end(file, count, wanted)
        mark = _before(file)
        yield from lines
        while True:
            if _before(file, len(mark)) != mark:
                copy = _copy(path, file.tell(), mark)
                if copy is None:
                    file.seek(0)
                    rest = b""
                else:
                    file.close()
                    file = copy
            successor = _successor(path, file)
            while data := file.read(_BLOCK_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                yield from map(_text, whole)
                rest = rest[-_MAX_LINE_BYTES:]
            mark = _before(file)
            if successor is None:
                wait(POLL_INTERVAL_S)
                continue
            if rest:
                yield _text(rest)
            file.close()
            file, rest, mark = successor, b"", b""
    finally:
        file.close()


def _opened(path: Path) -> BinaryIO:
    remedy = "`sentinel history --events` shows the events to every user who may read."
    with file_errors(f"the log {path} cannot be read", remedy):
        return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def _before(file: BinaryIO, length: int = _MARK_BYTES) -> bytes:
    """Read what is in the file before its position, which shows a truncation by another content."""
    start = max(0, file.tell() - length)
    return os.pread(file.fileno(), file.tell() - start, start)


def _copy(path: Path, position: int, mark: bytes) -> BinaryIO | None:
    """Open the copy of a file from before its truncation at a position; None without one.

    Args:
        path: The file.
        position: The position.
        mark: What the file had before it.
    """
    for name in sorted(path.parent.glob(f"{glob.escape(path.name)}[.-]*")):
        with contextlib.suppress(OSError):
            file = os.fdopen(open_regular(name, os.O_RDONLY), "rb")
            file.seek(position)
            if _before(file, len(mark)) == mark:
                return file
            file.close()
    return None


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Open the file that comes after a rotated one, or return None if there is none yet.

    It may be an older one than ``path``, since a reader may be several rotations behind.
    """
    names = [path, *(path.with_name(f"{path.name}.{n + 1}") for n in range(MAX_OLD_FILES))]
    current = os.fstat(file.fileno())
    there = {name: found for name in names if (found := _status_of(name)) is not None}
    place = next((name for name in there if os.path.samestat(there[name], current)), None)
    if place is None:  # it was moved or deleted
        then = current.st_mtime_ns
        later = [name for name in there if name == path or there[name].st_mtime_ns > then]
    else:
        later = list(there)[: list(there).index(place)]
    if not later:
        return None
    try:
        opened = os.fdopen(open_regular(later[-1], os.O_RDONLY), "rb")
    except OSError:  # during the rotation; the next poll finds it
        return None
    checked = place or later[-1]
    if (now := _status_of(checked)) is not None and os.path.samestat(now, there[checked]):
        return opened
    opened.close()  # the names have moved meanwhile, so that it may be one too new
    return None


def _status_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _end(
    file: BinaryIO,
    count: int,
    wanted: _Wanted,
    most: int = sys.maxsize,
) -> tuple[list[str], bytes]:
    """Return the last complete lines and the start of the next one; leave the file at its end.

    Args:
        file: The file.
        count: The number of lines.
        wanted: Checks a line.
        most: How many bytes are searched.
    """
    end = file.seek(0, os.SEEK_END)
    pieces = _backwards(file, end, max(0, end - most))
    rest = next(pieces, b"")
    lines = list(islice(filter(wanted, map(_text, pieces)), count))
    file.seek(end)
    return lines[::-1], rest


def _backwards(file: BinaryIO, end: int, least: int) -> Iterator[bytes]:
    """Yield what newlines separate before a position, backwards: first the start of a line."""
    position, rest = end, b""
    while position > least:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        rest, *lines = (file.read(step) + rest).split(b"\n")
        yield from reversed(lines)
    if position == 0:
        yield rest


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
