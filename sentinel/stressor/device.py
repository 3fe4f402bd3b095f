"""The operations of a device that a stressor needs, for a real and for a simulated GPU.

It imports torch, so only the stressor may import it, once its lease is running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sentinel.errors import DriverUnavailableError
from sentinel.host.gpus.simulation import Membership, Registry
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import StressorSpec
from sentinel.units import format_size

if TYPE_CHECKING:  # the CUDA device needs none of it
    from sentinel.stressor.memory import TensorAccount

#: The work that a workload queues between two calls of pace(). At most two such quanta are in
#: flight, and an ordinary stop waits for them.
_QUANTUM_S = 0.02

#: The same on a simulated GPU, where work takes CPU time from other processes. Caches are cold
#: after every wait, so a quantum takes several times as long: 2 to 3 % of a core.
_SIMULATED_QUANTUM_S = 0.0001

#: The ratio of the simulated size of a chunk to that of its CPU tensor.
SCALE = 4096

#: Events that exist at a time: the first and the last one of two quanta in flight, those of the
#: quantum being queued, and a spare one.
_EVENTS = 7

#: The memory of a simulated context, about that of a real one.
_SIMULATED_CONTEXT_BYTES = 300 * 2**20

#: A point in a device's queue of work, returned by ``fence`` and consumed by one ``wait``.
Fence = Any

#: torch declares no types for these.
_Event: Any = torch.cuda.Event
_initialise: Any = torch.cuda.init


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

    def follow(self, taken: Iterable[Tensor]) -> None:
        """Account from now on for what this thread does, beside these tensors."""

    def forbid_growth(self) -> None:
        """Refuse every further allocation of device memory."""


def open_device(spec: StressorSpec) -> Device:
    """Create a context on the GPU of ``spec``, or attach to it if it is simulated.

    Raises:
        DriverUnavailableError: torch cannot use the GPU, and a retry cannot help.
        torch.cuda.OutOfMemoryError: There is no room for a context.
    """
    if spec.simulation is None:
        return CudaDevice(spec.gpu)
    return SimulatedDevice(Registry(Path(spec.simulation)), spec.gpu.uuid)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether ``error`` means that the device is out of memory.

    A context or a library handle that does not fit is reported as a plain RuntimeError.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return ("CUDA" in text and "out of memory" in text) or "_ALLOC_FAILED" in text


class CudaDevice:
    """The one GPU that CUDA_VISIBLE_DEVICES leaves visible.

    Args:
        gpu: The GPU that it must be.
    """

    def __init__(self, gpu: Gpu) -> None:
        _check_cuda(gpu)
        self.torch_device = torch.device("cuda:0")
        self.quantum = _QUANTUM_S
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
        start = _Event(enable_timing=True)
        end = _Event(enable_timing=True, blocking=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000

    def follow(self, taken: Iterable[Tensor]) -> None:
        """Do nothing: torch and the driver account for everything."""

    def forbid_growth(self) -> None:
        """Limit torch to what it holds: cached memory is reused, a new segment is refused.

        torch compares with the fraction of the total only before it requests a segment, of 2 MiB
        or more, from the driver. Rounding by some bytes makes no difference.
        """
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        reserved = torch.cuda.memory_reserved(self.torch_device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, reserved / total), self.torch_device)


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
        count = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        what = f"torch {torch.__version__} cannot use CUDA {torch.version.cuda}: {error}"
        remedy = "Install a driver that is new enough for it, or a torch built for this driver."
        raise DriverUnavailableError(what, remedy) from error
    if not torch.cuda.is_available() or count != 1:
        what = f"torch sees {count} GPUs where it should see {gpu.uuid} alone"
        remedy = "Check that no plugin changes CUDA_VISIBLE_DEVICES and that MIG is off."
        raise DriverUnavailableError(what, remedy)
    seen = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if seen.lower() != gpu.uuid.lower():
        what = f"torch sees {seen} where it should see {gpu.uuid}"
        raise DriverUnavailableError(what, "Check that no plugin changes CUDA_VISIBLE_DEVICES.")


class SimulatedDevice:
    """A simulated GPU: real tensors on the CPU, ``SCALE`` times smaller than they claim to be.

    Args:
        registry: The simulated GPUs.
        uuid: The GPU to attach to.
    """

    def __init__(self, registry: Registry, uuid: str) -> None:
        self.torch_device = torch.device("cpu")
        self.quantum = _SIMULATED_QUANTUM_S
        self.membership: Membership = registry.attach(uuid)
        self._registry = registry
        self._uuid = uuid
        self._growth_forbidden = False
        self._busy_until = self._busy = 0.0
        self._account: TensorAccount | None = None
        self._operations = 0
        if not self.membership.allocate(_SIMULATED_CONTEXT_BYTES):
            free = format_size(self.free_bytes())
            message = f"a context takes {format_size(_SIMULATED_CONTEXT_BYTES)}, {free} are free"
            raise torch.cuda.OutOfMemoryError(message)

    def free_bytes(self) -> int:
        """Return the simulated free memory."""
        return self._registry.memory(self._uuid).free

    def total_bytes(self) -> int:
        """Return the simulated total memory."""
        return self._registry.memory(self._uuid).total

    def reserved_bytes(self) -> int:
        """Return the simulated memory that this process holds."""
        return self.membership.held

    def new_chunk(self, size: int) -> Tensor | None:
        """Take ``size`` bytes of simulated memory, and return a small tensor for them."""
        if self._growth_forbidden or not self.membership.allocate(size):
            return None
        return torch.empty(size // SCALE, dtype=torch.uint8)

    def begin(self) -> None:
        """Do nothing: the CPU does the work while it is queued."""

    def fence(self) -> Fence:
        """Compute when the simulated quantum ends: after the one queued before.

        It counts as work if the workload has queued anything.
        """
        self._busy_until = max(self._busy_until, time.monotonic()) + _QUANTUM_S
        if self._account is None or self._account.operations > self._operations:
            self._operations = self._account.operations if self._account is not None else 0
            self._busy += _QUANTUM_S
            self.membership.count_work(self._busy, self._busy_until)
        return self._busy_until

    def wait(self, fence: Fence) -> float:
        """Sleep until then, which leaves the CPU to other processes."""
        time.sleep(max(0.0, fence - time.monotonic()))
        return 0.0

    def drain(self) -> None:
        """Do nothing: the CPU has done all queued work."""

    def measure_s(self, work: Callable[[], object]) -> float:
        """Return the CPU time of ``work``, which other processes do not affect."""
        start = time.thread_time()
        work()
        return time.thread_time() - start

    def follow(self, taken: Iterable[Tensor]) -> None:
        """Account for the tensors of this thread, and count a quantum with no operation as idle."""
        from sentinel.stressor.memory import TensorAccount

        self.membership.count_work(0.0, 0.0)
        self._account = TensorAccount(self.membership.allocate, taken)
        self._account.__enter__()  # type: ignore[no-untyped-call]

    def forbid_growth(self) -> None:
        """Refuse further chunks, and tensors that need more memory than was taken."""
        self._growth_forbidden = True
        if self._account is not None:
            self._account.forbid_growth()
