"""Memory that two processes share: sealed, so that neither can shrink it under the other."""

from __future__ import annotations

import fcntl
import mmap
import os


def allocate(name: str, size: int) -> int:
    """Allocate ``size`` bytes of zeros that a child can inherit; return the descriptor.

    Sealed against truncation: reading beyond the end would end the reader by SIGBUS.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


class Stamps:
    """Times that one process writes and another reads, without a lock or a system call.

    Args:
        fd: The shared memory; :meth:`close` closes it.
        count: How many times there are; all are 0.0 at first.
    """

    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 8 * count)
        self._times = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls, count: int) -> Stamps:
        """Create stamps; a child attaches to their ``fd``."""
        return cls(allocate("sentinel-stamps", 8 * count), count)

    def set(self, index: int, at: float) -> None:
        """Write one time, in seconds of the monotonic clock."""
        self._times[index] = at

    def get(self, index: int) -> float:
        """Read one time, in seconds of the monotonic clock; 0.0 before the first."""
        return self._times[index]

    def close(self) -> None:
        """Release the memory; the stamps are unusable afterwards."""
        self._times.release()
        self._memory.close()
        os.close(self.fd)
