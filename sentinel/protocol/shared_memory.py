"""Sealed memory that two processes share, and the driver calls that a process announces in it."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Sequence

#: The stamps of a stressor, and their number: when it last saw the memory of its GPU within its
#: limit, and when it last forked beyond the first few processes.
WATCHED, FORKED = 0, 1
STRESSOR_STAMPS = 2

#: The most GPUs that have slots.
MAX_GPUS = 128

_SLOTS = 1 + 2 * MAX_GPUS
_NAME_BYTES = 32
_TIMES = 8 * _SLOTS
_SIZE = _TIMES + _NAME_BYTES * _SLOTS


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


def slot_order(found: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Order UUIDs by their slots: the GPUs found, then known ones that were not."""
    return (*found, *(uuid for uuid in known if uuid not in found))[:MAX_GPUS]


def slots_of(index: int) -> tuple[int, int]:
    """Compute the two slots of the GPU at ``index`` of the slot order; slot 0 is the driver's."""
    return 1 + 2 * index, 2 + 2 * index


def gpu_of(slot: int) -> int | None:
    """Compute the index in the slot order of the GPU of a slot, or None for the driver's."""
    return (slot - 1) // 2 if slot else None


class InflightCalls:
    """A slot for the driver as a whole and two for each GPU, each with at most one call.

    Each slot has one writer, any number of readers, and no lock.

    Args:
        fd: The shared memory; :meth:`close` closes it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        whole = memoryview(self._memory)
        self._times = whole[:_TIMES].cast("d")
        self._names = whole[_TIMES:]
        whole.release()
        self._encoded: dict[str, bytes] = {}

    @classmethod
    def create(cls) -> InflightCalls:
        """Create an empty board; a child attaches to its ``fd``."""
        return cls(allocate("sentinel-calls", _SIZE))

    @classmethod
    def attach(cls, fd: int) -> InflightCalls:
        """Attach to the board behind ``fd``, which it owns from now on."""
        return cls(fd)

    def announce(self, slot: int, call: str) -> None:
        """Announce that ``call`` begins now; its name is cut at 31 ASCII characters."""
        name = self._encoded.get(call)
        if name is None:
            name = call.encode("ascii", "replace")[: _NAME_BYTES - 1].ljust(_NAME_BYTES, b"\0")
            self._encoded[call] = name
        # The time makes a slot valid, so it is cleared first and set last.
        self._times[slot] = 0.0
        self._names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES] = name
        self._times[slot] = time.monotonic()

    def finish(self, slot: int) -> None:
        """Announce that the slot's call returned."""
        self._times[slot] = 0.0

    def outstanding(self) -> tuple[tuple[int, str, float], ...]:
        """List ``(slot, call, since)`` for every call that began and has not returned.

        ``since`` is in seconds of the monotonic clock. A slot that changes while it is read, or
        that has no valid content, counts as empty; the slot of a call that hangs does not change.
        """
        found = []
        now = time.monotonic()
        for slot, since in enumerate(self._times.tolist()):
            if 0.0 < since <= now:  # also drops NaN
                raw = bytes(self._names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES])
                call = raw.rstrip(b"\0").decode("ascii", "replace")
                if call and call.isascii() and call.isprintable() and self._times[slot] == since:
                    found.append((slot, call, since))
        return tuple(found)

    def close(self) -> None:
        """Release the memory; the board is unusable afterwards."""
        self._times.release()
        self._names.release()
        self._memory.close()
        os.close(self.fd)
