"""Verbs for allocations: parts of a GPU's memory that are granted to a process."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from sentinel.client.requester import Requester
from sentinel.errors import ConfigError, ServiceError
from sentinel.protocol.api_types import AllocationInfo, Allocations, MemoryBudget, Outcome
from sentinel.units import parse_size

_PATH = "/v1/allocations"


class AllocationVerbs(Requester):
    """The verbs for allocations."""

    def allocate(
        self,
        id: str,  # noqa: A002 - the usual name
        size: str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
        pid: int | None = None,
    ) -> AllocationInfo:
        """Allocate GPU memory for this process and its children.

        Returns when the memory is free: the stressor makes room, and does not yield to these
        processes while the allocation exists. The allocation ends with this process at the latest;
        over TCP, where the process is not known, it exists until :meth:`deallocate`. The result is
        a context manager, whose block it ends with.

        Args:
            id: The allocation's name for :meth:`deallocate`; letters, digits and ``._:-``.
            size: The size with its unit, such as ``"40GiB"``, or ``f"{count}B"`` for bytes.
            gpu: The GPU by index, UUID or its unique beginning, or PCI address.
            wait: Seconds until the memory must be free.
            pid: Another process of the same user, for which the memory is allocated instead.

        Raises:
            NoSuchGpuError: The GPU does not exist.
            ConflictError: The id is in use, or the budget is too small; names what is available.
            TimedOutError: The memory was not free in time; nothing is allocated.
            ConfigError: The size is invalid or has no unit, or the process does not exist.
        """
        body: dict[str, object] = {"gpu": str(gpu), "size": _size_bytes(size)}
        if pid is not None:
            body["pid"] = pid
        made = self.put(AllocationInfo, f"{_PATH}/{quote(id, safe='')}", body, wait=wait)
        return made.ended_by(lambda: self._end_same(made))

    def deallocate(self, id: str) -> Outcome:  # noqa: A002 - the usual name
        """End an allocation.

        Raises:
            ServiceError: There is no allocation with this id.
        """
        return self.fetch(Outcome, "DELETE", f"{_PATH}/{quote(id, safe='')}")

    def allocation(
        self,
        id: str,  # noqa: A002 - the usual name
        size: str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
    ) -> AllocationInfo:
        """Allocate memory for the duration of a ``with`` block; see :meth:`allocate`.

        Raises:
            SentinelError: As :meth:`allocate`.
        """
        return self.allocate(id, size, gpu, wait=wait)

    def allocations(self) -> tuple[AllocationInfo, ...]:
        """List all allocations."""
        return self.fetch(Allocations, "GET", _PATH).allocations

    def _end_same(self, made: AllocationInfo) -> Outcome:
        """End an allocation, unless it has ended and another process uses its id.

        Raises:
            ServiceError: It has ended already.
        """
        known = {(one.id, one.gpu, one.holder.pid) for one in self.allocations()}
        if (made.id, made.gpu, made.holder.pid) not in known:
            error = ServiceError(f"the allocation {made.id!r} has ended already")
            error.code = "not_found"
            raise error
        return self.deallocate(made.id)

    def budget(self, gpu: str | int = 0) -> MemoryBudget:
        """Read how much memory of a GPU allocations may use, use, and may still use.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        found = self.fetch(Allocations, "GET", f"{_PATH}?{urlencode({'gpu': gpu})}").gpus
        if len(found) != 1:
            raise ServiceError(f"the daemon answers with {len(found)} GPUs instead of one")
        return found[0]

    def available(self, gpu: str | int = 0) -> int:
        """Read how many bytes of a GPU can still be allocated.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return self.budget(gpu).available


def _size_bytes(size: object) -> int:
    """Parse a size.

    Raises:
        ConfigError: It is a number, which may be MB or bytes, or not text of a size.
    """
    if isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
        what = f"size: {size!r} has no unit"
        raise ConfigError(what, f"Write '{size}MiB' for MB, or '{size}B' for bytes.")
    if not isinstance(size, str):
        raise ConfigError(f"size: {size!r} is not a size", "Write it as text such as '40GiB'.")
    try:
        return parse_size(size)
    except ValueError as error:
        raise ConfigError(f"size: {error}") from None
