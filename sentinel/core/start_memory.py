"""Judge the memory of a GPU whose stressor starts by what that has announced. Pure.

A stressor that starts grows by itself. It announces each stage with what that takes; the rest is a
newcomer's. The code of a workload runs in the same process and could announce anything, so what an
announcement can explain is bounded by the target, and only for a while.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.attribution import CONTEXT_BYTES, outstanding
from sentinel.core.gpu_state import GpuState, Starting
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import GROWTH_SLACK_BYTES, Announcement, StartStage, size_in_chunks

#: What kernels and libraries may take beside a context, in bytes: 192 MiB for ``gemm`` on an H200.
LIBRARY_BYTES = 256 * 2**20

#: For how long an announcement explains growth, in seconds. To take 88 % of an H200 takes 0.2 s,
#: and a busy host needs longer; a newcomer has its memory after half a second.
VALID_S = 2.0


def most_memory(reading: Reading, config: Config) -> int:
    """Compute the used memory that no announcement of a start can explain more than, in bytes."""
    if reading.memory is None:
        return 0
    free, target = reading.memory.free, config.memory
    asked = int(free * target.share) if target.share is not None else min(target.size or 0, free)
    beside = CONTEXT_BYTES + LIBRARY_BYTES
    return reading.memory.used + size_in_chunks(asked, config.chunk) + beside


def begin_stage(starting: Starting, message: Announcement, now: float) -> Starting:
    """Record what a stressor does next; no stage begins again, and none lasts longer by a message.

    A rehearsal may announce that it takes more.
    """
    said, stages = starting.announced, list(StartStage)
    if said is not None and stages.index(message.stage) <= stages.index(said.stage):
        if message.stage is said.stage is StartStage.REHEARSING:
            return replace(starting, announced=message)
        return starting
    return replace(starting, announced=message, announced_at=now, level=message.used or 0)


def follow(gpu_state: GpuState, starting: Starting, reading: Reading, now: float) -> GpuState:
    """Record the used memory that was explained while the announcement was valid."""
    used = explained(gpu_state, starting, now)
    if used is None or reading.memory is None or reading.at < starting.announced_at:
        return gpu_state
    level = max(starting.level, min(reading.memory.used, used))
    if level == starting.level or now > starting.announced_at + VALID_S:
        return gpu_state
    return replace(gpu_state, stressor=replace(starting, level=level))


def grown(gpu_state: GpuState, starting: Starting, reading: Reading, used: int, now: float) -> int:
    """Compute the used memory that neither the start nor the state before explains, in bytes.

    A reading from before the announcement may have memory of the stage before, which is free now;
    the next one is only milliseconds away.
    """
    if starting.attaching is None:
        return used - gpu_state.launch.baseline - outstanding(gpu_state)
    known = explained(gpu_state, starting, now)
    if known is not None and starting.announced is not None and reading.at < starting.announced_at:
        known = gpu_state.launch.most
    return 0 if known is None else used - known


def explained(gpu_state: GpuState, starting: Starting, now: float) -> int | None:
    """Compute the used memory that the start explains, in bytes.

    Returns:
        None where it explains any: an own workload that prepares takes what it likes, and other
        processes may; then only the list of processes shows a newcomer.
    """
    if not is_exact(gpu_state):
        return None
    said, launch = starting.announced, gpu_state.launch
    if said is None:
        known = launch.baseline + CONTEXT_BYTES
    elif said.stage is StartStage.REHEARSING:
        known = launch.baseline + CONTEXT_BYTES + said.more
    elif said.used is None:
        return None
    elif now > starting.announced_at + VALID_S:
        known = max(said.used, starting.level)
    else:
        known = said.used + said.more
    return min(known, launch.most)


def is_exact(gpu_state: GpuState) -> bool:
    """Check that nothing beside a stressor may grow but a newcomer."""
    return not gpu_state.attribution.may_grow and not gpu_state.allocations


def level_at_ready(gpu_state: GpuState, now: float) -> int | None:
    """Compute the used memory beyond which a newcomer is there right after Ready, in bytes.

    Returns:
        None where the start did not announce all that it took.
    """
    starting = gpu_state.stressor
    if not isinstance(starting, Starting) or starting.announced is None:
        return None
    said = starting.announced
    if said.stage is not StartStage.PREPARING or said.more or said.used is None:
        return None
    known = explained(gpu_state, starting, now)
    return None if known is None else known + GROWTH_SLACK_BYTES
