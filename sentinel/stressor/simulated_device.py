"""A simulated GPU for a stressor: real tensors on the CPU, of a memory that is only counted."""

from __future__ import annotations

import math
import mmap
import re
import resource
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.host.simulation import Membership, Registry
from sentinel.stressor.device import QUANTUM_S, Fence
from sentinel.units import format_size

#: The work between two calls of pace(), which takes CPU time from other processes. Caches are cold
#: after every wait, so a quantum takes several times as long: 2 to 3 % of a core.
_SIMULATED_QUANTUM_S = 0.0001

#: The ratio of the simulated size of a chunk to that of its CPU tensor.
SCALE = 4096

#: The same of the borrowed memory of a rehearsal: a hundredth of the GPU has room for matrices.
BORROWED_SCALE = 64

#: The memory of a simulated context, about that of a real one.
_SIMULATED_CONTEXT_BYTES = 300 * 2**20

#: torch takes memory from the driver in segments of 2 MiB for tensors of up to 1 MiB, and of 20 MiB
#: for larger ones, and keeps them (kSmallSize, kSmallBuffer and kLargeBuffer of
#: c10/cuda/CUDACachingAllocator).
_SMALL_BYTES = 2**20
_SEGMENTS_BYTES = (2 * 2**20, 20 * 2**20)

#: How long a reading of the free memory counts for an operation, in seconds.
_FREE_VALID_S = 0.05
#: What an operation may take of the host beside its results: temporary memory, other threads.
_HOST_SLACK_BYTES = 2**28
#: The error of torch's allocator of host memory.
_REFUSED = re.compile(r"you tried to allocate (\d+) bytes")


@contextmanager
def _memory_limited(left: int) -> Iterator[None]:
    """Have the kernel refuse this process more memory than ``left`` bytes, and some, in the block.

    What does not fit would take memory of the host, and seconds, before it is refused.

    Raises:
        torch.cuda.OutOfMemoryError: An operation needed more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - for every operation
        used = int(file.read().split(maxsplit=1)[0]) * mmap.PAGESIZE
    limit = used + left + _HOST_SLACK_BYTES
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    except RuntimeError as error:
        asked = _REFUSED.search(str(error))
        if asked is None:
            raise
        message = f"a tensor of {format_size(int(asked[1]))} does not fit into the simulated memory"
        raise torch.cuda.OutOfMemoryError(message) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class TensorAccount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of this thread and the memory of their results, while it is entered.

    Args:
        allocate: Takes so many bytes of the GPU, or returns False.
        free: Returns the free bytes of the GPU.
        load: Called before each operation, which it may have to load.

    Attributes:
        operations: How many operations there were.
    """

    def __init__(
        self,
        allocate: Callable[[int], bool],
        free: Callable[[], int],
        load: Callable[[object], None] = lambda _: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self._suspended = False
        self._allocate = allocate
        self._free = free
        #: The free bytes of the GPU, and when they were read.
        self._free_bytes, self._free_at = 0, -math.inf
        self._load = load
        self._growth_forbidden = False
        #: Of the small and of the large tensors: what lives, and what was taken from the GPU.
        self._living = [0, 0]
        self._taken = [0, 0]
        #: Each storage, by its address.
        self._storages: dict[int, weakref.ref[Any]] = {}

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the results of this block out, whose memory is accounted for already."""
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer a question of torch: a yes has each stressor import its compiler, for a second."""
        return False

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
        if not self._suspended:
            self._load(func)
        with nullcontext() if self._suspended else _memory_limited(self._left()):
            found = func(*args, **(kwargs or {}))
        self.operations += not self._suspended
        for result in found if isinstance(found, tuple | list) else (found,):
            if isinstance(result, Tensor) and result.device.type == "cpu":
                self._account(result.untyped_storage())
        return found

    def _left(self) -> int:
        """Compute what the results of one operation can take of the GPU, in bytes."""
        left = sum(self._taken) - sum(self._living)
        if self._growth_forbidden:
            return left
        now = time.monotonic()
        if now - self._free_at > _FREE_VALID_S:
            self._free_bytes, self._free_at = self._free(), now
        return left + self._free_bytes

    def _account(self, storage: Any) -> None:
        """Account for a storage that has not been seen before."""
        if storage._cdata in self._storages:  # noqa: SLF001 - its address has no other name
            return
        if self._suspended:
            self._remember(storage, None)
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
        self._account = TensorAccount(self._allocate, self.free_bytes, self._load)
        self._operations = 0
        self._follows = False
        self._module_load_s = registry.timing(uuid).module_load_s
        self._loaded: set[object] = set()
        if not self._allocate(_SIMULATED_CONTEXT_BYTES):
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
        if self._growth_forbidden or not self._allocate(size):
            return None
        return self._memory(size // SCALE)

    def _memory(self, size: int) -> Tensor:
        with self._account.suspended():
            return torch.empty(size, dtype=torch.uint8)

    def plan_chunk(self, size: int) -> Tensor:
        """Return a tensor for ``size`` bytes without memory."""
        with self._account.suspended():
            return torch.empty(size // SCALE, dtype=torch.uint8, device="meta")

    @contextmanager
    def borrow(self, size: int) -> Iterator[Tensor]:
        """Take ``size`` bytes of simulated memory for a while."""
        if not self._allocate(size):
            message = f"{format_size(size)} do not fit into the simulated memory"
            raise torch.cuda.OutOfMemoryError(message)
        try:
            yield self._memory(size // BORROWED_SCALE)
        finally:
            self.membership.free(size)

    def begin(self) -> None:
        """Do nothing: the CPU does the work while it is queued."""

    def fence(self) -> Fence:
        """Compute when the simulated quantum ends: after the one queued before.

        It counts as work if the workload has queued anything.
        """
        self._busy_until = max(self._busy_until, time.monotonic()) + QUANTUM_S
        if not self._follows or self._account.operations > self._operations:
            self._operations = self._account.operations
            self._busy += QUANTUM_S
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

    def follow(self) -> None:
        """Account for the tensors of this thread; a quantum with no operation is idle from now."""
        self.membership.count_work(0.0, 0.0)
        if not self._follows:
            self._follows = True
            self._account.__enter__()  # type: ignore[no-untyped-call]
        self._operations = self._account.operations

    def forbid_growth(self) -> None:
        """Refuse further chunks, and tensors that need more memory than was taken."""
        self._growth_forbidden = True
        self._account.forbid_growth()

    def _allocate(self, size: int) -> bool:
        """Take simulated memory by a call of the driver."""
        with self.membership.driver_call():
            return self.membership.allocate(size)

    def _load(self, operation: object) -> None:
        """Load the module of an operation before its first use, by a call of the driver."""
        if operation not in self._loaded:
            with self.membership.driver_call():
                time.sleep(self._module_load_s)
            self._loaded.add(operation)
