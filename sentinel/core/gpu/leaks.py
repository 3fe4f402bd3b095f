"""What stays on a GPU when our stressor has gone, and nobody holds it: found, said, cleared. Pure.

Memory that no process holds, or a load that no process makes. The latter was seen on Blackwell
after a kill in mid-kernel, and went away when a context was opened and closed
(https://github.com/Datura-ai/lium-io/issues/1140). The same is tried on both.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import slot_event
from sentinel.core.gpu.memory_accounting import SLACK, nobodys_memory
from sentinel.core.gpu.newcomer import OWN_LOAD
from sentinel.core.state import Busy, Ghost, Slot, Stopped, Stopping
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
    slot: Slot, stopping: Stopping, others: tuple[GpuProcess, ...], reading: Reading, now: float
) -> tuple[Slot, list[Event]]:
    """Note what memory stays in use by no process after the end of a stressor.

    Where all processes are listed that is a ghost, and said; elsewhere it is somebody.

    Args:
        slot: The GPU, without the stressor.
        stopping: The stressor that was there.
        others: Who is there now and is not let be.
        reading: A reading stamped after the stressor's exit, without it.
        now: The time.
    """
    if any(process.memory is None for process in others):
        return slot, []
    left = nobodys_memory(reading) - stopping.unnamed
    if left <= SLACK + CONTEXT_OVERHEAD * len(reading.processes or ()):
        return slot, []
    slot = replace(slot, ghost=replace(slot.ghost, unnamed=stopping.unnamed))
    if not slot.identity.complete:
        return slot, []
    return slot, [slot_event("gpu.ghost", slot, now, bytes=left, utilization=None)]


def watch(slot: Slot, reading: Reading | None, now: float) -> tuple[Slot, list[Event]]:
    """Notice a load without anybody, and forget a ghost that is gone."""
    if reading is None or reading.memory is None or not isinstance(slot.stressor, Stopped):
        return slot, []
    ghost, events = slot.ghost, []
    contexts = CONTEXT_OVERHEAD * len(reading.processes or ())
    if ghost.unnamed is not None and nobodys_memory(reading) <= ghost.unnamed + SLACK + contexts:
        ghost = replace(ghost, unnamed=None)
    share = reading.utilization
    if share is not None and share < LATCHED:
        ghost = replace(ghost, load=False)
    elif share is not None and not ghost.load and _must_be_ours(slot, reading):
        ghost = replace(ghost, load=True)
        events.append(slot_event("gpu.ghost", slot, now, bytes=0, utilization=share))
    if ghost.unnamed is None and not ghost.load:
        ghost = Ghost()
    return (slot if ghost == slot.ghost else replace(slot, ghost=ghost)), events


def may_have_load(slot: Slot, now: float) -> bool:
    """Return whether the utilisation must be known to find a ghost or to see it go."""
    recent = now - slot.ended <= LOAD_WATCHED
    return isinstance(slot.stressor, Stopped) and (recent or slot.ghost.load)


def _must_be_ours(slot: Slot, reading: Reading) -> bool:
    """Return whether nobody else can be the reason of a load: a while after us, and all listed."""
    after = reading.at - slot.ended
    return slot.identity.complete and reading.processes == () and OWN_LOAD <= after <= LOAD_WATCHED


def clearing_due(slot: Slot, reading: Reading | None, config: Config) -> float | None:
    """Return when a context is to be opened and closed on a GPU; ``None`` where never.

    Only while nobody at all is there, and so often.
    """
    haunted = isinstance(slot.occupancy, Busy) and slot.occupancy.rule == "ghost"
    if not haunted or not isinstance(slot.stressor, Stopped) or config.dry_run:
        return None
    if reading is None or reading.processes != () or slot.ghost.clearings >= MOST_CLEARINGS:
        return None
    return slot.ended + FIRST_PAUSE * 4.0**slot.ghost.clearings
