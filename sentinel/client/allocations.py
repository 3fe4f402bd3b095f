"""The client's verbs for parts of a GPU's memory: had when they are free, given back, listed."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from sentinel.client.types import AllocationInfo, MemoryBudget, Outcome, read, read_list
from sentinel.errors import ConfigError, NotRunningError, ServiceError
from sentinel.units import parse_size

_PATH = "/v1/allocations"


class Allocating(ABC):
    """What a client can do about memory; one that can make requests can do it."""

    @abstractmethod
    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Return the JSON object that the daemon answers to any request."""

    def allocate(
        self,
        id: str,  # noqa: A002 - as it is called everywhere
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
        pid: int | None = None,
    ) -> AllocationInfo:
        """Have a part of a GPU's memory kept for this process and its children.

        Returns once it really is free: sentinel's own stressor makes room, and does not yield to
        these processes as long as the allocation lasts. It ends with this process at the latest;
        over TCP, where there is no process, it lasts until :meth:`deallocate`.

        Args:
            id: By what name it is given back; letters, digits and ``._:-``.
            size: Bytes, or text such as ``"40GiB"``.
            gpu: Which; by index, UUID or its unique beginning, or PCI address.
            wait: Seconds that it may take until it is free.
            pid: For this process of the same user instead, and its children.

        Raises:
            NoSuchGpuError: It is not there.
            ConflictError: The name is taken, or it is more than is left; says what is available.
            TimedOutError: It was not free in time; nothing is kept.
            ConfigError: The size is none, or there is no such process.
        """
        body = {"id": id, "gpu": str(gpu), "size": _bytes(size), "wait_s": wait}
        given = body if pid is None else {**body, "pid": pid}
        answer = self.request("POST", _PATH, given, wait=wait)
        return read(AllocationInfo, answer.get("allocation"), "allocation")

    def deallocate(self, id: str) -> Outcome:  # noqa: A002 - as it is called everywhere
        """Give memory back.

        Raises:
            ServiceError: None was allocated by this name.
        """
        return read(Outcome, self.request("DELETE", f"{_PATH}/{quote(id, safe='')}"), "answer")

    @contextlib.contextmanager
    def allocation(
        self,
        id: str,  # noqa: A002 - as it is called everywhere
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
    ) -> Iterator[AllocationInfo]:
        """Have memory as :meth:`allocate` does while the ``with`` block lasts.

        Raises:
            SentinelError: As :meth:`allocate`; the block is not entered then.
        """
        got = self.allocate(id, size, gpu, wait=wait)
        try:
            yield got
        finally:
            # It may be over already, and its name another one's; and it ends with this process.
            with contextlib.suppress(NotRunningError, ServiceError):
                if any(_same(one, got) for one in self.allocations()):
                    self.deallocate(id)

    def allocations(self) -> tuple[AllocationInfo, ...]:
        """Return all memory that is kept for somebody."""
        answer = self.request("GET", _PATH)
        return read_list(AllocationInfo, answer.get("allocations"), "allocations")

    def budget(self, gpu: str | int = 0) -> MemoryBudget:
        """Return how much of a GPU's memory may be allocated in all, is, and may be yet.

        Raises:
            NoSuchGpuError: It is not there.
        """
        answer = self.request("GET", f"{_PATH}?{urlencode({'gpu': gpu})}")
        found = read_list(MemoryBudget, answer.get("gpus"), "gpus")
        if len(found) != 1:
            raise ServiceError(f"the daemon answers with {len(found)} GPUs, and one was asked for")
        return found[0]

    def available(self, gpu: str | int = 0) -> int:
        """Return how many bytes of a GPU may be allocated yet.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.budget(gpu).available


def _same(one: AllocationInfo, other: AllocationInfo) -> bool:
    return (one.id, one.gpu, one.holder.pid) == (other.id, other.gpu, other.holder.pid)


def _bytes(size: int | str) -> int:
    """Return a size that somebody's script gave, which may be anything.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        what = f"size: {size!r} is no whole number of bytes"
        raise ConfigError(what, "Write it as 2 * 10**9, or as text such as '40GiB'.")
    if isinstance(size, int):
        return size
    try:
        return parse_size(size)
    except ValueError as error:
        raise ConfigError(f"size: {error}") from None
