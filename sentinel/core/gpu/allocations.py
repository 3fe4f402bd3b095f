"""Guests: those to whom memory of a GPU was promised, and how much of it is to come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.identity import is_ours
from sentinel.core.state import GpuState
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.views import Allocation

#: What is left to each holder beyond its promises, for the next CUDA context, for which it did not
#: ask, and what libraries take with that.
CONTEXT = 2**30

#: What of each guest's memory is taken for its context and not for what was promised: 527 MiB on an
#: H200 (benchmarks/measured), and some for cards where it is more.
CONTEXT_OF_EACH = 640 * 2**20

#: For so long after a promise nothing of ours is started beside the guest, in seconds: most take
#: their memory at once, and a stressor that comes after that finds more of it left.
SETTLING = 3.0


#: A stressor that left room for a promise is let go of for a larger one when no promise has begun
#: or ended for so long, in seconds: who comes and goes with every request is not to cost a start.
CALM = 60.0


@dataclass(frozen=True, kw_only=True)
class _Holder:
    """One to whom memory was promised: since when it lives, by what names, how many bytes."""

    started: int
    name: str
    most: int


def budget(gpu_state: GpuState, reading: Reading | None, config: Config) -> int:
    """Return how many bytes of a GPU's memory may be promised in all; none where it is not known.

    What the driver keeps for itself cannot be had, and one more guest is to have its context.
    """
    if reading is None or reading.memory is None:
        return 0
    usable = reading.memory.used + reading.memory.free
    most = max(0, usable - config.budget_reserve)
    if config.budget_limit is not None:
        most = min(most, config.budget_limit)
    holders = {(one.by.pid, one.by.started) for one in gpu_state.allocations.values()}
    return max(0, min(most, usable - CONTEXT * (len(holders) + 1)))


def available(gpu_state: GpuState, reading: Reading | None, config: Config) -> int:
    """Return how much more of a GPU's memory may be promised, in bytes."""
    given = sum(promise.size for promise in gpu_state.allocations.values())
    return max(0, budget(gpu_state, reading, config) - given)


def can_be_told(gpu_state: GpuState) -> bool:
    """Return whether the guests of a GPU can be told from others: all are seen, and all are listed.

    Where the list may leave somebody out, a newcomer would be seen by the memory alone, and that is
    what guests are to take.
    """
    return gpu_state.identity.complete and all(
        promise.by.started is not None for promise in gpu_state.allocations.values()
    )


def guests(gpu_state: GpuState, processes: Iterable[GpuProcess]) -> dict[int, str]:
    """Return by PID which processes are guests, and by whose promise.

    Those of a holder are guests together, and none of them is one any more once they hold more
    than they were promised, contexts apart, or nobody says how much. Our own child is nobody's
    guest, though a holder may have started us.
    """
    if not gpu_state.allocations or not can_be_told(gpu_state):
        return {}
    holders = _holders(gpu_state.allocations)
    theirs: dict[int, list[GpuProcess]] = {}
    for process in processes:
        holder = None if is_ours(process, gpu_state.child) else _holder_of(process, holders)
        if holder is not None:
            theirs.setdefault(holder, []).append(process)
    return {
        process.pid: holders[pid].name
        for pid, group in theirs.items()
        if all(one.memory is not None for one in group)
        and sum(map(_charged, group)) <= holders[pid].most
        for process in group
    }


def committed(gpu_state: GpuState) -> int:
    """Return how many bytes are promised on a GPU, the context of each holder included."""
    sizes = sum(promise.size for promise in gpu_state.allocations.values())
    holders = {(one.by.pid, one.by.started) for one in gpu_state.allocations.values()}
    return sizes + CONTEXT * len(holders)


def outstanding(gpu_state: GpuState, reading: Reading | None) -> int:
    """Return how many promised bytes no guest holds yet, contexts included."""
    if not gpu_state.allocations:
        return 0
    processes = reading.processes or () if reading is not None else ()
    here = guests(gpu_state, processes)
    held = sum(_charged(process) for process in processes if process.pid in here)
    return max(0, committed(gpu_state) - held)


def _holders(allocations: Mapping[str, Allocation]) -> dict[int, _Holder]:
    """Return the holders by PID; what they were promised, and one context, is theirs."""
    found: dict[int, _Holder] = {}
    for promise in allocations.values():
        pid, started = promise.by.pid, promise.by.started
        if pid is None or started is None:
            continue
        before = found.get(pid)
        if before is None or before.started != started:
            found[pid] = _Holder(started=started, name=promise.id, most=promise.size + CONTEXT)
        else:
            found[pid] = replace(before, most=before.most + promise.size)
    return found


def _holder_of(process: GpuProcess, holders: Mapping[int, _Holder]) -> int | None:
    """Return the PID of the holder that a process is, or was started by, however far down."""
    if process.started is None:
        return None
    own = holders.get(process.pid)
    if own is not None and own.started == process.started:
        return process.pid
    for pid in process.ancestors or ():
        above = holders.get(pid)
        # A process that is older than its ancestor is that of an earlier one of this number.
        if above is not None and process.started >= above.started:
            return pid
    return None


def _charged(process: GpuProcess) -> int:
    """Return how much of what was promised a guest holds, in bytes: all but its context."""
    return max(0, (process.memory or 0) - CONTEXT_OF_EACH)
