"""Notice others who take memory while the child takes its own, where NVML may not list them.

From Ready on the supervisor sees every byte that is not the child's. Before that only the child
knows how much it took itself.
"""

from __future__ import annotations

from sentinel.stressor.device import Device

__all__ = ["ALLOCATION", "PREPARATION", "CrowdedError", "Lookout"]

#: How many bytes more than it took may be gone while the child allocates: the driver's tables for
#: all that memory. Any CUDA context takes more, 527 MiB on an H200.
ALLOCATION = 32 * 2**20

#: The same once kernels run for the first time: libraries load theirs past torch's allocator.
PREPARATION = 256 * 2**20


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

    def check(self, allowance: int) -> None:
        """Compare.

        Raises:
            CrowdedError: More than ``allowance`` bytes are gone that the child did not take.
        """
        gone = self._free - self._device.free_memory()
        grown = gone - (self._device.taken_memory() - self._taken)
        if grown > allowance:
            raise CrowdedError(grown)
