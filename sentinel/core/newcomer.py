"""Detect a newcomer on a held GPU by processes, memory or compute activity. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core import start_memory
from sentinel.core.attribution import CONTEXT_OVERHEAD_BYTES, SLACK_BYTES, idle_memory, outstanding
from sentinel.core.gpu_state import (
    Busy,
    Evidence,
    EvidenceKind,
    GpuState,
    Idle,
    Running,
    Starting,
    Stopping,
)
from sentinel.core.observation import Observation, WatchTimes
from sentinel.core.step import Send, Step
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import MemoryContention, MemoryLimit

#: The utilization of a GPU may show a stressor's load for so long after its end, in seconds: NVML's
#: sampling period is up to a second, and the reading that shows it may be as old.
OWN_LOAD_S = 2.0

#: Growth that an ignored process may explain waits so long for the next list of processes, in
#: seconds. The list takes 0.1 ms to read, or far longer while a newcomer's context is created.
LIST_WAIT_S = 0.01

#: A stressor whose last look is older does not watch, in seconds. Its thread may wait for the
#: interpreter lock, and NVML for a context that another process creates: 0.1 s on an H200.
SELF_WATCH_TIMEOUT_S = 0.5
#: The limit of the probe while the stressor starts, in seconds: NVML does not answer while it
#: creates its context, for more than 0.09 s on an H200.
STARTING_TIMEOUT_S = 0.5

#: With a longer interval between two reads, probe and stressor do not alternate, in seconds: either
#: may be alone for a moment. Newcomers got their memory from a holder that read every 50 ms.
MAX_ALTERNATION_S = 0.05
#: They do not alternate with one that last read longer ago, in seconds: NVML does not answer for
#: 0.1 s while a context is created.
ALTERNATION_TIMEOUT_S = 0.2


def newcomer(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Evidence | None:
    """Return the first evidence of a newcomer beside a living child, or None.

    Evidence is a listed foreign process, or memory that grew beyond what the child has announced
    while it starts, and has while it runs. Where processes may be unlisted, the listed memory of
    the child counts as well, and the number of computing processes is a third source.

    Args:
        gpu_state: The GPU with the attribution and occupancy of this reading.
        reading: The latest reading, or None before the first.
        now: The time of this tick.
        config: The configuration of this GPU.
    """
    occupancy = gpu_state.occupancy
    processes = occupancy.processes if isinstance(occupancy, Busy) else ()
    match gpu_state.stressor:
        case (
            Running(contention=MemoryContention() as own)
            | Starting(contention=MemoryContention() as own)
        ):
            return Evidence(
                kind=EvidenceKind.MEMORY,
                at=own.at or now,  # it may not say
                took=own.took,
                grown=own.grown,
                processes=processes,
            )
        case Starting() | Running() | Stopping(evidence=None, kill_sent=False):
            pass
        case _:
            return None
    if reading is None or reading.fault is not None or reading.memory is None:
        return None
    grown = _grown(gpu_state, reading, reading.memory.used, now, config)
    grown = max(grown, _unlisted_memory(gpu_state, reading))
    if grown > SLACK_BYTES:
        kind, at = EvidenceKind.MEMORY, reading.at
    elif isinstance(occupancy, Busy) and not gpu_state.leaks:
        kind, at, grown = EvidenceKind.PROCESS, reading.processes_at, 0
    elif _others_compute(gpu_state, reading):
        kind, at, grown = EvidenceKind.COMPUTING, reading.at, 0
    else:
        return None
    return Evidence(kind=kind, at=at, took=reading.took, grown=grown, processes=processes)


def plausible(seen: MemoryContention, since: float, now: float) -> MemoryContention:
    """Limit the times in a message of a child to its life: a workload can send any message."""
    at, killed_at = (time and min(max(time, since), now) for time in (seen.at, seen.killed_at))
    took = min(max(seen.took, 0.0), now - since)
    return replace(seen, at=at or 0.0, killed_at=killed_at, took=took)


def _grown(gpu_state: GpuState, reading: Reading, used: int, now: float, config: Config) -> int:
    """Compute the used memory that neither the child nor the state before it explains, in bytes."""
    match gpu_state.stressor:
        case Starting() as starting:
            return start_memory.grown(gpu_state, starting, reading, used, now)
        case Running(expected=None, at_ready=int(level)):
            if gpu_state.attribution.may_grow:
                return 0  # only the list of processes tells their growth from a newcomer's
            return used - (level - SLACK_BYTES) - outstanding(gpu_state)
        case (Running(expected=int()) as running) | Stopping(
            running=Running(expected=int()) as running
        ):
            # Outstanding allocations may be taken now; any other newcomer is listed soon.
            grown = used - (_explained_memory(gpu_state, running) or 0) - outstanding(gpu_state)
            if grown > SLACK_BYTES and _awaits_list(gpu_state, reading, now):
                return 0
            if grown <= SLACK_BYTES and not gpu_state.identity.complete:
                # That the list is incomplete may be known only now: was the GPU idle at the start?
                before = gpu_state.launch.unattributed
                return before if before > idle_memory(gpu_state, config) else grown
            return grown
        case _:
            return 0  # the child's own memory grows


def limit_memory(gpu_state: GpuState, _: Observation, config: Config) -> Step[GpuState]:
    """Tell a stressor how much memory may be used; before the reply to an allocation."""
    running = gpu_state.stressor
    if isinstance(running, Starting):
        return _limit_start(gpu_state, running, config)
    if not isinstance(running, Running):
        return Step(gpu_state)
    used, at_once = memory_limit(gpu_state), config.yield_how == "kill"
    if used is None and running.expected is None and start_memory.is_exact(gpu_state):
        return Step(gpu_state)  # the limit of the start is exact, and holds until the first reading
    sent = running.memory_limit
    if sent is not None and (used, at_once) == (sent.used, sent.at_once):
        return Step(gpu_state)
    limit = MemoryLimit(used=used, at_once=at_once)
    uuid, generation = gpu_state.gpu.uuid, gpu_state.generation
    action = Send(uuid=uuid, generation=generation, message=limit)
    gpu_state = replace(gpu_state, stressor=replace(running, memory_limit=limit))
    return Step(gpu_state, actions=(action,))


def _limit_start(gpu_state: GpuState, starting: Starting, config: Config) -> Step[GpuState]:
    """Tell a starting stressor once that other processes may grow beside it."""
    if starting.limited or start_memory.is_exact(gpu_state):
        return Step(gpu_state)
    limit = MemoryLimit(used=None, at_once=config.yield_how == "kill")
    action = Send(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation, message=limit)
    gpu_state = replace(gpu_state, stressor=replace(starting, limited=True))
    return Step(gpu_state, actions=(action,))


def memory_limit(gpu_state: GpuState) -> int | None:
    """Compute the used memory beyond which a stressor yields by itself, in bytes.

    Returns:
        None while that is unknown, and where ignored processes may take memory: only the list of
        processes tells their growth from a newcomer's.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running):
        return None
    if gpu_state.attribution.may_grow:
        return None
    explained = _explained_memory(gpu_state, running)
    return None if explained is None else explained + outstanding(gpu_state) + SLACK_BYTES


def free_beside_stressor(gpu_state: GpuState, reading: Reading) -> int | None:
    """Compute the memory that neither the child nor ignored processes use, in bytes.

    Returns:
        None until the first reading after Ready.
    """
    if not isinstance(gpu_state.stressor, Running) or reading.memory is None:
        return None
    explained = _explained_memory(gpu_state, gpu_state.stressor)
    return None if explained is None else reading.memory.free + reading.memory.used - explained


def _explained_memory(gpu_state: GpuState, running: Running) -> int | None:
    """Add the growth of ignored processes to the expected memory; None while that is unknown."""
    if running.expected is None:
        return None
    return running.expected + max(0, gpu_state.attribution.ignored_memory - running.ignored_memory)


def _unlisted_memory(gpu_state: GpuState, reading: Reading) -> int:
    """Compute the memory beside a child whose own memory NVML lists, in bytes, or 0.

    For lists that may be incomplete. It counts all memory and not only growth, so it also shows
    newcomers that came while the child took its memory.
    """
    if not gpu_state.is_live or gpu_state.identity.complete:
        return 0
    if not gpu_state.child_is_listed or not gpu_state.attribution.own_memory:
        return 0  # the process taken for the child may be another
    if reading.at + reading.took > reading.processes_at:
        return 0  # the child may have grown since it was listed
    grown = gpu_state.attribution.unattributed - gpu_state.launch.unattributed
    return grown if grown > CONTEXT_OVERHEAD_BYTES else 0


def _awaits_list(gpu_state: GpuState, reading: Reading, now: float) -> bool:
    """Check whether the list of processes is slightly older than the growth.

    A child that is stopping does not wait for it: to be killed costs it nothing.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running) or not gpu_state.attribution.ignored_memory:
        return False
    if reading.processes_at >= reading.at:
        return False
    return running.grown_since is None or now < running.grown_since + LIST_WAIT_S


def expect(gpu_state: GpuState, reading: Reading | None, now: float) -> GpuState:
    """Update the expected memory: set by the first reading after Ready, lowered later.

    Other processes may free memory that they held before the stressor, so a lower figure lowers
    it, by no more than that; likewise for ignored processes. Also records since when there is
    growth.
    """
    running = gpu_state.stressor
    if reading is None or reading.memory is None:
        return gpu_state
    if isinstance(running, Starting):
        return start_memory.follow(gpu_state, running, reading, now)
    if not isinstance(running, Running):
        return gpu_state
    used, ignored = reading.memory.used, gpu_state.attribution.ignored_memory
    if running.expected is None:
        paired = not ignored or reading.processes_at > running.since
        if reading.at <= running.since or not paired or not isinstance(gpu_state.occupancy, Idle):
            return gpu_state
        if not _is_as_announced(gpu_state, running, used):
            return gpu_state  # a newcomer's is not expected
        return replace(gpu_state, stressor=replace(running, expected=used, ignored_memory=ignored))
    launch, expected = gpu_state.launch, running.expected
    if expected - launch.baseline <= used < expected:
        launch = replace(launch, baseline=launch.baseline - (expected - used))
        expected = used
    since = None
    if used > expected + SLACK_BYTES:
        since = now if running.grown_since is None else running.grown_since
    ignored = min(ignored, running.ignored_memory)
    found = expected, ignored, since
    if found == (running.expected, running.ignored_memory, running.grown_since):
        return gpu_state  # nearly always; a copy is expensive
    running = replace(running, expected=expected, ignored_memory=ignored, grown_since=since)
    return replace(gpu_state, stressor=running, launch=launch)


def _is_as_announced(gpu_state: GpuState, running: Running, used: int) -> bool:
    """Check the first reading after Ready, where it is known what is used then."""
    if running.at_ready is None or gpu_state.attribution.may_grow:
        return True
    return used <= running.at_ready + outstanding(gpu_state)


def _others_compute(gpu_state: GpuState, reading: Reading) -> bool:
    """Check whether more processes compute than are Sentinel's own, where some may be unlisted.

    The driver names them by PIDs of the host, which cannot be compared with own PIDs, so they are
    counted.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running) or gpu_state.identity.complete or reading.computing is None:
        return False
    if reading.at < running.since + OWN_LOAD_S:
        return False
    return len(set(reading.computing)) > max(1, len(gpu_state.attribution.own))


def held_since(gpu_state: GpuState) -> float | None:
    """Return since when a living child may hold memory, or None if none does.

    Before it begins to create its context, a child holds nothing that a newcomer could miss.
    """
    match gpu_state.stressor:
        case Starting(attaching=float(since)) | Running(since=since):
            return since
        case Stopping(exit=None, kill_sent=False, since=since):
            return since
        case _:
            return None


def watches_itself(times: WatchTimes, now: float) -> bool:
    """Check whether the stressor itself would notice a newcomer."""
    return now - times.stressor <= SELF_WATCH_TIMEOUT_S


def alternates(times: WatchTimes, now: float, config: Config) -> bool:
    """Check whether probe and stressor both read the memory, so that each may read half as often.

    Args:
        times: When the memory was last read.
        now: The time.
        config: The configuration, with the interval.
    """
    last = min(times.probe, times.stressor)
    return 2 * config.watch_interval <= MAX_ALTERNATION_S and now - last <= ALTERNATION_TIMEOUT_S


def blind_limit(gpu_state: GpuState, config: Config) -> float:
    """Return for how long the probe may not read a GPU whose stressor does not watch, in s."""
    if isinstance(gpu_state.stressor, Starting):
        return max(config.unwatched_after, STARTING_TIMEOUT_S)
    return config.unwatched_after


def unwatched_for(
    gpu_state: GpuState, times: WatchTimes, now: float, config: Config
) -> float | None:
    """Compute for how long a held GPU has not been watched, in seconds; None within the limit.

    Args:
        gpu_state: The GPU.
        times: When its memory was last read.
        now: The time.
        config: The configuration of this GPU, with the limit.
    """
    since = held_since(gpu_state)
    if since is None or watches_itself(times, now):
        return None
    blind = now - max(since, times.probe, times.stressor, times.supervised)
    return blind if blind > blind_limit(gpu_state, config) else None
