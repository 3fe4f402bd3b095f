"""Verbs for allocations: parts of a GPU's memory that are granted to a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import quote, urlencode

from sentinel.client.requester import Requester
from sentinel.errors import ConfigError, NotRunningError, ServiceError
from sentinel.protocol.api_types import (
    Allocated,
    AllocationInfo,
    Allocations,
    MemoryBudget,
    Outcome,
)
from sentinel.units import parse_size

_PATH = "/v1/allocations"


class AllocationVerbs(Requester):
    """The verbs for allocations."""

    def allocate(
        self,
        id: str,  # noqa: A002 - the usual name
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
        pid: int | None = None,
    ) -> AllocationInfo:
        """Allocate GPU memory for this process and its children.

        Returns when the memory is free: the stressor makes room, and does not yield to these
        processes while the allocation exists. The allocation ends with this process at the latest;
        over TCP, where the process is not known, it exists until :meth:`deallocate`.

        Args:
            id: The allocation's name for :meth:`deallocate`; letters, digits and ``._:-``.
            size: Bytes, or text such as ``"40GiB"``.
            gpu: The GPU by index, UUID or its unique beginning, or PCI address.
            wait: Seconds until the memory must be free.
            pid: Another process of the same user, for which the memory is allocated instead.

        Raises:
            NoSuchGpuError: The GPU does not exist.
            ConflictError: The id is in use, or the budget is too small; names what is available.
            TimedOutError: The memory was not free in time; nothing is allocated.
            ConfigError: The size is invalid, or the process does not exist.
        """
        body = {"id": id, "gpu": str(gpu), "size": _size_bytes(size), "wait_s": wait}
        if pid is not None:
            body["pid"] = pid
        return self.fetch(Allocated, "POST", _PATH, body, wait=wait).allocation

    def deallocate(self, id: str) -> Outcome:  # noqa: A002 - the usual name
        """End an allocation.

        Raises:
            ServiceError: There is no allocation with this id.
        """
        return self.fetch(Outcome, "DELETE", f"{_PATH}/{quote(id, safe='')}")

    @contextlib.contextmanager
    def allocation(
        self,
        id: str,  # noqa: A002 - the usual name
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
    ) -> Iterator[AllocationInfo]:
        """Allocate memory for the duration of the ``with`` block; see :meth:`allocate`.

        Raises:
            SentinelError: As :meth:`allocate`; the block is not entered then.
        """
        allocated = self.allocate(id, size, gpu, wait=wait)
        try:
            yield allocated
        finally:
            # It may have ended and its id be in use again; and it ends with this process anyway.
            with contextlib.suppress(NotRunningError, ServiceError):
                if any(_is_same(one, allocated) for one in self.allocations()):
                    self.deallocate(id)

    def allocations(self) -> tuple[AllocationInfo, ...]:
        """List all allocations."""
        return self.fetch(Allocations, "GET", _PATH).allocations

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


def _is_same(one: AllocationInfo, other: AllocationInfo) -> bool:
    return (one.id, one.gpu, one.holder.pid) == (other.id, other.gpu, other.holder.pid)


def _size_bytes(size: object) -> int:
    """Validate and parse a size.

    Raises:
        ConfigError: It is not a whole number of bytes, and not text of a size.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        what = f"size: {size!r} is not a whole number of bytes"
        raise ConfigError(what, "Write it as 2 * 10**9, or as text such as '40GiB'.")
    if isinstance(size, int):
        return size
    try:
        return parse_size(size)
    except ValueError as error:
        raise ConfigError(f"size: {error}") from None
