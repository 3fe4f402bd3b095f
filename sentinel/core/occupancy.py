"""Decide who uses a GPU by its latest reading. Pure."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.attribution import SLACK_BYTES, idle_memory, outstanding
from sentinel.core.gpu_state import (
    NOT_READ,
    Busy,
    GpuState,
    Idle,
    Occupancy,
    Unknown,
)
from sentinel.core.newcomer import OWN_LOAD_S
from sentinel.protocol.gpu import Reading

#: How late a slow poll may be, in seconds: a call that takes longer hangs.
LATE_S = 3.0


def occupancy(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Occupancy:
    """Decide who uses a GPU by the latest reading.

    Args:
        gpu_state: The GPU with the attribution of this reading; an unbroken idle time keeps its
            beginning.
        reading: The latest reading, or None before the first.
        now: The time of this tick.
        config: The configuration of this GPU.
    """
    unknown = _why_unknown(gpu_state, reading, now, config)
    if unknown is not None or reading is None:
        return Unknown(reason=unknown or NOT_READ)
    if reading.exclusive:
        return Busy(
            rule="exclusive",
            reason="its compute mode is exclusive: a newcomer could not even start",
        )
    if reading.mig:
        return Busy(rule="mig", reason="MIG is enabled")
    if reading.display and config.yield_to == "all":
        return Busy(rule="display", reason="a display is active on it")
    foreign = gpu_state.attribution.foreign
    if foreign or reading.omitted_processes:
        more = reading.omitted_processes
        reason = "used by foreign processes"
        if more:
            reason += f", {more} of them not listed"
        return Busy(rule="process", reason=reason, processes=foreign)
    if gpu_state.child is None or gpu_state.launch.clearing:
        busy = _used_by_no_process(gpu_state, reading, config)
        if busy is not None:
            return busy
    if isinstance(gpu_state.occupancy, Idle):
        return gpu_state.occupancy
    return Idle(since=reading.at)


def stale_at(gpu_state: GpuState, reading: Reading, config: Config) -> float:
    """Compute when a reading says nothing any more.

    A GPU without a child may be read at the slow poll. A start needs a fresh reading besides.
    """
    limit = config.stale_after
    if not gpu_state.is_held:
        limit = max(limit, config.poll + LATE_S)
    return min(reading.at, reading.processes_at) + limit


def _used_by_no_process(gpu_state: GpuState, reading: Reading, config: Config) -> Busy | None:
    """Check memory, compute activity and utilization of a GPU without any listed process."""
    return (
        _unattributed_memory(gpu_state, config)
        or _unlisted_compute(gpu_state, reading)
        or _utilization(gpu_state, reading, config)
    )


def _unattributed_memory(gpu_state: GpuState, config: Config) -> Busy | None:
    """Compare the unattributed memory with a leak and with ``idle.memory``."""
    # The first memory of an allocated process appears before the process is listed.
    unattributed = max(0, gpu_state.attribution.unattributed - outstanding(gpu_state))
    before = gpu_state.leak.unattributed
    left = before is not None and unattributed > before + SLACK_BYTES
    if left and gpu_state.identity.complete:
        reason = "memory is still in use by no process since the last stressor ended"
        return Busy(rule="leak", reason=reason)
    if gpu_state.leak.load:
        reason = "it is used all the time by no process since the last stressor ended"
        return Busy(rule="leak", reason=reason)
    if left or unattributed > idle_memory(gpu_state, config):
        reason = "memory is in use that no listed process accounts for (idle.memory)"
        return Busy(rule="idle.memory", reason=reason)
    return None


def _unlisted_compute(gpu_state: GpuState, reading: Reading) -> Busy | None:
    """Check for computing processes that are not listed, after the stressor's own load is over."""
    if not reading.computing or gpu_state.identity.complete:
        return None
    if reading.at < gpu_state.ended + OWN_LOAD_S:
        return None
    pids = ", ".join(map(str, reading.computing))
    return Busy(rule="computing", reason=f"used by an unlisted process (the host's PID {pids})")


def _utilization(gpu_state: GpuState, reading: Reading, config: Config) -> Busy | None:
    """Compare the utilization with ``idle.utilization``, after the stressor's own load is over."""
    if config.idle_utilization is None or reading.at < gpu_state.ended + OWN_LOAD_S:
        return None
    if reading.utilization is None or not 0 <= reading.utilization <= 1:  # NaN is not either
        reason = "its utilization cannot be read (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    if reading.utilization >= config.idle_utilization:
        reason = f"it is used {reading.utilization:.0%} of the time (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    return None


def _why_unknown(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> str | None:
    """Explain why a reading is unusable, or return None if it is usable."""
    if reading is None:
        return NOT_READ
    if reading.fault is not None:
        return reading.fault
    if reading.memory is None or reading.processes is None:
        return "its memory or its processes could not be read"
    memory = reading.memory
    if not memory.plausible:
        parts = f"{memory.used} used and {memory.free} free of {memory.total} bytes"
        return f"the figures for its memory make no sense: {parts}"
    if max(reading.at, reading.processes_at) > now:  # it would never become stale
        return "the time of its reading is in the future"
    if now >= stale_at(gpu_state, reading, config):
        return f"not read for {age_s(reading, now):.1f} s"
    return None


def age_s(reading: Reading, now: float) -> float:
    """Compute the age of a reading: of its older part, in seconds."""
    return now - min(reading.at, reading.processes_at)
