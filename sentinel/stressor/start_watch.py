"""Watch the memory of the own GPU during a start, and announce what is taken.

From the moment at which a stressor keeps still, just before it takes its chunks, all growth of the
used memory that it does not announce is a newcomer's, to the MiB. Here it is compared after each
chunk; the thread of ``self_watch`` and the supervisor compare it as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sentinel.errors import MemoryContentionError
from sentinel.protocol.stressor import (
    GROWTH_SLACK_BYTES,
    Announcement,
    StartStage,
    StressorSpec,
    size_in_chunks,
)
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.self_watch import open_reader

#: How long a stressor keeps still before it takes its memory, and the interval of its looks, in
#: seconds. A context that is being created keeps growing: on an H200 it never paused for more than
#: 0.14 s.
QUIET_PERIOD_S = 0.15
_POLL_INTERVAL_S = 0.005

#: Growth allowed before Ready to a workload that has no rehearsal: libraries load their kernels
#: outside torch's allocator.
PREPARATION_BYTES = 256 * 2**20


class Reserves(Protocol):
    """A device that knows what this process holds."""

    def reserved_bytes(self) -> int:
        """Return the memory that this process holds, without its context and libraries."""


class StartWatch:
    """Knows how much memory of a GPU may be used while a stressor starts.

    Args:
        spec: The GPU, and whether all growth that is not announced is a newcomer's.
        lease_keeper: Sends announcements, and has the limit of the thread that watches.
        device: Knows what this process has taken.
    """

    def __init__(self, spec: StressorSpec, lease_keeper: LeaseKeeper, device: Reserves) -> None:
        self._lease_keeper = lease_keeper
        self._device = device
        self._read = _reader(spec)
        #: Used memory, and what this process held of it, while it kept still.
        self._used = self._held = self._more = 0
        self._quiet = False

    def announce(self, stage: StartStage, more: int = 0) -> None:
        """Tell the supervisor what comes next, and how many bytes it takes at most."""
        exact = self._lease_keeper.start_limit is not None and not self._lease_keeper.limited
        used = self._expected() if exact else None
        self._lease_keeper.send(Announcement(stage=stage, used=used, more=more))

    def keep_still(self) -> None:
        """Wait for the quiet period, and learn the used memory; watch it exactly from now on.

        Raises:
            MemoryContentionError: Another process takes memory.
        """
        if self._read is None:
            return
        self._used, self._held = self._read(), self._device.reserved_bytes()
        until = time.monotonic() + QUIET_PERIOD_S
        while time.monotonic() < until:
            time.sleep(_POLL_INTERVAL_S)
            used = self._read()
            self._compare(used, self._used)
            self._used = min(self._used, used)
        self._quiet = True
        self._limit(self._used)

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        """Expect one piece of memory that is taken in this block; compare the growth after it.

        Raises:
            MemoryContentionError: More was taken.
        """
        if self._lease_keeper.start_limit is None:
            yield
            return
        self._limit(self._expected() + size_in_chunks(size, size))
        yield
        self._limit(self._expected())
        self.check()

    def check(self) -> None:
        """Compare the used memory with what this process has taken, before Ready.

        Raises:
            MemoryContentionError: Another process has taken some.
        """
        if self._read is not None and self._quiet and not self._lease_keeper.limited:
            self._compare(self._read(), self._expected() + self._more)

    def expect_preparation(self, more: int) -> None:
        """Announce the last part of a start, and that libraries may take ``more`` bytes in it.

        With more than nothing only the growth until Ready is judged, beside what torch holds then.
        """
        self._more = more
        if more:
            self._lease_keeper.start_limit = None
        self.announce(StartStage.PREPARING, more)

    def _expected(self) -> int:
        return self._used + self._device.reserved_bytes() - self._held

    def _limit(self, used: int) -> None:
        """Let the thread that watches accept this."""
        self._lease_keeper.start_limit = used + GROWTH_SLACK_BYTES

    def _compare(self, used: int, expected: int) -> None:
        if used - expected > GROWTH_SLACK_BYTES:
            raise MemoryContentionError(used - expected)


def _reader(spec: StressorSpec) -> Callable[[], int] | None:
    """Return a function that reads the used memory, or None if growth cannot be told apart."""
    if not (spec.self_watch and spec.exact_start):
        return None
    try:
        return open_reader(spec)
    except Exception:  # noqa: BLE001 - NVML, its binding and a broken board raise anything
        return None
