"""Has somebody come to a GPU that we hold? What each witness says. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import outstanding
from sentinel.core.gpu.ignored_processes import let_be
from sentinel.core.gpu.memory_accounting import OVERHEAD, SLACK, idle_memory, unattributed_memory
from sentinel.core.identity import is_ours
from sentinel.core.state import Busy, Evidence, EvidenceKind, GpuState, Idle, Running, Starting
from sentinel.protocol.gpu import Reading

#: For so long after a stressor of ours, a GPU's utilisation tells of that, in seconds: NVML's
#: sampling period is up to a second, and the reading that shows it may be as old.
OWN_LOAD = 2.0

#: For so long growth waits for the list of processes that goes with it, in seconds, where somebody
#: who is let be may be the one that grows. The list takes 0.1 ms to read, or far longer while a
#: newcomer's context is made.
PAIRING = 0.01


def newcomer(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Evidence | None:
    """Return the first evidence of somebody else on a GPU on which our child lives.

    Two witnesses: the process list, and memory that grew although our child is steady. Memory tells
    from RUNNING on, and before that while the child has not begun to create its context. Where the
    list may leave somebody out, it still tells how much is our child's, who looks out itself while
    it takes its memory; and there is a third witness: who computes.
    """
    if reading is None or reading.fault is not None or reading.memory is None:
        return None
    grown = _grown(gpu_state, reading, reading.memory.used, now, config)
    grown = max(grown, _beside(gpu_state, reading))
    busy = isinstance(gpu_state.occupancy, Busy) and gpu_state.occupancy.rule != "leak"
    by = gpu_state.occupancy.processes if isinstance(gpu_state.occupancy, Busy) else ()
    if grown > SLACK:
        return Evidence(
            kind=EvidenceKind.MEMORY, at=reading.at, took=reading.took, grown=grown, processes=by
        )
    if busy:
        return Evidence(
            kind=EvidenceKind.PROCESS, at=reading.processes_at, took=reading.took, processes=by
        )
    if _others_compute(gpu_state, reading):
        return Evidence(kind=EvidenceKind.COMPUTING, at=reading.at, took=reading.took)
    return None


def _grown(gpu_state: GpuState, reading: Reading, used: int, now: float, config: Config) -> int:
    """Return how many bytes are in use that neither our child nor what was there explains."""
    match gpu_state.stressor:
        case Starting(contention=int(contention)):
            return contention
        case Starting(attaching=False, baseline=baseline):
            return used - baseline - outstanding(gpu_state, reading)
        case Running(expected=int(expected), spared=spared) as running:
            spared_now = _spared_memory(gpu_state, reading, running, config)
            # What guests are still to take, they may be taking: who else comes is listed soon.
            grown = used - expected - max(0, spared_now - spared) - outstanding(gpu_state, reading)
            if grown > SLACK and _waits_for_the_list(running, reading, spared_now, now):
                return 0
            if grown <= SLACK and not gpu_state.identity.complete:
                # Only now may it be known that the list is not to be trusted: was the GPU idle?
                unattributed = running.unattributed
                return unattributed if unattributed > idle_memory(gpu_state, config) else grown
            return grown
        case _:
            return 0  # our child's own memory grows


def free_beside_stressor(gpu_state: GpuState, reading: Reading, config: Config) -> int | None:
    """Return how many bytes are free beside our child and all that is explained besides.

    ``None`` while it is not known yet how much our child takes.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running) or running.expected is None or reading.memory is None:
        return None
    spared = _spared_memory(gpu_state, reading, running, config)
    explained = running.expected + max(0, spared - running.spared)
    return reading.memory.free + reading.memory.used - explained


def _beside(gpu_state: GpuState, reading: Reading) -> int:
    """Return how many bytes there are beside our child where NVML says how many it holds, or 0.

    For lists that may leave somebody out; what is there counts and not what grew, so it tells of
    those, too, who came while our child took its own memory.
    """
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running) or gpu_state.identity.complete:
        return 0
    if not gpu_state.child_is_listed:
        return 0  # what is taken for it may be somebody else
    if reading.memory is None or reading.at + reading.took > reading.processes_at:
        return 0  # our child may have grown since it was listed
    own = [process.memory for process in reading.processes or () if is_ours(process, live.child)]
    if not any(own):
        return 0
    beside = unattributed_memory(reading) - live.unattributed
    return beside if beside > OVERHEAD else 0


def _spared_memory(gpu_state: GpuState, reading: Reading, running: Running, config: Config) -> int:
    """Return how many bytes NVML says that those hold who are let be."""
    others = tuple(p for p in reading.processes or () if not is_ours(p, running.child))
    if not others:
        return 0
    spared = let_be(gpu_state, others, reading.processes_at, config)
    return sum(process.memory or 0 for process in others if process.pid in spared)


def _waits_for_the_list(running: Running, reading: Reading, spared: int, now: float) -> bool:
    """Return whether the processes that were listed last are older than the growth, by little."""
    if not spared or reading.processes_at >= reading.at:
        return False
    return running.grown_at is None or now < running.grown_at + PAIRING


def expect(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> GpuState:
    """Learn the used memory to expect from the first reading after Ready.

    Others may free what they held before us, so a lower figure lowers it, by no more than that. The
    same goes for what those hold who are let be. It is noted since when there is growth.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running) or reading is None or reading.memory is None:
        return gpu_state
    used = reading.memory.used
    spared = _spared_memory(gpu_state, reading, running, config)
    if running.expected is None:
        paired = not spared or reading.processes_at > running.since
        if reading.at <= running.since or not paired or not isinstance(gpu_state.occupancy, Idle):
            return gpu_state
        return replace(gpu_state, stressor=replace(running, expected=used, spared=spared))
    baseline, expected = running.baseline, running.expected
    if expected - baseline <= used < expected:
        baseline, expected = baseline - (expected - used), used
    grown_at = None
    if used > expected + SLACK:
        grown_at = now if running.grown_at is None else running.grown_at
    spared = min(spared, running.spared)
    if (expected, spared, grown_at) == (running.expected, running.spared, running.grown_at):
        return gpu_state
    running = replace(
        running, baseline=baseline, expected=expected, spared=spared, grown_at=grown_at
    )
    return replace(gpu_state, stressor=running)


def _others_compute(gpu_state: GpuState, reading: Reading) -> bool:
    """Return whether more processes compute than are ours, on a GPU where not all are listed.

    The driver names who computes by PIDs of the host, which do not tell ours from others; so they
    are counted.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running) or gpu_state.identity.complete or reading.computing is None:
        return False
    if reading.at < running.since + OWN_LOAD:
        return False
    own = sum(is_ours(process, running.child) for process in reading.processes or ())
    return len(set(reading.computing)) > max(1, own)
