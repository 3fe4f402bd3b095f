"""Track the uses of GPUs by processes, from the supervisor's views. Pure.

Views instead of events: an event may be lost, while a view a second has the whole state again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.protocol.views import GpuView

#: A use that is not seen for this long ended when it was seen last. A shorter gap continues it: the
#: API process was replaced, or the GPU could not be read.
MAX_GAP_S = 30.0
#: The maximum age of a view: a use that is not in it ended just now.
_MAX_VIEW_AGE_S = 2.0
#: Memory is the first evidence of a newcomer. A process that is listed within this time is that
#: newcomer.
_IDENTIFICATION_S = 10.0

#: The states in which a stressor is on its GPU.
_ON_GPU = {"STARTING", "RUNNING", "STOPPING"}
#: Rules by which a GPU is busy without a process.
_RULES_WITHOUT_PROCESS = {"exclusive", "mig", "display", "leak"}

#: Identifies one of the simultaneous uses of a GPU: whether it is a stressor, the PID, its start.
Key = tuple[bool, int | None, int | None]
_UNIDENTIFIED: Key = (False, None, None)


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a GPU by one process."""

    gpu: str
    index: int
    key: Key
    #: The name of the process, or None if it is not known; then the PID may be unknown, too.
    who: str | None
    user: str | None
    #: In seconds since the epoch.
    began: float
    #: When it was seen first and last, of the monotonic clock: the wall clock may jump.
    first: float
    seen: float

    @property
    def until(self) -> float:
        """When it was seen last, on the clock of ``began``."""
        return self.began + self.seen - self.first


class UsageTracker:
    """All current uses."""

    def __init__(self) -> None:
        self._open: dict[str, dict[Key, Use]] = {}
        #: Ended uses, until the caller takes them.
        self.ended: list[Use] = []
        #: Uses whose process was identified, which another use replaces; until the caller takes
        #: them.
        self.replaced: list[Use] = []

    @property
    def open(self) -> list[Use]:
        """The current uses."""
        return [use for uses in self._open.values() for use in uses.values()]

    def resume(self, use: Use) -> None:
        """Add a use that was current when it was written; it is seen again, or ends."""
        self._open.setdefault(use.gpu, {}).setdefault(use.key, use)

    def update(self, view: GpuView, clock_offset: float) -> None:
        """Update the uses of a GPU.

        Args:
            view: The GPU's view.
            clock_offset: The wall clock minus the monotonic clock.
        """
        before = self._open.get(view.uuid, {})
        present = _uses(view, clock_offset)
        is_unreadable = view.occupancy == "UNKNOWN"
        after: dict[Key, Use] = {}
        unidentified = before.get(_UNIDENTIFIED)
        for key, use in before.items():
            if key in present:
                new = present.pop(key)
                who, user = new.who or use.who, new.user or use.user
                after[key] = replace(use, seen=new.seen, who=who, user=user)
            elif is_unreadable and not key[0] and view.at - use.seen < MAX_GAP_S:
                after[key] = use  # it may still be there
            elif not (use is unidentified and self._identify(use, present)):
                self._end(use, view.at)
        self._open[view.uuid] = after | present

    def expire(self, now: float) -> None:
        """End uses that were not seen for MAX_GAP_S, of the monotonic clock: there are no views."""
        for uses in self._open.values():
            for key in [key for key, use in uses.items() if now - use.seen > MAX_GAP_S]:
                self._end(uses.pop(key), now)

    def _identify(self, unidentified: Use, present: dict[Key, Use]) -> bool:
        """Give processes that were listed soon after an unidentified use its begin.

        Returns:
            Whether there are such processes.
        """
        new = [key for key, use in present.items() if not key[0]]
        if not new or unidentified.seen - unidentified.first > _IDENTIFICATION_S:
            return False
        for key in new:
            present[key] = replace(present[key], began=unidentified.began, first=unidentified.first)
        self.replaced.append(unidentified)
        return True

    def _end(self, use: Use, now: float) -> None:
        if now - use.seen < _MAX_VIEW_AGE_S:
            use = replace(use, seen=max(now, use.seen))
        self.ended.append(use)


def _uses(view: GpuView, clock_offset: float) -> dict[Key, Use]:
    """List the uses in a view, as if each began now."""
    found: dict[Key, tuple[str | None, str | None]] = {}
    if view.pid is not None and view.stressor in _ON_GPU:
        found[True, view.pid, None] = ("sentinel", None)
    for process in (*view.processes, *view.allocated_processes):
        found[False, process.pid, process.started] = (process.name, process.user)
    has_unlisted = view.occupancy == "BUSY" and not view.processes
    if has_unlisted and view.rule not in _RULES_WITHOUT_PROCESS:
        found[_UNIDENTIFIED] = (None, None)
    return {
        key: Use(
            gpu=view.uuid,
            index=view.index,
            key=key,
            who=who,
            user=user,
            began=view.at + clock_offset,
            first=view.at,
            seen=view.at,
        )
        for key, (who, user) in found.items()
    }
