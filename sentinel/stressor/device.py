"""What a stressor needs of its device, on a real GPU and on a pretended one.

Imports torch, so only the child may import it, once its leash is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sentinel.errors import DriverUnavailableError
from sentinel.host.simulation import Membership, Registry
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import StressorSpec
from sentinel.units import format_size

#: How much work a workload queues between two calls of pace(), in seconds. At most two such quanta
#: are in flight, and an ordinary stop waits for them.
_QUANTUM = 0.02

#: The same on a pretended GPU, where the work is real work of a CPU that others need. Its caches
#: are cold after every wait, so a quantum takes several times as long: 2 to 3 % of a core.
_SIMULATED_QUANTUM = 0.0001

#: How many times larger a pretended chunk is than the CPU tensor that stands for it.
SCALE = 4096

#: How many events exist at a time: the first and the last of each of two quanta in flight, those of
#: the quantum that is being queued, and one to spare.
_EVENTS = 7

#: What the context of a pretended GPU takes, about as much as a real one.
_SIMULATED_CONTEXT = 300 * 2**20

#: A point in the work of a device, made by its ``fence`` and used up by one ``wait``.
Fence = Any

#: torch declares no types for these.
_Event: Any = torch.cuda.Event
_initialise: Any = torch.cuda.init


class Device(Protocol):
    """The device that a workload runs on.

    ``torch_device`` is where its tensors live, ``quantum`` how many seconds of work to queue
    between two fences.
    """

    torch_device: torch.device
    quantum: float

    def free_memory(self) -> int:
        """Return how many bytes nobody holds."""
        ...

    def total_memory(self) -> int:
        """Return how many bytes there are, whoever holds them."""
        ...

    def taken_memory(self) -> int:
        """Return how many bytes this process holds, its context and the libraries left out."""
        ...

    def new_chunk(self, size: int) -> Tensor | None:
        """Return ``size`` bytes of memory with whatever is in them, or None where refused."""
        ...

    def begin(self) -> None:
        """Note that what is queued from now on is another quantum."""
        ...

    def fence(self) -> Fence:
        """Return the end of the work queued so far."""
        ...

    def wait(self, fence: Fence) -> float:
        """Block, without spinning, until the work before ``fence`` is done.

        Returns:
            How many seconds the device took for it, from its ``begin`` on; 0.0 where only the host
            can say.
        """
        ...

    def drain(self) -> None:
        """Block, without spinning, until nothing is queued."""
        ...

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long the device takes for what ``work`` queues."""
        ...

    def cap(self) -> None:
        """Refuse every growth of memory from now on."""
        ...


def open_device(spec: StressorSpec) -> Device:
    """Create a context on the GPU of ``spec``, or join it where it is pretended.

    Raises:
        DriverUnavailableError: torch cannot use the GPU and a retry will not mend that.
        torch.cuda.OutOfMemoryError: Not even a context fits.
    """
    if spec.simulation is None:
        return CudaDevice(spec.gpu)
    return SimulatedDevice(Registry(Path(spec.simulation)), spec.gpu.uuid)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that the device has no memory left.

    A context or a library handle for which there is no room is reported as a plain RuntimeError.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return ("CUDA" in text and "out of memory" in text) or "_ALLOC_FAILED" in text


class CudaDevice:
    """The one GPU that CUDA_VISIBLE_DEVICES left visible.

    Args:
        gpu: The GPU that it must be.
    """

    def __init__(self, gpu: Gpu) -> None:
        _check_cuda(gpu)
        self.torch_device = torch.device("cuda:0")
        self.quantum = _QUANTUM
        torch.cuda.set_device(self.torch_device)
        torch.cuda.mem_get_info(self.torch_device)  # the first call that needs a context
        self._begun: Any = None
        self._spare: list[Any] = [_new_event() for _ in range(_EVENTS)]
        for event in self._spare:
            event.record()  # only this creates it

    def free_memory(self) -> int:
        """Return how many bytes the driver would still give to anybody."""
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def total_memory(self) -> int:
        """Return how many bytes the driver gives out in all."""
        return torch.cuda.mem_get_info(self.torch_device)[1]

    def taken_memory(self) -> int:
        """Return how many bytes torch's allocator has of the driver."""
        return torch.cuda.memory_reserved(self.torch_device)

    def new_chunk(self, size: int) -> Tensor | None:
        """Return ``size`` bytes, or None where the driver has no such piece."""
        try:
            return torch.empty(size, dtype=torch.uint8, device=self.torch_device)
        except torch.cuda.OutOfMemoryError:
            return None

    def begin(self) -> None:
        """Record an event before the work that is queued from now on."""
        if self._begun is not None:
            self._spare.append(self._begun)
        self._begun = self._record()

    def fence(self) -> Fence:
        """Record an event behind the work queued so far; return it with the one before that."""
        begun, self._begun = self._begun, None
        return begun, self._record()

    def wait(self, fence: Fence) -> float:
        """Sleep until the last event happened; return how long after the first that was."""
        begun, ended = fence
        ended.synchronize()
        self._spare.append(ended)
        if begun is None:
            return 0.0
        self._spare.append(begun)
        milliseconds: float = begun.elapsed_time(ended)
        return milliseconds / 1000

    def _record(self) -> Any:
        """Record an event here in the queue.

        Events are used again, so that none is created while a workload runs.
        """
        event = self._spare.pop() if self._spare else _new_event()
        event.record()
        return event

    def drain(self) -> None:
        """Sleep until an event behind everything happened."""
        self.wait(self.fence())

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long ``work`` took on the GPU, between two of its own time stamps."""
        start = _Event(enable_timing=True)
        end = _Event(enable_timing=True, blocking=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000

    def cap(self) -> None:
        """Hold torch to what it has: what it cached is used again, a new segment is refused.

        torch compares with the fraction of the total only before it asks the driver for a segment,
        2 MiB at least, so a rounding by some bytes neither takes away nor gives anything.
        """
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        reserved = torch.cuda.memory_reserved(self.torch_device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, reserved / total), self.torch_device)


def _new_event() -> Any:
    """Return an event whose waiter sleeps: spinning takes a whole core, this 2 to 3 % of one."""
    return _Event(blocking=True, enable_timing=True)


def _check_cuda(gpu: Gpu) -> None:
    """Make sure that torch can use CUDA and sees exactly ``gpu``."""
    if torch.version.cuda is None:
        what = f"this torch ({torch.__version__}) was built without CUDA"
        remedy = "Install a CUDA build: https://pytorch.org/get-started/locally"
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
        remedy = "See that no plugin changes CUDA_VISIBLE_DEVICES and that the GPU is not in MIG."
        raise DriverUnavailableError(what, remedy)
    seen = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if seen.lower() != gpu.uuid.lower():
        what = f"torch sees {seen} where it should see {gpu.uuid}"
        raise DriverUnavailableError(what, "See that no plugin changes CUDA_VISIBLE_DEVICES.")


class SimulatedDevice:
    """A pretended GPU: real tensors on the CPU, ``SCALE`` times smaller than what they stand for.

    Args:
        registry: The pretended GPUs.
        uuid: Which of them to join.
    """

    def __init__(self, registry: Registry, uuid: str) -> None:
        self.torch_device = torch.device("cpu")
        self.quantum = _SIMULATED_QUANTUM
        self.membership: Membership = registry.attach(uuid)
        self._registry = registry
        self._uuid = uuid
        self._capped = False
        self._busy_until = self._busy = 0.0
        if not self.membership.allocate(_SIMULATED_CONTEXT):
            free = format_size(self.free_memory())
            message = f"a context takes {format_size(_SIMULATED_CONTEXT)}, {free} are free"
            raise torch.cuda.OutOfMemoryError(message)

    def free_memory(self) -> int:
        """Return the pretended bytes that nobody holds."""
        return self._registry.memory(self._uuid).free

    def total_memory(self) -> int:
        """Return the pretended bytes that there are."""
        return self._registry.memory(self._uuid).total

    def taken_memory(self) -> int:
        """Return the pretended bytes that this process holds."""
        return self.membership.held

    def new_chunk(self, size: int) -> Tensor | None:
        """Take ``size`` pretended bytes and return a small tensor for them."""
        if self._capped or not self.membership.allocate(size):
            return None
        return torch.empty(size // SCALE, dtype=torch.uint8)

    def begin(self) -> None:
        """Do nothing: the host does the work while it queues it."""

    def fence(self) -> Fence:
        """Return when the pretended work would be done: a quantum after what was queued before."""
        self._busy_until = max(self._busy_until, time.monotonic()) + _QUANTUM
        self._busy += _QUANTUM
        self.membership.count_work(self._busy, self._busy_until)
        return self._busy_until

    def wait(self, fence: Fence) -> float:
        """Sleep until then, which is what leaves the CPU to others."""
        time.sleep(max(0.0, fence - time.monotonic()))
        return 0.0

    def drain(self) -> None:
        """Do nothing: the CPU has done what was queued, and pretends to work in quanta only."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the time of the CPU that ``work`` took, whatever else the host was doing."""
        start = time.thread_time()
        work()
        return time.thread_time() - start

    def cap(self) -> None:
        """Give no more chunks."""
        self._capped = True
