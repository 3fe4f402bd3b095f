"""Notice others who take memory while the child takes its own, where NVML may not list them.

From Ready on the supervisor sees every byte that is not the child's. Before that it does where NVML
says how much the child holds; where it does not, only the child knows how much it took itself.
"""

from __future__ import annotations

import time

from sentinel.stressor.device import Device

#: How many bytes more than it took may be gone while the child only allocates. On an H200 none are;
#: a newcomer's context begins with 13 MiB and more, some 150 ms before its first allocation.
ALLOCATION = 2 * 2**20

#: The same once kernels run for the first time: libraries load theirs past torch's allocator.
PREPARATION = 256 * 2**20

#: How long nothing may move before the child takes its memory, and how often it looks, in seconds.
#: Somebody whose context was begun beside the child's is seen to go on with it: on an H200 it never
#: rested longer than 0.14 s. And the supervisor has the time to find whoever is there already.
CALM = 0.3
_EVERY = 0.01


class CrowdedError(Exception):
    """Somebody else took ``grown`` bytes meanwhile."""

    def __init__(self, grown: int) -> None:
        super().__init__(f"{grown} bytes were taken by somebody else")
        self.grown = grown


class Lookout:
    """Compares what is gone with what the child took, from now on.

    Args:
        device: With a context on it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free = device.free_memory()
        self._taken = device.taken_memory()

    def wait_for_calm(self) -> None:
        """Watch for a while before anything is taken.

        Raises:
            CrowdedError: Somebody else takes memory.
        """
        until = time.monotonic() + CALM
        while time.monotonic() < until:
            self.check(ALLOCATION)
            time.sleep(_EVERY)

    def check(self, allowance: int) -> None:
        """Compare.

        Raises:
            CrowdedError: More than ``allowance`` bytes are gone that the child did not take.
        """
        gone = self._free - self._device.free_memory()
        grown = gone - (self._device.taken_memory() - self._taken)
        if grown > allowance:
            raise CrowdedError(grown)
