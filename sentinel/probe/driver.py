"""What the probe asks of a driver, real or pretended, and the ways in which it can fail."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind
from sentinel.protocol.telemetry import Telemetry

#: Which list names a process that stands in several. A client of MPS is in the compute list too
#: on some drivers, and only the MPS list says what it is; whoever computes is no mere display.
_RANKS = {ProcessKind.MPS: 0, ProcessKind.COMPUTE: 1, ProcessKind.GRAPHICS: 2}


class DriverError(Exception):
    """Say that the driver did not answer.

    Args:
        code: A short name for programs, such as ``gpu_is_lost``.
        reason: One sentence for people, with the remedy where one is known.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class DriverGoneError(DriverError):
    """The driver as a whole: missing, not loaded, or other than its library. A new process may."""


class GpuLostError(DriverError):
    """One GPU left the bus or needs a reset; no second try can help."""


class ReadError(DriverError):
    """One call failed; the next may succeed."""


class Driver(Protocol):
    """The driver, asked for one thing at a time; every call may block for as long as it likes.

    Calls for different GPUs may run at once in different threads. All but :meth:`node` raise one
    of the three errors above.
    """

    def open(self) -> None:
        """Load and initialise it; called once, first."""

    def version(self) -> str:
        """Return the version of the driver."""

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """Return the GPUs in nvidia-smi's order.

        One that cannot be reached is left out. ``memory_total`` is 0 where it could not be read,
        and for those in ``skip``, which are only asked for their UUID.
        """

    def memory(self, uuid: str) -> Memory:
        """Return the memory of one GPU now, without what the driver keeps for itself."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return every process on one GPU once, by PID, as the driver names it."""

    def exclusive(self, uuid: str) -> bool:
        """Return whether one GPU is in a compute mode other than the shared one."""

    def mig(self, uuid: str) -> bool:
        """Return whether one GPU is divided by MIG; ``False`` where it cannot be."""

    def display(self, uuid: str) -> bool:
        """Return whether a display is active on one GPU."""

    def utilization(self, uuid: str) -> float | None:
        """Return the share of the time, of late, in which a kernel ran; ``None`` if never told."""

    def temperature(self, uuid: str) -> int | None:
        """Return the temperature of one GPU in degrees Celsius; ``None`` if never told."""

    def power(self, uuid: str) -> float | None:
        """Return what one GPU draws, of late, in watts; ``None`` if never told."""

    def sm_clock(self, uuid: str) -> int | None:
        """Return the clock of one GPU's multiprocessors in MHz; ``None`` if never told."""

    def telemetry(self, uuid: str) -> Telemetry:
        """Return all that one GPU tells of itself; what it does not tell is ``None``."""

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """Return the host's PIDs of those who used one GPU since the last call.

        ``None`` at the first call, and where the driver does not tell.
        """

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node, or ``None`` where nobody says."""


def merge_lists(lists: dict[ProcessKind, list[tuple[int, int | None]]]) -> tuple[GpuProcess, ...]:
    """Return the ``(pid, memory)`` of three lists as one, by PID and each PID once.

    A PID in several lists, or twice in one, is named by the first of MPS, compute and graphics,
    with the most memory that any entry gives it.
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
