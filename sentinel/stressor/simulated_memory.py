"""Account for the tensors that a workload creates on a simulated GPU, as torch's allocator would.

The device of a simulated GPU is the CPU, whose allocator reports nothing. So each operation of the
workload's thread is seen on its way to it. Not seen are operations of other threads, temporaries
within one operation, and fragmentation. A tensor that the workload means for the host counts, too:
here both are on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.units import format_size

#: torch takes memory from the driver in segments of 2 MiB for tensors of up to 1 MiB, and of 20 MiB
#: for larger ones, and keeps them (kSmallSize, kSmallBuffer and kLargeBuffer of
#: c10/cuda/CUDACachingAllocator).
_SMALL_BYTES = 2**20
_SEGMENTS_BYTES = (2 * 2**20, 20 * 2**20)


class TensorAccount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of this thread and the memory of their results, while it is entered.

    Args:
        allocate: Takes so many bytes of the GPU, or returns False.
        known: Tensors that are accounted for already.

    Attributes:
        operations: How many operations there were.
    """

    def __init__(self, allocate: Callable[[int], bool], known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self._allocate = allocate
        self._growth_forbidden = False
        #: Of the small and of the large tensors: what lives, and what was taken from the GPU.
        self._living = [0, 0]
        self._taken = [0, 0]
        #: Each storage, by its address.
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._remember(tensor.untyped_storage(), None)

    def forbid_growth(self) -> None:
        """Refuse what the memory taken so far cannot serve."""
        self._growth_forbidden = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and account for its results.

        Raises:
            torch.cuda.OutOfMemoryError: There is no room for one of them.
        """
        del types
        found = func(*args, **(kwargs or {}))
        self.operations += 1
        for result in found if isinstance(found, tuple | list) else (found,):
            if isinstance(result, Tensor) and result.device.type == "cpu":
                self._account(result.untyped_storage())
        return found

    def _account(self, storage: Any) -> None:
        """Account for a storage that has not been seen before."""
        if storage._cdata in self._storages:  # noqa: SLF001 - its address has no other name
            return
        size = storage.nbytes()
        pool = int(size > _SMALL_BYTES)
        segment = _SEGMENTS_BYTES[pool]
        missing = -(-(self._living[pool] + size) // segment) * segment - self._taken[pool]
        if missing > 0:
            if self._growth_forbidden or not self._allocate(missing):
                message = f"a tensor of {format_size(size)} does not fit into the simulated memory"
                raise torch.cuda.OutOfMemoryError(message)
            self._taken[pool] += missing
        self._living[pool] += size
        self._remember(storage, (pool, size))

    def _remember(self, storage: Any, counted: tuple[int, int] | None) -> None:
        """Remember a storage until it is freed."""
        address = storage._cdata  # noqa: SLF001 - as above

        def forget(_: object) -> None:
            self._storages.pop(address, None)
            if counted is not None:
                self._living[counted[0]] -= counted[1]

        self._storages[address] = weakref.ref(storage, forget)
