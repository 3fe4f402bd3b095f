"""Account for the memory that is allocated to processes beside a stressor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.views import Allocation

#: Memory left to each allocated process tree beyond its allocations, in bytes: for its CUDA context
#: and the libraries that come with it.
CONTEXT_BYTES = 2**30

#: The part of each allocated process's memory that counts as its context, in bytes: 527 MiB on an
#: H200 (benchmarks/measured), and some for cards where it is more.
CONTEXT_ALLOWANCE_BYTES = 640 * 2**20

#: No stressor is started for so long after an allocation, in seconds: most processes take their
#: memory at once, and a later stressor finds more of it used.
SETTLE_S = 3.0

#: A stressor that left memory to allocations is restarted with more memory when no allocation has
#: begun or ended for so long, in seconds, so that short allocations do not cost a start each.
REGROW_S = 60.0


@dataclass(frozen=True, kw_only=True)
class _Grant:
    """All allocations of one process."""

    started: int
    #: The id of its first allocation.
    name: str
    #: All that it may hold, one context included, in bytes.
    size: int


def budget(gpu_state: GpuState, reading: Reading | None, config: Config) -> int:
    """Compute how much memory may be allocated in total, in bytes; 0 while it is unknown.

    Excludes what the driver keeps, and one context for a further process.
    """
    if reading is None or reading.memory is None:
        return 0
    usable = reading.memory.used + reading.memory.free
    limit = max(0, usable - config.keep_unallocated)
    if config.budget_limit is not None:
        limit = min(limit, config.budget_limit)
    return max(0, min(limit, usable - CONTEXT_BYTES * (_process_count(gpu_state) + 1)))


def available(gpu_state: GpuState, reading: Reading | None, config: Config) -> int:
    """Compute how much more memory may be allocated, in bytes."""
    given = sum(allocation.size for allocation in gpu_state.allocations.values())
    return max(0, budget(gpu_state, reading, config) - given)


def are_distinguishable(gpu_state: GpuState) -> bool:
    """Check that allocated processes can be distinguished from newcomers: every process is listed.

    Otherwise memory alone shows a newcomer, and allocated processes take memory, too.
    """
    return gpu_state.identity.complete and all(
        allocation.by.started is not None for allocation in gpu_state.allocations.values()
    )


def allocated_processes(gpu_state: GpuState, others: Iterable[GpuProcess]) -> dict[int, str]:
    """Return the allocation of each allocated process, by PID.

    A process with an allocation and its descendants share it. None of them counts as allocated
    once they hold more together than it allows, contexts apart, or hold an unknown amount.

    Args:
        gpu_state: The GPU with its allocations.
        others: The listed processes that are not Sentinel's own. The stressor never counts,
            although an allocated process may have started Sentinel.
    """
    if not gpu_state.allocations or not are_distinguishable(gpu_state):
        return {}
    grants = _grants(gpu_state.allocations)
    trees: dict[int, list[GpuProcess]] = {}
    for process in others:
        root = _granted_ancestor(process, grants)
        if root is not None:
            trees.setdefault(root, []).append(process)
    return {
        process.pid: grants[pid].name
        for pid, tree in trees.items()
        if all(one.memory is not None for one in tree)
        and sum(map(charged_memory, tree)) <= grants[pid].size
        for process in tree
    }


def committed(gpu_state: GpuState) -> int:
    """Compute the allocated memory, one context per process included, in bytes."""
    sizes = sum(allocation.size for allocation in gpu_state.allocations.values())
    return sizes + CONTEXT_BYTES * _process_count(gpu_state)


def outstanding(gpu_state: GpuState) -> int:
    """Compute the allocated memory that no process holds yet, contexts included, in bytes."""
    if not gpu_state.allocations:
        return 0
    return max(0, committed(gpu_state) - gpu_state.attribution.allocated_memory)


def charged_memory(process: GpuProcess) -> int:
    """Compute how much of an allocation a process uses, in bytes: all but its context."""
    return max(0, (process.memory or 0) - CONTEXT_ALLOWANCE_BYTES)


def _process_count(gpu_state: GpuState) -> int:
    return len(
        {
            (allocation.by.pid, allocation.by.started)
            for allocation in gpu_state.allocations.values()
        }
    )


def _grants(allocations: Mapping[str, Allocation]) -> dict[int, _Grant]:
    """Sum the allocations of each process, by PID, and add one context."""
    found: dict[int, _Grant] = {}
    for allocation in allocations.values():
        pid, started, size = allocation.by.pid, allocation.by.started, allocation.size
        if pid is None or started is None:
            continue
        before = found.get(pid)
        if before is None or before.started != started:
            found[pid] = _Grant(started=started, name=allocation.id, size=size + CONTEXT_BYTES)
        else:
            found[pid] = replace(before, size=before.size + size)
    return found


def _granted_ancestor(process: GpuProcess, grants: Mapping[int, _Grant]) -> int | None:
    """Return the PID of the process itself or its nearest ancestor with an allocation, or None."""
    if process.started is None:
        return None
    own = grants.get(process.pid)
    if own is not None and own.started == process.started:
        return process.pid
    for pid in process.ancestors or ():
        above = grants.get(pid)
        # A process older than its ancestor belongs to an earlier process with that PID.
        if above is not None and process.started >= above.started:
            return pid
    return None
