"""Guests: those to whom memory of a GPU was promised, and how much of it is to come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.config import Config
from sentinel.control import Allocation
from sentinel.core.model import Slot
from sentinel.messages import GpuProcess, Reading

__all__ = [
    "CONTEXT",
    "CONTEXT_OF_EACH",
    "SETTLING",
    "budget",
    "can_be_told",
    "guests",
    "left_to_promise",
    "to_come",
]

#: What is left to a guest beyond each of its promises, for the next CUDA context, for which it did
#: not ask, and what libraries take with that.
CONTEXT = 2**30

#: What of each guest's memory is taken for its context and not for what was promised: 527 MiB on an
#: H200 (benchmarks/measured), and some for cards where it is more.
CONTEXT_OF_EACH = 640 * 2**20

#: For so long after a promise nothing of ours is started beside the guest, in seconds: most take
#: their memory at once, and a stressor that comes after that finds more of it left.
SETTLING = 3.0


def budget(slot: Slot, config: Config) -> int:
    """Return how much of a GPU's memory may be promised in all, in bytes."""
    most = max(0, slot.gpu.memory_total - config.budget_reserve)
    return most if config.budget_limit is None else min(most, config.budget_limit)


def left_to_promise(slot: Slot, config: Config) -> int:
    """Return how much more of a GPU's memory may be promised, in bytes."""
    given = sum(promise.size for promise in slot.promises.values())
    return max(0, budget(slot, config) - given)


def can_be_told(slot: Slot) -> bool:
    """Return whether the guests of a GPU can be told from others: all are seen, and all are listed.

    Where the list may leave somebody out, a newcomer would be seen by the memory alone, and that is
    what guests are to take.
    """
    return slot.identity.complete and all(
        promise.by.started is not None for promise in slot.promises.values()
    )


def guests(slot: Slot, processes: Iterable[GpuProcess]) -> dict[int, str]:
    """Return by PID which processes are guests, and by whose promise.

    Those of a holder are guests together, and none of them is one any more once they hold more
    than they were promised, contexts apart, or nobody says how much.
    """
    if not slot.promises or not can_be_told(slot):
        return {}
    found: dict[int, str] = {}
    for holder, (name, most) in _holders(slot.promises).items():
        theirs = [process for process in processes if _is_of(process, *holder)]
        if any(one.memory is None for one in theirs) or sum(map(_charged, theirs)) > most:
            continue
        found |= {process.pid: name for process in theirs}
    return found


def to_come(slot: Slot, reading: Reading | None) -> int:
    """Return how many promised bytes no guest holds yet, contexts included."""
    if not slot.promises:
        return 0
    processes = reading.processes or () if reading is not None else ()
    here = guests(slot, processes)
    held = sum(_charged(process) for process in processes if process.pid in here)
    return max(0, sum(promise.size + CONTEXT for promise in slot.promises.values()) - held)


def _holders(
    promises: Mapping[str, Allocation],
) -> dict[tuple[int, int], tuple[str, int]]:
    """Return for each holder, by PID and start, the id of a promise and the bytes of all."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for promise in promises.values():
        pid, started = promise.by.pid, promise.by.started
        if pid is None or started is None:
            continue
        name, most = found.get((pid, started), (promise.id, 0))
        found[pid, started] = name, most + promise.size + CONTEXT
    return found


def _charged(process: GpuProcess) -> int:
    """Return how much of what was promised a guest holds, in bytes: all but its context."""
    return max(0, (process.memory or 0) - CONTEXT_OF_EACH)


def _is_of(process: GpuProcess, pid: int, started: int) -> bool:
    """Return whether a process is this one, or was started by it, however far down."""
    if process.started is None:
        return False
    if process.pid == pid:
        return process.started == started
    # A process that is older than its ancestor is that of an earlier one of this number.
    return process.ancestors is not None and pid in process.ancestors and process.started >= started
