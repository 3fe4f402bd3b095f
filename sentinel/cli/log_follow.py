"""Read the end of a log file, and follow it across rotations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sentinel.errors import ConfigError
from sentinel.host.files.regular_file import open_regular

#: How often a log is polled.
POLL_INTERVAL_S = 0.25

_BLOCK_BYTES = 64 * 1024
#: A longer line is truncated at its beginning.
_MAX_LINE_BYTES = 2**20
#: How much of the end of a log is searched for wanted lines.
_MAX_SEARCHED_BYTES = 2**23


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last ``count`` lines of a file, without newlines.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        lines, _ = _end(file, count)
    return lines


def last_wanted(path: Path, count: int, wanted: Callable[[str], bool]) -> list[str]:
    """Return the last ``count`` lines of a file that are wanted, of its last 8 MiB.

    Args:
        path: The file.
        count: The number of lines, at least 1.
        wanted: Checks a line.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        found = islice(filter(wanted, map(_text, _backwards(file))), count)
        return list(found)[::-1]


def follow(path: Path, count: int, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the last ``count`` lines of a file, then each new line, without end.

    A renamed file is read to its end before its successor; a truncated file is read from its start.

    Args:
        path: The file.
        count: The number of lines to start with.
        wait: Sleeps between two polls; a test may raise in it to end the loop.

    Raises:
        ConfigError: The file cannot be read at the start.
    """
    file = _opened(path)
    try:
        lines, rest = _end(file, count)
        yield from lines
        while True:
            successor = _successor(path, file)
            while data := file.read(_BLOCK_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                yield from map(_text, whole)
                rest = rest[-_MAX_LINE_BYTES:]
            if successor is not None:
                if rest:
                    yield _text(rest)
                file.close()
                file, rest = successor, b""
                continue
            if file.tell() > os.fstat(file.fileno()).st_size:
                file.seek(0)
                rest = b""
                continue
            wait(POLL_INTERVAL_S)
    finally:
        file.close()


def _opened(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_regular(path, os.O_RDONLY), "rb")
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be read: {error.strerror}") from error


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Open the successor of a rotated file, or return None if there is none."""
    current = os.fstat(file.fileno())
    try:
        there = path.stat()
        if (there.st_dev, there.st_ino) == (current.st_dev, current.st_ino):
            return None
        return os.fdopen(open_regular(path, os.O_RDONLY), "rb")
    except OSError:  # during the rotation; the next poll finds it
        return None


def _end(file: BinaryIO, count: int) -> tuple[list[str], bytes]:
    """Return the last complete lines and the start of the next one; leave the file at its end."""
    end = position = file.seek(0, os.SEEK_END)
    data = b""
    while position > 0 and data.count(b"\n") <= count:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        data = file.read(step) + data
    file.seek(end)
    *whole, rest = data.split(b"\n")
    return [_text(line) for line in whole[-count:]] if count else [], rest


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines at the end of a file, the last one first."""
    position = file.seek(0, os.SEEK_END)
    least = max(0, position - _MAX_SEARCHED_BYTES)
    rest, complete = b"", False
    while position > least:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        rest, *lines = (file.read(step) + rest).split(b"\n")
        if lines and not complete:
            lines.pop()  # not written completely yet, or empty
            complete = True
        yield from reversed(lines)
    if complete and position == 0:
        yield rest


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
