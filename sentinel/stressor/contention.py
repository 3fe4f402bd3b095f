"""Detect newcomers that take memory while the stressor takes its own, if NVML cannot show them.

After Ready the supervisor sees every byte that the stressor does not hold. Before Ready it does so
only if NVML reports how much the stressor holds. Otherwise only the stressor knows that.
"""

from __future__ import annotations

import time

from sentinel.stressor.device import Device

#: Unexplained growth allowed while the stressor only allocates. On an H200 there is none. A
#: newcomer's context begins with 13 MiB or more, some 150 ms before its first allocation.
ALLOCATION_SLACK_BYTES = 2 * 2**20

#: The same while kernels run for the first time: libraries load theirs outside torch's allocator.
PREPARATION_SLACK_BYTES = 256 * 2**20

#: How long memory must not change before the stressor takes its own, and the polling interval.
#: A context that is being created keeps growing: on an H200 it never paused for more than 0.14 s.
#: The supervisor, too, has this time to find processes that are already there.
QUIET_PERIOD_S = 0.3
_POLL_INTERVAL_S = 0.01


class MemoryContentionError(Exception):
    """Another process took ``grown`` bytes while the stressor started."""

    def __init__(self, grown: int) -> None:
        super().__init__(f"{grown} bytes were taken by another process")
        self.grown = grown


class ContentionMonitor:
    """Compares the decrease of free memory with what this process took since construction.

    Args:
        device: A device with a context.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free = device.free_bytes()
        self._reserved = device.reserved_bytes()

    def wait_until_quiet(self) -> None:
        """Watch for the quiet period, before any memory is taken.

        Raises:
            MemoryContentionError: Another process takes memory.
        """
        until = time.monotonic() + QUIET_PERIOD_S
        while time.monotonic() < until:
            self.check(ALLOCATION_SLACK_BYTES)
            time.sleep(_POLL_INTERVAL_S)

    def check(self, allowance: int) -> None:
        """Check that at most ``allowance`` bytes are gone that this process did not take.

        Raises:
            MemoryContentionError: More bytes are gone.
        """
        gone = self._free - self._device.free_bytes()
        grown = gone - (self._device.reserved_bytes() - self._reserved)
        if grown > allowance:
            raise MemoryContentionError(grown)
