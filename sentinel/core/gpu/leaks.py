"""What stays on a GPU when our stressor has gone, and nobody holds it: found, said, cleared. Pure.

Memory that no process holds, or a load that no process makes. The latter was seen on Blackwell
after a kill in mid-kernel, and went away when a context was opened and closed
(https://github.com/Datura-ai/lium-io/issues/1140). The same is tried on both.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.memory_accounting import SLACK, unattributed_memory
from sentinel.core.gpu.newcomer import OWN_LOAD
from sentinel.core.state import Busy, GpuState, Leak, Stopped, Stopping
from sentinel.protocol.gpu import GpuProcess, Reading

#: Memory of a context that NVML counts as used and names for no process: 9.2 MB on an H200.
CONTEXT_OVERHEAD = 16 * 2**20

#: A GPU that is used by this share of the time or more though nobody is on it has a ghost.
LATCHED = 0.95

#: For how long after our stressor's end a load is taken for its ghost, in seconds.
LOAD_WATCHED = 10.0

#: How often a context is opened and closed to clear a ghost, and the pause before the first time in
#: seconds, which is four times as long before each next.
MOST_CLEARINGS = 3
FIRST_PAUSE = 5.0


def remains(
    gpu_state: GpuState,
    stopping: Stopping,
    others: tuple[GpuProcess, ...],
    reading: Reading,
    now: float,
) -> tuple[GpuState, list[Event]]:
    """Note what memory stays in use by no process after the end of a stressor.

    Where all processes are listed that is a ghost, and said; elsewhere it is somebody.

    Args:
        gpu_state: The GPU, without the stressor.
        stopping: The stressor that was there.
        others: Who is there now and is not let be.
        reading: A reading stamped after the stressor's exit, without it.
        now: The time.
    """
    if any(process.memory is None for process in others):
        return gpu_state, []
    left = unattributed_memory(reading) - stopping.unattributed
    if left <= SLACK + CONTEXT_OVERHEAD * len(reading.processes or ()):
        return gpu_state, []
    gpu_state = replace(gpu_state, leak=replace(gpu_state.leak, unattributed=stopping.unattributed))
    if not gpu_state.identity.complete:
        return gpu_state, []
    return gpu_state, [gpu_event("gpu.memory_leaked", gpu_state, now, bytes=left, utilization=None)]


def watch(gpu_state: GpuState, reading: Reading | None, now: float) -> tuple[GpuState, list[Event]]:
    """Notice a load without anybody, and forget a ghost that is gone."""
    if reading is None or reading.memory is None or not isinstance(gpu_state.stressor, Stopped):
        return gpu_state, []
    leak, events = gpu_state.leak, []
    contexts = CONTEXT_OVERHEAD * len(reading.processes or ())
    if (
        leak.unattributed is not None
        and unattributed_memory(reading) <= leak.unattributed + SLACK + contexts
    ):
        leak = replace(leak, unattributed=None)
    share = reading.utilization
    if share is not None and share < LATCHED:
        leak = replace(leak, load=False)
    elif share is not None and not leak.load and _must_be_ours(gpu_state, reading):
        leak = replace(leak, load=True)
        events.append(gpu_event("gpu.memory_leaked", gpu_state, now, bytes=0, utilization=share))
    if leak.unattributed is None and not leak.load:
        leak = Leak()
    return (gpu_state if leak == gpu_state.leak else replace(gpu_state, leak=leak)), events


def may_have_load(gpu_state: GpuState, now: float) -> bool:
    """Return whether the utilisation must be known to find a ghost or to see it go."""
    recent = now - gpu_state.ended <= LOAD_WATCHED
    return isinstance(gpu_state.stressor, Stopped) and (recent or gpu_state.leak.load)


def _must_be_ours(gpu_state: GpuState, reading: Reading) -> bool:
    """Return whether nobody else can be the reason of a load: a while after us, and all listed."""
    after = reading.at - gpu_state.ended
    return (
        gpu_state.identity.complete
        and reading.processes == ()
        and OWN_LOAD <= after <= LOAD_WATCHED
    )


def clearing_due(gpu_state: GpuState, reading: Reading | None, config: Config) -> float | None:
    """Return when a context is to be opened and closed on a GPU; ``None`` where never.

    Only while nobody at all is there, and so often.
    """
    haunted = isinstance(gpu_state.occupancy, Busy) and gpu_state.occupancy.rule == "leak"
    if not haunted or not isinstance(gpu_state.stressor, Stopped) or config.dry_run:
        return None
    if reading is None or reading.processes != () or gpu_state.leak.clearings >= MOST_CLEARINGS:
        return None
    return gpu_state.ended + FIRST_PAUSE * 4.0**gpu_state.leak.clearings
