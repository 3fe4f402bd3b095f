"""Read the new records of the kernel's log without blocking, between two moments."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

#: The log of the kernel, one record for each read.
KMSG = "/dev/kmsg"

#: More records are not read at once: a log that grows faster than it is read has no end.
MAX_RECORDS = 20_000
_RECORD_BYTES = 8192
#: A log has at most some hundred thousand records: 2^25 bytes.
_MAX_READS = 20
_MICROSECONDS = 1e6
#: A newline within a message, and a line that names a property of its device.
_NEWLINE = "\\x0a"
_PROPERTY = re.compile(r" [A-Z_]{1,40}=")


@dataclass(frozen=True, kw_only=True)
class KernelRecord:
    """One record of the kernel."""

    #: When it was written, by the monotonic clock.
    at: float
    #: Its lines.
    text: str


def read_past(path: str = KMSG) -> tuple[list[KernelRecord], str | None]:
    """Read the records that the kernel still has, and why that failed or None."""
    found: list[KernelRecord] = []
    with KernelLog(path, since=0.0) as log:
        for _ in range(_MAX_READS):
            records = log.read()
            found += records
            if len(records) < MAX_RECORDS:
                break
        return found, None if found else log.error


class KernelLog:
    """The records that are written from the opening on, or from an earlier moment on.

    Args:
        path: The device.
        since: The moment by the monotonic clock: 0.0 for all that the kernel still has. That it
            has none from before another moment is an error, since some may be missing.
    """

    def __init__(self, path: str = KMSG, *, since: float | None = None) -> None:
        self._since = since or 0.0
        self._reached = since is None or since == 0.0
        #: Why the log cannot be read, or None. A reader that was overtaken misses records.
        self.error: str | None = None
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if since is None:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self._fail(f"{path} cannot be read: {error.strerror}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def read(self) -> tuple[KernelRecord, ...]:
        """Read the records since the last call, at most MAX_RECORDS."""
        return tuple(self._records())

    def close(self) -> None:
        """Close the device."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _records(self) -> Iterator[KernelRecord]:
        for _ in range(MAX_RECORDS):
            if self._fd < 0:
                return
            try:
                raw = _read_record(self._fd)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before this one
                    self.error = (
                        "records of the kernel's log were overwritten before they were read"
                    )
                    continue
                if error.errno == errno.EINVAL:  # a record larger than the buffer
                    continue
                self._fail(f"the kernel's log cannot be read: {error.strerror}")
                return
            if not raw:
                return
            record = _parse(raw)
            if record.at < self._since:
                self._reached = True
                continue
            if not self._reached:
                self._reached = True
                self.error = "the kernel's log of the time between two parts is not whole any more"
            yield record

    def _fail(self, why: str) -> None:
        self.error = why
        self.close()


def _read_record(fd: int) -> bytes:
    """Read one record; the device is opened without blocking."""
    return os.read(fd, _RECORD_BYTES)


def _parse(raw: bytes) -> KernelRecord:
    """Parse ``priority,sequence,microseconds,flags;text`` and the lines after it.

    A message of several lines is one record, whose newlines the kernel escapes.

    The kernel stamps records with a clock that no time server corrects. In months it drifts by
    minutes from the monotonic clock, as far as the raw one does.
    """
    head, _, text = raw.decode(errors="replace").partition(";")
    parts = head.split(",")
    try:
        drift = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - time.monotonic()
        at = int(parts[2]) / _MICROSECONDS - drift
    except (IndexError, ValueError):
        at = 0.0
    first, *more = text.removesuffix("\n").split("\n")
    lines = [first, *(line.strip() for line in more if not _PROPERTY.match(line))]
    return KernelRecord(at=at, text="\n".join(lines).replace(_NEWLINE, "\n"))
