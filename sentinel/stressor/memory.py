"""Take device memory: equal chunks and a rest, until the target or the device is exhausted.

On parts with unified memory a single allocation of hundreds of gigabytes can exceed the driver's
30 s limit for scrubbing, so memory is taken in chunks. A chunk is the size of one GEMM result.

Newcomers that take memory meanwhile are detected here: before Ready the supervisor sees them only
if NVML reports how much the stressor holds.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import MemoryTarget
from sentinel.stressor.device import Device
from sentinel.units import format_size

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


@dataclass(frozen=True, kw_only=True)
class Filling:
    """The memory that the device provided."""

    chunks: tuple[Tensor, ...]
    #: What is held beside the chunks and not worked on, smaller than a chunk; None if nothing is.
    rest: Tensor | None
    #: Bytes of all chunks, and with the rest.
    worked_on: int
    held: int
    #: Bytes of the target.
    asked: int
    #: Whether the device ran out of memory before the target.
    refused: bool


#: More than torch and cuBLAS allocate when kernels run for the first time, which a reserve must not
#: pay for. On an H200 with torch 2.11 that was 192 MiB for `gemm` of any dtype and `pulse`, 94 MiB
#: for `memtest`, 92 MiB for `elementwise` and nothing for `hold`.
_LIBRARY_BYTES = 256 * 2**20


#: torch rounds an allocation of at least 10 MiB up to a multiple of 2 MiB, and takes 20 MiB for a
#: smaller one (kMinLargeAlloc, kRoundLarge and kLargeBuffer of c10/cuda/CUDACachingAllocator).
_LEAST_REST_BYTES = 10 * 2**20
_ROUNDED_TO_BYTES = 2 * 2**20

#: The most chunks. On an H200 the teardown of 62,976 chunks of 2 MiB took 2.2 s, and no newcomer
#: got its memory; with 246 of 512 MiB every one did. The bound is computed from the 35 microseconds
#: of each chunk, 36 ms in all, and not measured.
MAX_CHUNKS = 1024


def fill(
    device: Device,
    target: MemoryTarget,
    chunk: int,
    reserve: int = 0,
    monitor: ContentionMonitor | None = None,
) -> Filling:
    """Take chunks of ``chunk`` bytes up to ``target``, a size or a share of the free memory.

    A target below one chunk is one chunk of that size. What is left over is taken as a rest, so
    that the sum is exact to 2 MiB; less than 10 MiB is not taken. The content is undefined. At
    least ``reserve`` bytes of the free memory are left.

    Raises:
        ConfigError: There would be more chunks than a newcomer could wait for.
        torch.cuda.OutOfMemoryError: Not one chunk fits.
        MemoryContentionError: The ``monitor`` saw another process take memory.
    """
    free = device.free_bytes()
    asked = int(free * target.share) if target.share is not None else target.size or 0
    if reserve:
        asked = max(0, min(asked, free - reserve - _LIBRARY_BYTES))
    size = chunk if target.size is None else min(chunk, target.size)
    wanted = asked // size
    taken = min(asked, free)
    if taken // size > MAX_CHUNKS:
        what = (
            f"{format_size(taken)} in chunks of {format_size(size)} are {taken // size} chunks,"
            f" which take too long to free for a newcomer; at most {MAX_CHUNKS} are allowed"
        )
        raise ConfigError(what, f"Use --chunk {format_size(_least_chunk(taken)).replace(' ', '')}.")
    chunks: list[Tensor] = []
    # More memory may become free meanwhile.
    most = min(wanted, MAX_CHUNKS)
    while len(chunks) < most and (piece := device.new_chunk(size)) is not None:
        chunks.append(piece)
        if monitor is not None:
            monitor.check(ALLOCATION_SLACK_BYTES)
    if not chunks:
        message = (
            f"{format_size(free)} are free"
            f"{f' ({format_size(reserve)} are to be kept free)' if reserve else ''}"
            f" and {format_size(asked)} were requested; "
            f"not one chunk of {format_size(size)} is available"
        )
        raise torch.cuda.OutOfMemoryError(message)
    worked_on = len(chunks) * size
    rest = _take_rest(device, asked - worked_on) if len(chunks) == wanted else None
    if monitor is not None:
        monitor.check(ALLOCATION_SLACK_BYTES)
    return Filling(
        chunks=tuple(chunks),
        rest=rest[0] if rest is not None else None,
        worked_on=worked_on,
        held=worked_on + (rest[1] if rest is not None else 0),
        asked=asked,
        refused=len(chunks) < wanted,
    )


def _take_rest(device: Device, left: int) -> tuple[Tensor, int] | None:
    """Take what whole chunks leave of the target, and return it with its size, or None."""
    size = left - left % _ROUNDED_TO_BYTES
    piece = device.new_chunk(size) if size >= _LEAST_REST_BYTES else None
    return None if piece is None else (piece, size)


def _least_chunk(asked: int) -> int:
    """Return the smallest power of two that divides the memory into few enough chunks."""
    return 1 << (asked // MAX_CHUNKS).bit_length()


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
