"""Attribute the processes and memory of a reading: ours, ignored, allocated, foreign. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.gpu_state import Attribution, GpuState, Running, Starting
from sentinel.core.observation import Identity, IdentityMode, OwnChild, ResidentProcess, is_own
from sentinel.core.step import Step, gpu_event
from sentinel.protocol.gpu import GpuProcess, ProcessKind, Reading
from sentinel.protocol.stressor import GROWTH_SLACK_BYTES
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

#: Graphics processes below this many bytes together share a GPU with a stressor: an X server that
#: only shows a login screen holds a few MiB on every GPU.
GRAPHICS_ALLOWANCE_BYTES = 100 * 2**20

#: An ignore rule by size applies to a process whose memory has been steady for so long, in
#: seconds. Every newcomer is small until milliseconds before its large allocation.
STEADY_S = 60.0
#: A steady process changes by at most this many bytes.
STEADY_CHANGE_BYTES = 2**20

#: The kernel keeps 15 characters of ``nvidia-cuda-mps-server``.
MPS_SERVER = "nvidia-cuda-mps"
_MPS_REASON = "an MPS server; its clients are listed themselves"

#: Memory growth up to this many bytes is noise.
SLACK_BYTES = GROWTH_SLACK_BYTES

#: Defaults of ``idle.memory``: unattributed memory of an idle GPU, in bytes, where every process is
#: listed and where some may not be. Any CUDA context takes more than the latter, 527 MiB on an
#: H200 (an empty one's total less what a newcomer finds free there, benchmarks/measured), and
#: nvidia-smi shows 0 MiB on an idle H200.
IDLE_MEMORY_LISTED_BYTES = 2**30
IDLE_MEMORY_UNLISTED_BYTES = 32 * 2**20

#: Memory of a context that NVML counts as used and lists for no process, in bytes. On an H200 it is
#: 8.8 MiB, whatever a stressor takes besides; a newcomer's context is 25 MiB more before it is
#: listed, some 120 ms before its first allocation.
CONTEXT_OVERHEAD_BYTES = 16 * 2**20


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
        if all(process.memory is not None for process in tree)
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


def ignored_processes(
    gpu_state: GpuState,
    others: Iterable[GpuProcess],
    allocated: Mapping[int, str],
    at: float,
    config: Config,
) -> dict[int, str]:
    """Return the reason for each process to ignore, by PID.

    Names and users are compared only where /proc describes the processes that NVML lists.

    Args:
        gpu_state: The GPU with its resident processes.
        others: The listed processes that are not Sentinel's own.
        allocated: The allocations of allocated processes, by PID.
        at: When the processes were read.
        config: The configuration of this GPU.
    """
    others = tuple(others)
    graphics = [process for process in others if process.kind is ProcessKind.GRAPHICS]
    ignored = {}
    if config.yield_to == "compute":
        ignored = {process.pid: "graphics (yield_to = compute)" for process in graphics}
    elif _are_light(graphics):
        ignored = {process.pid: "light graphics" for process in graphics}
    if not gpu_state.identity.names_known:
        return ignored
    for pid, name in allocated.items():
        ignored[pid] = f"allocated memory ({name})"
    for process in others:
        if process.name == MPS_SERVER and process.kind is ProcessKind.COMPUTE:
            ignored[process.pid] = _MPS_REASON
        for rule in config.ignore:
            if rule.matches(process) and (
                rule.max_bytes is None or _is_steady(gpu_state, process, at)
            ):
                ignored[process.pid] = f"ignored by {rule}"
    return ignored


def pending_ignores(gpu_state: GpuState, config: Config) -> dict[int, str]:
    """Return by PID the foreign processes that a rule by size may ignore later, and when."""
    if not gpu_state.identity.names_known:
        return {}
    return {
        process.pid: f"{rule} ignores it after {STEADY_S:g} s of steady memory"
        for process in gpu_state.attribution.foreign
        for rule in config.ignore
        if rule.max_bytes is not None and rule.matches(process)
    }


def _are_light(graphics: list[GpuProcess]) -> bool:
    """Check that the memory of these processes is known and small in total."""
    sizes = [process.memory for process in graphics if process.memory is not None]
    return len(sizes) == len(graphics) and sum(sizes) <= GRAPHICS_ALLOWANCE_BYTES


def _is_steady(gpu_state: GpuState, process: GpuProcess, at: float) -> bool:
    """Check that a process was steady for long enough, and before the stressor was started."""
    resident = gpu_state.resident_processes.get(process.pid)
    if resident is None or resident.started is None or resident.started != process.started:
        return False
    until = gpu_state.launch.at if gpu_state.is_held else at
    return resident.since + STEADY_S <= until


def resident_processes(
    gpu_state: GpuState, reading: Reading | None, config: Config
) -> Mapping[int, ResidentProcess]:
    """Update since when each listed process is steady; empty without an ignore rule by size."""
    if not any(rule.max_bytes is not None for rule in config.ignore):
        return {}
    if reading is None or reading.processes is None:
        return {}  # the processes may have changed in the meantime
    return {
        p.pid: _resident(gpu_state.resident_processes.get(p.pid), p, reading)
        for p in reading.processes
    }


def _resident(
    before: ResidentProcess | None, process: GpuProcess, reading: Reading
) -> ResidentProcess:
    """Keep the record of a process that has not changed; else start a new one."""
    if before is not None and process.memory is not None and before.memory is not None:
        change = abs(process.memory - before.memory)
        if change <= STEADY_CHANGE_BYTES and before.started == process.started:
            return before
    at = reading.processes_at
    return ResidentProcess(started=process.started, since=at, memory=process.memory)


def foreign_memory(gpu_state: GpuState, reading: Reading) -> int:
    """Compute the used memory that is not the stressor's, in bytes.

    A running stressor has what the driver lists for it, or what it had when it was ready: the list
    may be older than the reading of the memory. One that starts or ends takes or frees memory
    between the two, so only what is known of the others counts then: what was used before the
    stressor was started, or what they are listed with.
    """
    used = reading.memory.used if reading.memory is not None else 0
    if gpu_state.child is None:
        return used
    baseline, listed = gpu_state.launch.baseline, gpu_state.attribution.own_memory
    match gpu_state.stressor:
        case Running(expected=int(expected)):
            return max(0, used - max(listed, expected - baseline))
        case Running(ready=ready) if listed:
            return max(0, used - max(listed, ready.held))
        case Running(ready=ready):
            return max(baseline, used - ready.held) if used > ready.held else baseline
        case _:
            own = gpu_state.attribution.own
            others = [p.memory or 0 for p in reading.processes or () if p not in own]
            return min(used, max(baseline, sum(others)))


def idle_memory(gpu_state: GpuState, config: Config) -> int:
    """Compute how much memory may be unattributed on an idle GPU, in bytes."""
    if config.idle_memory is not None:
        return config.idle_memory
    listed = gpu_state.identity.complete
    return IDLE_MEMORY_LISTED_BYTES if listed else IDLE_MEMORY_UNLISTED_BYTES


def attribute(gpu_state: GpuState, reading: Reading | None, config: Config) -> Attribution:
    """Attribute a reading's processes and memory.

    Args:
        gpu_state: The GPU, with the current child and the resident processes of this reading.
        reading: The latest reading, or None before the first.
        config: The configuration of this GPU.
    """
    if reading is None:
        return Attribution()
    own: list[GpuProcess] = []
    others: list[GpuProcess] = []
    child = gpu_state.child
    for process in reading.processes or ():
        (own if is_own(process, child) else others).append(process)
    allocated = allocated_processes(gpu_state, others)
    ignored = ignored_processes(gpu_state, others, allocated, reading.processes_at, config)
    listed = sum(process.memory or 0 for process in reading.processes or ())
    # An MPS server grows for a client only, which has its context 160 ms after its start.
    grows = {pid for pid, reason in ignored.items() if reason != _MPS_REASON}
    return Attribution(
        own=tuple(own),
        foreign=tuple(process for process in others if process.pid not in ignored),
        ignored=ignored,
        allocated=allocated,
        own_memory=sum(process.memory or 0 for process in own),
        ignored_memory=sum(p.memory or 0 for p in others if p.pid in grows),
        may_grow=bool(grows - allocated.keys()),
        allocated_memory=sum(charged_memory(p) for p in others if p.pid in allocated),
        unattributed=reading.memory.used - listed if reading.memory is not None else 0,
    )


def learn(gpu_state: GpuState, reading: Reading | None, now: float) -> Step[GpuState]:
    """Learn from a reading how the living child is listed.

    A list with the child's own PID is conclusive. Where PIDs may belong to another namespace, the
    one PID that appeared with the child is taken for it until Ready, and after that only if it
    holds as much memory as the child. Two new PIDs are foreign.
    """
    live, child = gpu_state.stressor, gpu_state.child
    if not gpu_state.is_live or child is None or gpu_state.child_is_listed:
        return Step(gpu_state)
    if reading is None or reading.processes is None:
        return Step(gpu_state)
    unmapped = replace(child, listed_as=None)
    if any(is_own(process, unmapped) for process in reading.processes):
        reason = f"NVML lists the stressor by its PID, {unmapped.pid}"
        return _learned(gpu_state, unmapped, IdentityMode.DIRECT, reason, now)
    new = [process for process in reading.processes if process.pid not in gpu_state.launch.before]
    match live:
        case Starting(attaching=float()) if child.listed_as is None:
            mapped = replace(unmapped, listed_as=_only_new_pid(gpu_state, new))
            return Step(_with_child(gpu_state, mapped))
        case Running() if reading.processes_at > live.since:
            return _conclude(gpu_state, live, child, new, now)
        case _:
            return Step(gpu_state)


def _conclude(
    gpu_state: GpuState, running: Running, child: OwnChild, new: list[GpuProcess], now: float
) -> Step[GpuState]:
    """Decide how a child is listed that is Ready and not listed by its own PID."""
    for process in new:
        if process.pid == child.listed_as and _may_hold(process, running.ready.held):
            reason = f"NVML lists the stressor as PID {process.pid}, which is not its PID here"
            return _learned(gpu_state, child, IdentityMode.MAPPED, reason, now)
    unmapped = replace(child, listed_as=None)
    return _learned(gpu_state, unmapped, IdentityMode.BLIND, "NVML does not list the stressor", now)


def _only_new_pid(gpu_state: GpuState, new: list[GpuProcess]) -> int | None:
    """Return the one new PID if it may belong to another namespace, or None."""
    if gpu_state.identity.hidden is None or len(new) != 1 or new[0].started is not None:
        return None
    return new[0].pid


def _may_hold(process: GpuProcess, held: int) -> bool:
    """Check whether a process may hold that much; some drivers report None or 0 here."""
    return not process.memory or process.memory >= held


def _with_child(gpu_state: GpuState, child: OwnChild) -> GpuState:
    """Replace the living child."""
    if gpu_state.launch.child == child:
        return gpu_state
    return replace(gpu_state, launch=replace(gpu_state.launch, child=child))


def _learned(
    gpu_state: GpuState, child: OwnChild, mode: IdentityMode, reason: str, now: float
) -> Step[GpuState]:
    """Store what was learned, and report a change of the mode."""
    before = gpu_state.identity
    identity = Identity(
        mode=mode, reason=reason, hidden=before.hidden, generation=gpu_state.generation
    )
    gpu_state = replace(_with_child(gpu_state, child), identity=identity)
    if before.mode is mode:
        return Step(gpu_state)
    event = gpu_event(
        "gpu.identity",
        gpu_state,
        now,
        mode=mode.value,
        reason=reason,
        hidden=identity.hidden,
        complete=identity.complete,
    )
    return Step(gpu_state, events=(event,))
