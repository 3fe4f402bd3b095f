"""Convert views and events into the rows of one transaction, and track who uses which GPU.

Uses come from the views instead of events: an event may be lost, while a view a second has the
whole state again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sentinel.api.event_streams import LoggedEvent
from sentinel.protocol.views import GpuHealth, GpuView

#: Figures with a minimum and a maximum besides the mean.
RANGED = ("temperature_c", "power_w")
#: Figures with a mean. ``busy`` is 1 with a foreign process on the GPU, ``ours`` with a stressor.
MEANS = (
    "memory_temperature_c",
    "utilization",
    "memory_utilization",
    "memory_used",
    "held",
    "memory_foreign",
    "sm_clock_mhz",
    "share",
    "iterations_per_s",
    "flops_per_s",
    "bytes_per_s",
    "busy",
    "ours",
)
#: The columns of one reading, in order; health is an index of HEALTH_ORDER.
SAMPLE_COLUMNS = (*RANGED, *MEANS, "health")
#: From best to worst, so that the worst of a minute is the maximum.
HEALTH_ORDER = tuple(GpuHealth)

#: The figures of a view that are those of its last reading, and those that are always current.
_OF_READING = (*RANGED, "utilization", "memory_used", "memory_foreign", "sm_clock_mhz")
_CURRENT = ("held", "share", "iterations_per_s", "flops_per_s", "bytes_per_s")
#: The maximum age of a GPU's figures.
READING_MAX_AGE_S = 5.0
#: Events without further information: the readings have the same figures.
_NOT_RECORDED = {"gpu.status"}

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

Sample = tuple[float | None, ...]
#: The time since the epoch, the name, the UUID or None, the line.
EventRow = tuple[float, str, str | None, str]
#: Identifies one of the simultaneous uses of a GPU: whether it is a stressor, the PID, its start.
Key = tuple[bool, int | None, int | None]
_UNIDENTIFIED: Key = (False, None, None)


# --- uses -----------------------------------------------------------------------------------


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
        """Add a use that was current when it was written; it is seen again, or ends.

        One that was seen again before the file could be read began when this one did.
        """
        uses = self._open.setdefault(use.gpu, {})
        again = uses.get(use.key)
        if again is not None:
            self.replaced.append(again)
            use = replace(again, began=use.began, first=use.first)
        uses[use.key] = use

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


# --- batches --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedRecord:
    """A view or an event, and the clocks at its arrival."""

    record: GpuView | LoggedEvent
    #: The wall clock minus the monotonic clock.
    clock_offset: float


@dataclass
class Batch:
    """The rows of one transaction."""

    #: nvidia-smi's index and the name of each GPU, by UUID.
    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: The time since the epoch and the sample, by second of the monotonic clock and UUID.
    samples: dict[tuple[int, str], tuple[int, Sample]] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    #: Uses that are current, that have ended, and that another one replaces.
    current: list[Use] = field(default_factory=list)
    ended: list[Use] = field(default_factory=list)
    replaced: list[Use] = field(default_factory=list)


class Recorder:
    """Builds batches, and tracks the current uses."""

    def __init__(self) -> None:
        self.uses = UsageTracker()
        self._gpus: dict[str, tuple[int, str]] = {}
        self._last_number: int | None = None

    def build_batch(self, records: Sequence[TimedRecord], now: float) -> Batch:
        """Convert records, in their order; ``now`` is of the monotonic clock."""
        batch = Batch(gpus=self._gpus)
        for timed in records:
            match timed.record:
                case GpuView() as view:
                    self._gpus[view.uuid] = (view.index, view.name)
                    at = int(view.at + timed.clock_offset)
                    batch.samples[int(view.at), view.uuid] = (at, sample_of(view))
                    self.uses.update(view, timed.clock_offset)
                case LoggedEvent() as event:
                    self._add_event(batch, event, now + timed.clock_offset)
        self.uses.expire(now)
        batch.current, batch.ended = self.uses.open, self.uses.ended
        batch.replaced = self.uses.replaced
        self.uses.ended, self.uses.replaced = [], []
        return batch

    def _add_event(self, batch: Batch, event: LoggedEvent, arrival: float) -> None:
        """Add an event, and the count of missing events before it."""
        if self._last_number is not None and event.number > self._last_number + 1:
            lost = {"event": "lost", "count": event.number - self._last_number - 1}
            batch.events.append((arrival, "lost", None, json.dumps(lost)))
        self._last_number = event.number
        if "event" not in event.fields or event.name in _NOT_RECORDED:
            return
        time, gpu = arrival, event.fields.get("gpu")
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            time = datetime.fromisoformat(event.fields["time"]).timestamp()
        batch.events.append((time, event.name, gpu if isinstance(gpu, str) else None, event.text))


def sample_of(view: GpuView) -> Sample:
    """Extract the figures of a view; old ones are unknown."""
    is_fresh = view.read is not None and view.at - view.read < READING_MAX_AGE_S
    telemetry = view.telemetry
    if telemetry is not None and view.at - telemetry.at >= READING_MAX_AGE_S:
        telemetry = None
    figures: dict[str, float | None] = {
        name: getattr(view, name) for name in (*_CURRENT, *(_OF_READING if is_fresh else ()))
    }
    figures["busy"] = {"BUSY": 1, "IDLE": 0}.get(view.occupancy)
    figures["ours"] = int(view.stressor == "RUNNING")
    figures["health"] = None if view.health is None else HEALTH_ORDER.index(view.health)
    if telemetry is not None:
        for name in ("temperature_c", "power_w", "utilization", "sm_clock_mhz"):
            if figures.get(name) is None:
                figures[name] = getattr(telemetry, name)
        figures["memory_temperature_c"] = telemetry.memory_temperature_c
        figures["memory_utilization"] = telemetry.memory_utilization
    return tuple(figures.get(name) for name in SAMPLE_COLUMNS)
