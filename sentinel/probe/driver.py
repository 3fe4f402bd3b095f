"""The calls that the probe makes to a driver, real or simulated, and how they can fail."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind
from sentinel.protocol.telemetry import Telemetry

#: Which list determines the kind of a process that is in several. Some drivers put MPS clients in
#: the compute list, too, and only the MPS list gives their kind; compute outranks graphics.
_RANKS = {ProcessKind.MPS: 0, ProcessKind.COMPUTE: 1, ProcessKind.GRAPHICS: 2}

#: The maximum length of an error of foreign code.
_MAX_TEXT_LENGTH = 300


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
    raise one of the first three errors above.
    """

    def open(self) -> None:
        """Load and initialize it; called once, first."""

    def version(self) -> str:
        """Return the version of the driver."""

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs in nvidia-smi's order.

        Unreachable GPUs are left out. ``memory_total`` is 0 if it could not be read, and for GPUs
        in ``skip``, for which only the UUID is read.
        """

    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU, without the driver's own."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU once, by PID.

        Raises:
            TooManyProcessesError: The list would take so long that other GPUs would notice.
        """

    def exclusive(self, uuid: str) -> bool:
        """Check whether one GPU is in a compute mode other than the shared one."""

    def mig(self, uuid: str) -> bool:
        """Check whether one GPU is divided by MIG; False if it cannot be."""

    def display(self, uuid: str) -> bool:
        """Check whether a display is active on one GPU."""

    def utilization(self, uuid: str) -> float | None:
        """Return the recent share of the time in which a kernel ran, or None if not supported."""

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature in degrees Celsius, or None if not supported."""

    def power(self, uuid: str) -> float | None:
        """Read the recent mean power in watts, or None if not supported."""

    def sm_clock(self, uuid: str) -> int | None:
        """Read the clock of the multiprocessors in MHz, or None if not supported."""

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU; unsupported fields are None."""

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List the host PIDs of processes that used one GPU since the last call.

        None at the first call, and if the driver does not support it.
        """

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node, or None if it is unknown."""

    def xids(self) -> XidSource:
        """Create a source of XIDs without any GPU."""


class NoXids:
    """A source for a driver that reports no XIDs."""

    def add(self, uuid: str) -> bool:
        """Return False: no GPU reports any."""
        del uuid
        return False

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait in vain."""
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class BasicDriver:
    """The calls of a driver that a device may lack, as one that lacks them; for a base class.

    A driver that inherits from it has to add ``open``, ``version``, ``gpus``, ``memory`` and
    ``processes``.
    """

    def exclusive(self, uuid: str) -> bool:
        """Return False: the device knows no modes."""
        del uuid
        return False

    def mig(self, uuid: str) -> bool:
        """Return False: the device cannot be divided."""
        del uuid
        return False

    def display(self, uuid: str) -> bool:
        """Return False: a graphics process is in the list like any other."""
        del uuid
        return False

    def utilization(self, uuid: str) -> float | None:
        """Return None: not supported."""
        del uuid
        return None

    def temperature(self, uuid: str) -> int | None:
        """Return None: not supported."""
        del uuid
        return None

    def power(self, uuid: str) -> float | None:
        """Return None: not supported."""
        del uuid
        return None

    def sm_clock(self, uuid: str) -> int | None:
        """Return None: not supported."""
        del uuid
        return None

    def telemetry(self, uuid: str) -> Telemetry:
        """Return telemetry without a value."""
        del uuid
        return Telemetry(at=time.monotonic())

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return None: not supported."""
        del uuid
        return None

    def node(self, uuid: str) -> str | None:
        """Return None: the device node is unknown, so no program is noticed as it opens it."""
        del uuid
        return None

    def xids(self) -> XidSource:
        """Return a source without XIDs."""
        return NoXids()


def one_line(error: BaseException) -> str:
    """Describe an error of foreign code in one line of limited length."""
    try:
        text = " ".join(str(error).split())[:_MAX_TEXT_LENGTH]
    except Exception:  # noqa: BLE001 - an exception whose __str__ raises
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
