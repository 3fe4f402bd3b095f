"""The end of a log file, and what is added to it, also when it is rotated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from sentinel.errors import ConfigError

#: How often a log is looked at for news, in seconds.
EVERY = 0.25

#: How much is read at a time, from the end backwards, in bytes; and the longest line.
_BLOCK = 64 * 1024
_LONGEST = 2**20


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last ``count`` lines of a file, without their ends.

    Raises:
        ConfigError: It cannot be read.
    """
    with _opened(path) as file:
        lines, _ = _end(file, count)
    return lines


def follow(path: Path, count: int, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the last ``count`` lines of a file, and then each line that is added, for ever.

    A file that was renamed is read to its end before the one that took its place; one that was
    cut short is read from its beginning.

    Args:
        path: The file.
        count: How many lines to begin with.
        wait: Called between two looks, with seconds; a test's own may raise to end it.

    Raises:
        ConfigError: It cannot be read at first.
    """
    file = _opened(path)
    try:
        lines, rest = _end(file, count)
        yield from lines
        while True:
            replaced = _another(path, file)
            while data := file.read(_BLOCK):
                *whole, rest = (rest + data).split(b"\n")
                yield from map(_text, whole)
                rest = rest[-_LONGEST:]
            if replaced is not None:
                if rest:
                    yield _text(rest)
                file.close()
                file, rest = replaced, b""
                continue
            if file.tell() > os.fstat(file.fileno()).st_size:
                file.seek(0)
                rest = b""
                continue
            wait(EVERY)
    finally:
        file.close()


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be read: {error.strerror}") from error


def _another(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Return the file that has taken the place of one that is open, if there is another."""
    ours = os.fstat(file.fileno())
    try:
        there = path.stat()
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return None
        return path.open("rb")
    except OSError:  # between two names; it will be there at the next look
        return None


def _end(file: BinaryIO, count: int) -> tuple[list[str], bytes]:
    """Return the last whole lines, and what has been written of the next; read up to the end."""
    end = position = file.seek(0, os.SEEK_END)
    data = b""
    while position > 0 and data.count(b"\n") <= count:
        step = min(_BLOCK, position)
        position -= step
        file.seek(position)
        data = file.read(step) + data
    file.seek(end)
    *whole, rest = data.split(b"\n")
    return [_text(line) for line in whole[-count:]] if count else [], rest


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
