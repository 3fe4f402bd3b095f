"""Convert views and events into the rows of one transaction."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.api.history.usage import UsageTracker, Use
from sentinel.api.state.event_buffer import LoggedEvent
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

#: The maximum age of a GPU's figures.
MAX_AGE_S = 5.0
#: Events without further information: the readings have the same figures.
_NOT_RECORDED = {"gpu.status"}

Sample = tuple[float | None, ...]
#: The time since the epoch, the name, the UUID or None, the line.
EventRow = tuple[float, str, str | None, str]


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
    #: Uses, and whether each is current.
    uses: list[tuple[Use, bool]] = field(default_factory=list)
    #: Uses to delete, since another one replaces them.
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
        batch.uses = [(use, True) for use in self.uses.open]
        batch.uses += [(use, False) for use in self.uses.ended]
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
    is_fresh = view.read is not None and view.at - view.read < MAX_AGE_S
    telemetry = view.telemetry
    if telemetry is not None and view.at - telemetry.at >= MAX_AGE_S:
        telemetry = None
    busy = {"BUSY": 1, "IDLE": 0}.get(view.occupancy)
    figures: dict[str, float | None] = {
        "temperature_c": view.temperature_c if is_fresh else None,
        "power_w": view.power_w if is_fresh else None,
        "utilization": view.utilization if is_fresh else None,
        "memory_used": view.memory_used if is_fresh else None,
        "memory_foreign": view.memory_foreign if is_fresh else None,
        "sm_clock_mhz": view.sm_clock_mhz if is_fresh else None,
        "held": view.held,
        "share": view.share,
        "iterations_per_s": view.iterations_per_s,
        "flops_per_s": view.flops_per_s,
        "bytes_per_s": view.bytes_per_s,
        "busy": busy,
        "ours": int(view.stressor == "RUNNING"),
        "health": None if view.health is None else HEALTH_ORDER.index(view.health),
    }
    if telemetry is not None:
        for name in ("temperature_c", "power_w", "utilization", "sm_clock_mhz"):
            if figures[name] is None:
                figures[name] = getattr(telemetry, name)
        figures["memory_temperature_c"] = telemetry.memory_temperature_c
        figures["memory_utilization"] = telemetry.memory_utilization
    return tuple(figures.get(name) for name in SAMPLE_COLUMNS)
