"""The calls that the probe makes to a driver, how they fail, and the checks of their results."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Telemetry

#: Which list determines the kind of a process that is in several. Some drivers put MPS clients in
#: the compute list, too, and only the MPS list gives their kind; compute outranks graphics.
_RANKS = {ProcessKind.MPS: 0, ProcessKind.COMPUTE: 1, ProcessKind.GRAPHICS: 2}


class DriverError(Exception):
    """A driver call failed.

    Args:
        code: A short name for programs, such as ``gpu_is_lost``.
        reason: One sentence for users, with the remedy if one is known.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class DriverGoneError(DriverError):
    """The whole driver: missing, not loaded, or of another version than its library."""


class GpuLostError(DriverError):
    """One GPU left the bus or needs a reset; a retry cannot help."""


class ReadError(DriverError):
    """One call failed; the next may succeed."""


class TooManyProcessesError(DriverError):
    """A list of processes is too long to read in a moment.

    Args:
        count: The number of processes in it.
    """

    def __init__(self, count: int) -> None:
        super().__init__("too_many_processes", f"{count} processes are on the GPU")
        self.count = count


@dataclass(frozen=True, kw_only=True)
class Xid:
    """An XID as the driver delivers it."""

    uuid: str
    number: int


class XidSource(Protocol):
    """Delivers the XIDs of the GPUs that were added to it, to one thread.

    Calls may block without limit and raise one of the errors of :class:`Driver`.
    """

    def add(self, uuid: str) -> bool:
        """Deliver the XIDs of this GPU from now on; return False if it does not report any."""

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next XID; return None if there was none, or another event."""

    def close(self) -> None:
        """Release what the driver keeps for it."""


class Driver(Protocol):
    """A driver; every call may block without limit.

    Calls for different GPUs may run at the same time in different threads. All but :meth:`node`
    raise one of the first three errors above. The calls that a device may lack have the body of a
    device that lacks them.
    """

    @abstractmethod
    def open(self) -> None:
        """Load and initialize it; called once, first."""

    @abstractmethod
    def version(self) -> str:
        """Return the version of the driver."""

    @abstractmethod
    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs in nvidia-smi's order.

        Unreachable GPUs are left out. ``memory_total`` is 0 if it could not be read, and for GPUs
        in ``skip``, for which only the UUID is read.
        """

    @abstractmethod
    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU, without the driver's own."""

    @abstractmethod
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU once, by PID.

        Raises:
            TooManyProcessesError: The list would take so long that other GPUs would notice.
        """

    def exclusive(self, uuid: str) -> bool:
        """Check whether one GPU is in a compute mode other than the shared one."""
        return False

    def mig(self, uuid: str) -> bool:
        """Check whether one GPU is divided by MIG; False if it cannot be."""
        return False

    def display(self, uuid: str) -> bool:
        """Check whether a display is active on one GPU; False without displays."""
        return False

    def utilization(self, uuid: str) -> float | None:
        """Return the recent share of the time in which a kernel ran, or None if not supported."""
        return None

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature in degrees Celsius, or None if not supported."""
        return None

    def power(self, uuid: str) -> float | None:
        """Read the recent mean power in watts, or None if not supported."""
        return None

    def sm_clock(self, uuid: str) -> int | None:
        """Read the clock of the multiprocessors in MHz, or None if not supported."""
        return None

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU; unsupported fields are None."""
        return Telemetry(at=time.monotonic())

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List the host PIDs of processes that used one GPU since the last call.

        None at the first call, and if the driver does not support it.
        """
        return None

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node; without it no program is noticed opening it."""
        return None

    def xids(self) -> XidSource:
        """Create a source of XIDs without any GPU."""
        return NoXids()


class BasicDriver(Driver):
    """A base class of drivers, which have to add the first five calls."""


class NoXids:
    """A source for a driver that reports no XIDs."""

    def add(self, uuid: str) -> bool:
        """Return False: no GPU reports any."""
        return False

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait in vain."""
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def merge_lists(lists: dict[ProcessKind, list[tuple[int, int | None]]]) -> tuple[GpuProcess, ...]:
    """Merge the ``(pid, memory)`` of three lists into one, with each PID once.

    A PID that occurs repeatedly gets the first kind of MPS, compute and graphics, and the largest
    memory of its entries.
    """
    merged: dict[int, GpuProcess] = {}
    for kind in sorted(lists, key=_RANKS.__getitem__):
        for pid, memory in lists[kind]:
            known = merged.get(pid)
            amounts = [m for m in (memory, known.memory if known else None) if m is not None]
            merged[pid] = GpuProcess(
                pid=pid, kind=known.kind if known else kind, memory=max(amounts, default=None)
            )
    return tuple(merged[pid] for pid in sorted(merged))
