"""Where the probe announces a driver call before it makes it, for the supervisor to read.

A call that hangs can say nothing any more, and one message per call would wake the supervisor
hundreds of times a second. So the announcements lie in memory that both share: to make one costs
two stores, to read them all costs no system call, and a probe that died leaves its last words.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Sequence
from typing import Protocol

#: How many GPUs there is room for, besides the driver as a whole.
MAX_GPUS = 128

_SLOTS = 1 + 2 * MAX_GPUS
_NAME = 32
_TIMES = 8 * _SLOTS
_SIZE = _TIMES + _NAME * _SLOTS


def places(found: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the UUIDs in the order of their slots: those found, then known ones that were not."""
    return (*found, *(uuid for uuid in known if uuid not in found))[:MAX_GPUS]


def slots_of(index: int) -> tuple[int, int]:
    """Return the two slots of the GPU at ``index`` of the places; slot 0 is the driver's."""
    return 1 + 2 * index, 2 + 2 * index


def gpu_of(slot: int) -> int | None:
    """Return the index of the place that a slot belongs to, ``None`` for the driver's."""
    return (slot - 1) // 2 if slot else None


class InheritedFd(Protocol):
    """A file descriptor on its way into a child, as multiprocessing.reduction.DupFd makes it."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


class InflightCalls:
    """A slot for the driver as a whole and two for each GPU, each with at most one call.

    Each slot has one writer, any number of readers, and no lock.

    Args:
        fd: The shared memory; closed with the board.
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
        """Return an empty board, which a child can attach to by its ``fd``."""
        fd = os.memfd_create("sentinel-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _SIZE)
        # Nobody may cut it short: reading beyond the end would kill the supervisor by SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return cls(fd)

    @classmethod
    def attach(cls, fd: int) -> InflightCalls:
        """Return the board behind ``fd``, which belongs to it from now on."""
        return cls(fd)

    def announce(self, slot: int, call: str) -> None:
        """Say that ``call`` begins now. Its name is cut at 31 characters of ASCII."""
        name = self._encoded.get(call)
        if name is None:
            name = call.encode("ascii", "replace")[: _NAME - 1].ljust(_NAME, b"\0")
            self._encoded[call] = name
        # The time is what makes a slot count, so it goes first and comes back last.
        self._times[slot] = 0.0
        self._names[slot * _NAME : slot * _NAME + _NAME] = name
        self._times[slot] = time.monotonic()

    def finish(self, slot: int) -> None:
        """Say that the slot's call returned."""
        self._times[slot] = 0.0

    def outstanding(self) -> tuple[tuple[int, str, float], ...]:
        """Return ``(slot, call, since)`` for every call that began and has not returned.

        ``since`` is in seconds of the monotonic clock. A slot that changes while it is read, or
        holds what no writer of ours writes, counts as empty; a call that hangs stands still.
        """
        found = []
        now = time.monotonic()
        for slot, since in enumerate(self._times.tolist()):
            if 0.0 < since <= now:  # also drops what is not a number
                raw = bytes(self._names[slot * _NAME : slot * _NAME + _NAME])
                call = raw.rstrip(b"\0").decode("ascii", "replace")
                if call and call.isascii() and call.isprintable() and self._times[slot] == since:
                    found.append((slot, call, since))
        return tuple(found)

    def close(self) -> None:
        """Give the memory back; the board is of no use afterwards."""
        self._times.release()
        self._names.release()
        self._memory.close()
        os.close(self.fd)
