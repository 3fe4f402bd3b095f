"""Find, report and clear memory or load that remains after a stressor. Pure.

Such memory or load belongs to no process. The load was seen on Blackwell after a kill in
mid-kernel, and disappeared when a context was opened and closed
(https://github.com/Datura-ai/lium-io/issues/1140). The same is tried for memory.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.attribution import CONTEXT_OVERHEAD_BYTES, SLACK_BYTES
from sentinel.core.gpu.newcomer import OWN_LOAD_S
from sentinel.core.gpu_state import GpuState, Leak
from sentinel.core.step import Step
from sentinel.core.stressor_state import Stopped, Stopping
from sentinel.protocol.gpu import Reading

#: A GPU without processes that is used by this share of the time or more has a leaked load.
LEAKED_LOAD = 0.95

#: A leak is reported once readings over so many seconds show it. The used memory and the process
#: list of a reading are not of one moment, and the memory of a newcomer appears some 120 ms before
#: it is listed (on an H200). The utilization is that of up to a second before.
CONFIRM_S = 1.0

#: A load counts as leaked only within so long after the end of a stressor, in seconds.
LOAD_WATCH_S = 10.0

#: How often a context is opened and closed to clear a leak, and the pause before the first time in
#: seconds, which is four times as long before each next.
MAX_CLEARINGS = 3
FIRST_PAUSE_S = 5.0


def detect(gpu_state: GpuState, stopping: Stopping, reading: Reading, now: float) -> GpuState:
    """Record the memory that no process holds after the end of a stressor.

    Args:
        gpu_state: The GPU without the stressor, with the attribution of ``reading``.
        stopping: The stressor that ended.
        reading: A reading stamped after the stressor's exit, without it.
        now: The time of this tick.
    """
    left = gpu_state.attribution.unattributed - stopping.unattributed
    if not _is_measurable(gpu_state, reading) or left <= _allowance(reading):
        return gpu_state
    leak = replace(gpu_state.leak, unattributed=stopping.unattributed, since=now, reported=False)
    return replace(gpu_state, leak=leak)


def update(gpu_state: GpuState, reading: Reading | None, now: float) -> Step[GpuState]:
    """Report leaked memory once it is confirmed, detect a leaked load, and forget what is gone.

    Memory is reported where every process is listed; elsewhere an unlisted process may hold it.
    """
    if reading is None or reading.memory is None or not isinstance(gpu_state.stressor, Stopped):
        return Step(gpu_state)
    leak, events = gpu_state.leak, list[Event]()
    if leak.unattributed is not None:
        left = gpu_state.attribution.unattributed - leak.unattributed
        if left <= _allowance(reading):
            leak = replace(leak, unattributed=None)
        elif (
            not leak.reported
            and reading.at - leak.since >= CONFIRM_S
            and gpu_state.identity.complete
            and _is_measurable(gpu_state, reading)
        ):
            leak = replace(leak, reported=True)
            events.append(
                gpu_event("gpu.memory_leaked", gpu_state, now, bytes=left, utilization=None)
            )
    leak, found = _follow_load(gpu_state, leak, reading)
    if found:
        share = reading.utilization
        events.append(gpu_event("gpu.memory_leaked", gpu_state, now, bytes=0, utilization=share))
    if leak.unattributed is None and not leak.load and leak.load_since is None:
        leak = Leak()
    gpu_state = gpu_state if leak == gpu_state.leak else replace(gpu_state, leak=leak)
    return Step(gpu_state, events=tuple(events))


def _follow_load(gpu_state: GpuState, leak: Leak, reading: Reading) -> tuple[Leak, bool]:
    """Detect a leaked load once it is confirmed; return whether it was detected just now."""
    share = reading.utilization
    if share is None:
        return leak, False
    if leak.load:
        return (leak if share >= LEAKED_LOAD else replace(leak, load=False, load_since=None)), False
    if not (share >= LEAKED_LOAD and _is_leaked_load(gpu_state, reading)):
        return replace(leak, load_since=None), False
    if leak.load_since is None:
        return replace(leak, load_since=reading.at), False
    if reading.at - leak.load_since < CONFIRM_S:
        return leak, False
    return replace(leak, load=True), True


def needs_utilization(gpu_state: GpuState, now: float) -> bool:
    """Check whether the utilisation must be read to find a leaked load or its end."""
    recent = now - gpu_state.ended <= LOAD_WATCH_S
    return isinstance(gpu_state.stressor, Stopped) and (recent or gpu_state.leak.load)


def clearing_due(gpu_state: GpuState, reading: Reading | None, config: Config) -> float | None:
    """Compute when to open and close a context to clear a leak; None for never.

    Only while no process is listed, and a limited number of times.
    """
    if not gpu_state.leaks or not isinstance(gpu_state.stressor, Stopped) or config.dry_run:
        return None
    if reading is None or reading.processes != () or reading.omitted_processes:
        return None
    if gpu_state.leak.clearings >= MAX_CLEARINGS:
        return None
    return gpu_state.ended + FIRST_PAUSE_S * 4.0**gpu_state.leak.clearings


def _is_measurable(gpu_state: GpuState, reading: Reading) -> bool:
    """Check that the memory of every process is known."""
    unknown = any(process.memory is None for process in gpu_state.attribution.foreign)
    return not unknown and not reading.omitted_processes


def _is_leaked_load(gpu_state: GpuState, reading: Reading) -> bool:
    """Check that no process can cause a load: all are listed, and the stressor's load is over."""
    after = reading.at - gpu_state.ended
    return (
        gpu_state.identity.complete
        and reading.processes == ()
        and not reading.omitted_processes
        and OWN_LOAD_S <= after <= LOAD_WATCH_S
    )


def _allowance(reading: Reading) -> int:
    """Compute how much unattributed memory the listed processes' contexts explain, in bytes."""
    return SLACK_BYTES + CONTEXT_OVERHEAD_BYTES * len(reading.processes or ())
