"""Open a GPU and take its memory: equal chunks and a rest, until the target is reached.

On parts with unified memory a single allocation of hundreds of gigabytes can exceed the driver's
30 s limit for scrubbing, so memory is taken in chunks. A chunk is the size of one GEMM result.

It imports torch, so only the stressor may import it, once its lease is running.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sentinel.errors import ConfigError, DriverUnavailableError
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MIN_LARGE_BYTES, ROUND_LARGE_BYTES, MemoryTarget
from sentinel.stressor.cuda_driver import DriverMemory, count_devices
from sentinel.stressor.loader import is_out_of_memory
from sentinel.stressor.start_watch import StartWatch
from sentinel.units import format_size

#: The work that a workload queues between two calls of pace(). At most two such quanta are in
#: flight, and an ordinary stop waits for them.
QUANTUM_S = 0.02

#: Events that exist at a time: the first and the last one of two quanta in flight, those of the
#: quantum being queued, and a spare one.
_EVENTS = 7

#: A point in a device's queue of work, returned by ``fence`` and consumed by one ``wait``.
Fence = Any

#: torch declares no types for these.
_Event: Any = torch.cuda.Event
_initialise: Any = torch.cuda.init

#: More than torch and cuBLAS allocate when kernels run for the first time, which a reserve must not
#: pay for. On an H200 with torch 2.11 that was 192 MiB for `gemm` of any dtype and `pulse`, 94 MiB
#: for `memtest`, 92 MiB for `elementwise` and nothing for `hold`.
_LIBRARY_BYTES = 256 * 2**20

#: The most chunks. On an H200 the teardown of 62,976 chunks of 2 MiB took 2.2 s, and no newcomer
#: got its memory; with 246 of 512 MiB every one did. The bound is computed from the 35 microseconds
#: of each chunk, 36 ms in all, and not measured.
MAX_CHUNKS = 1024


class Device(Protocol):
    """The device that a workload runs on."""

    #: The device of its tensors.
    torch_device: torch.device
    #: Seconds of work to queue between two fences.
    quantum: float

    def free_bytes(self) -> int:
        """Return the free memory of the device."""

    def total_bytes(self) -> int:
        """Return the total memory of the device."""

    def reserved_bytes(self) -> int:
        """Return the memory that this process holds, without its context and libraries."""

    def new_chunk(self, size: int) -> Tensor | None:
        """Allocate ``size`` bytes with undefined content; return None if that is refused."""

    def plan_chunk(self, size: int) -> Tensor:
        """Return a tensor like that of :meth:`new_chunk` without memory, to plan with."""

    def borrow(self, size: int) -> AbstractContextManager[Tensor]:
        """Take ``size`` bytes for a while; afterwards the driver has them back.

        Raises:
            torch.cuda.OutOfMemoryError: They are not free.
        """

    def begin(self) -> None:
        """Mark the beginning of a quantum."""

    def fence(self) -> Fence:
        """Return the end of the work queued so far."""

    def wait(self, fence: Fence) -> float:
        """Block, without spinning, until the work before ``fence`` is done.

        Returns:
            The seconds that the device took for it since ``begin``, or 0.0 if it cannot measure.
        """

    def drain(self) -> None:
        """Block, without spinning, until no work is queued."""

    def measure_s(self, work: Callable[[], object]) -> float:
        """Compute how long the device takes for what ``work`` queues."""

    def follow(self) -> None:
        """Account from now on for what this thread does."""

    def forbid_growth(self) -> None:
        """Refuse every further allocation of device memory."""


class CudaDevice:
    """The one GPU that CUDA_VISIBLE_DEVICES leaves visible.

    Args:
        gpu: The GPU that it must be.
    """

    def __init__(self, gpu: Gpu) -> None:
        ask_for_few_queues()
        _check_cuda(gpu)
        self.torch_device = torch.device("cuda:0")
        self.quantum = QUANTUM_S
        torch.cuda.set_device(self.torch_device)
        torch.cuda.mem_get_info(self.torch_device)  # the first call that needs a context
        self._begin_event: Any = None
        self._free_events: list[Any] = [_new_event() for _ in range(_EVENTS)]
        for event in self._free_events:
            event.record()  # this creates it

    def free_bytes(self) -> int:
        """Return the memory that the driver has left for all processes."""
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def total_bytes(self) -> int:
        """Return the memory that the driver hands out in all."""
        return torch.cuda.mem_get_info(self.torch_device)[1]

    def reserved_bytes(self) -> int:
        """Return the memory that torch's allocator holds."""
        return torch.cuda.memory_reserved(self.torch_device)

    def new_chunk(self, size: int) -> Tensor | None:
        """Allocate ``size`` bytes; return None if the driver has no such piece."""
        try:
            return torch.empty(size, dtype=torch.uint8, device=self.torch_device)
        except torch.cuda.OutOfMemoryError:
            return None

    def plan_chunk(self, size: int) -> Tensor:
        """Return a tensor of ``size`` bytes without memory."""
        return torch.empty(size, dtype=torch.uint8, device="meta")

    @contextmanager
    def borrow(self, size: int) -> Iterator[Tensor]:
        """Take ``size`` bytes past torch, whose cache would keep them."""
        memory = DriverMemory(size)
        try:
            yield torch.as_tensor(memory, device=self.torch_device)
        finally:
            torch.cuda.synchronize(self.torch_device)
            memory.free()

    def begin(self) -> None:
        """Record an event before the work that is queued next."""
        if self._begin_event is not None:
            self._free_events.append(self._begin_event)
        self._begin_event = self._record()

    def fence(self) -> Fence:
        """Record an event after the queued work; return it with the event before the work."""
        begin, self._begin_event = self._begin_event, None
        return begin, self._record()

    def wait(self, fence: Fence) -> float:
        """Sleep until the last event occurred; return its distance from the first one."""
        begin, end = fence
        end.synchronize()
        self._free_events.append(end)
        if begin is None:
            return 0.0
        self._free_events.append(begin)
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000

    def _record(self) -> Any:
        """Record an event in the queue.

        Events are reused, so that none is created while a workload runs.
        """
        event = self._free_events.pop() if self._free_events else _new_event()
        event.record()
        return event

    def drain(self) -> None:
        """Sleep until an event after all queued work occurred."""
        self.wait(self.fence())

    def measure_s(self, work: Callable[[], object]) -> float:
        """Compute how long ``work`` took on the GPU, between two of its time stamps."""
        start = self._record()
        work()
        return self.wait((start, self._record()))

    def follow(self) -> None:
        """Do nothing: torch and the driver account for everything."""

    def forbid_growth(self) -> None:
        """Limit torch to what it holds: cached memory is reused, a new segment is refused.

        torch compares with the fraction of the total only before it requests a segment, of 2 MiB
        or more, from the driver. Rounding by some bytes makes no difference.
        """
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        reserved = torch.cuda.memory_reserved(self.torch_device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, reserved / total), self.torch_device)


def ask_for_few_queues() -> None:
    """Have the driver create one queue of each kind, unless the user chose a number.

    The driver releases them one by one before the memory of a killed process: with its usual eight
    of each, an H200's memory was free 142 ms after SIGKILL in the median and 292 at worst, with one
    98 and 117. What several queues are for, kernels of several streams at once, stays possible
    where the user sets these variables.
    """
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"):
        os.environ.setdefault(name, "1")


def _new_event() -> Any:
    """Return an event whose waiter sleeps: spinning takes a whole core, this 2 to 3 % of one."""
    return _Event(blocking=True, enable_timing=True)


def _check_cuda(gpu: Gpu) -> None:
    """Check that torch can use CUDA and sees exactly ``gpu``."""
    if torch.version.cuda is None:
        what = f"this torch ({torch.__version__}) was built without CUDA"
        remedy = "sentinel doctor has the command that installs a CUDA build."
        raise DriverUnavailableError(what, remedy)
    try:
        _initialise()
        count = count_devices()  # torch would ask NVML, which takes 0.15 s and more
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        what = f"torch {torch.__version__} cannot use CUDA {torch.version.cuda}: {error}"
        remedy = "Install a driver that is new enough for it, or a torch built for this driver."
        raise DriverUnavailableError(what, remedy) from error
    if count != 1:
        what = f"torch sees {count} GPUs where it should see {gpu.uuid} alone"
        remedy = "Check that no plugin changes CUDA_VISIBLE_DEVICES and that MIG is off."
        raise DriverUnavailableError(what, remedy)
    seen = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if seen.lower() != gpu.uuid.lower():
        what = f"torch sees {seen} where it should see {gpu.uuid}"
        raise DriverUnavailableError(what, "Check that no plugin changes CUDA_VISIBLE_DEVICES.")


# --- memory ---------------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class FillPlan:
    """What a stressor is to take, in bytes."""

    #: Of the target.
    asked: int
    #: Of one chunk, and how many of them.
    chunk: int
    chunks: int


def plan(free: int, target: MemoryTarget, chunk: int, reserve: int = 0) -> FillPlan:
    """Plan chunks of ``chunk`` bytes up to ``target``, a size or a share of the free memory.

    A target below one chunk is one chunk of that size. At least ``reserve`` bytes of the free
    memory are left.

    Args:
        free: The free memory beside the context, in bytes.
        target: The target.
        chunk: Bytes of a chunk.
        reserve: Bytes to leave free.

    Raises:
        ConfigError: There would be more chunks than a newcomer could wait for.
        torch.cuda.OutOfMemoryError: There is no room for one chunk.
    """
    asked = int(free * target.share) if target.share is not None else target.size or 0
    if reserve:
        asked = max(0, min(asked, free - reserve - _LIBRARY_BYTES))
    size = chunk if target.size is None else min(chunk, target.size)
    taken = min(asked, free)
    if taken // size > MAX_CHUNKS:
        what = (
            f"{format_size(taken)} in chunks of {format_size(size)} are {taken // size} chunks,"
            f" which take too long to free for a newcomer; at most {MAX_CHUNKS} are allowed"
        )
        raise ConfigError(what, f"Use --chunk {format_size(_least_chunk(taken)).replace(' ', '')}.")
    # More memory may become free meanwhile.
    found = FillPlan(asked=asked, chunk=size, chunks=min(asked // size, MAX_CHUNKS))
    if not found.chunks:
        raise torch.cuda.OutOfMemoryError(_no_chunk(found, free, reserve))
    return found


def fill(device: Device, planned: FillPlan, watch: StartWatch | None = None) -> Filling:
    """Take the chunks of a plan, and what they leave of the target as a rest.

    So the sum is exact to 2 MiB; less than 10 MiB is not taken. The content is undefined.

    Raises:
        torch.cuda.OutOfMemoryError: Not one chunk fits.
        MemoryContentionError: Another process took memory meanwhile.
    """
    size = planned.chunk
    chunks: list[Tensor] = []
    while len(chunks) < planned.chunks and (piece := _take(device, size, watch)) is not None:
        chunks.append(piece)
    if not chunks:
        raise torch.cuda.OutOfMemoryError(_no_chunk(planned, device.free_bytes(), 0))
    worked_on = len(chunks) * size
    whole = len(chunks) == planned.asked // size
    rest = _take_rest(device, planned.asked - worked_on, watch) if whole else None
    return Filling(
        chunks=tuple(chunks),
        rest=rest[0] if rest is not None else None,
        worked_on=worked_on,
        held=worked_on + (rest[1] if rest is not None else 0),
        asked=planned.asked,
        refused=not whole,
    )


def _take(device: Device, size: int, watch: StartWatch | None) -> Tensor | None:
    """Take one piece of memory; a newcomer's first MiB beside it is seen."""
    with nullcontext() if watch is None else watch.taking(size):
        return device.new_chunk(size)


def _no_chunk(planned: FillPlan, free: int, reserve: int) -> str:
    return (
        f"{format_size(free)} are free"
        f"{f' ({format_size(reserve)} are to be kept free)' if reserve else ''}"
        f" and {format_size(planned.asked)} were requested; "
        f"not one chunk of {format_size(planned.chunk)} is available"
    )


def _take_rest(device: Device, left: int, watch: StartWatch | None) -> tuple[Tensor, int] | None:
    """Take what whole chunks leave of the target, and return it with its size, or None."""
    size = left - left % ROUND_LARGE_BYTES
    piece = _take(device, size, watch) if size >= MIN_LARGE_BYTES else None
    return None if piece is None else (piece, size)


def _least_chunk(asked: int) -> int:
    """Return the smallest power of two that divides the memory into few enough chunks."""
    return 1 << (asked // MAX_CHUNKS).bit_length()
