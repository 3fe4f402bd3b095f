"""What is kept of views and events, as the rows of one transaction."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.api.history.usage import Use, Uses
from sentinel.protocol.views import GpuHealth, GpuView, LogRecord

#: Of these the least and the most are kept as well.
RANGED = ("temperature_c", "power_w")
#: Of these the mean is kept. ``busy`` is 1 where somebody else uses the GPU, ``ours`` where we do.
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
#: The columns of one reading, in their order; of the health its place in CONDITIONS.
SAMPLE = (*RANGED, *MEANS, "health")
#: From the best to the worst, so that the worst of a minute is the greatest.
CONDITIONS = tuple(GpuHealth)

#: Figures of a GPU that are older, in seconds, are not known any more.
STALE = 5.0
#: Said of each GPU every minute, and nothing in it that the readings do not have.
_NOT_KEPT = {"gpu.status"}

Sample = tuple[float | None, ...]
PastLine = tuple[float, str, str | None, str]


@dataclass(frozen=True)
class Noted:
    """A view or an event, and by how much the wall's clock was ahead of the monotonic one then."""

    what: GpuView | LogRecord
    ahead: float


@dataclass
class Batch:
    """What one transaction writes.

    Attributes:
        gpus: nvidia-smi's index and the name of each GPU, by UUID.
        samples: By second of the monotonic clock and UUID: seconds since the epoch, and SAMPLE.
        events: Seconds since the epoch, the name, the UUID if it is about a GPU, the line.
        uses: Those that go on, and those that ended.
        renamed: Uses that are to be forgotten.
    """

    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)
    samples: dict[tuple[int, str], tuple[int, Sample]] = field(default_factory=dict)
    events: list[PastLine] = field(default_factory=list)
    uses: list[tuple[Use, bool]] = field(default_factory=list)
    renamed: list[Use] = field(default_factory=list)


class Recorder:
    """Makes rows of what came, and remembers what goes on.

    Attributes:
        uses: Who uses which GPU.
    """

    def __init__(self) -> None:
        self.uses = Uses()
        self._gpus: dict[str, tuple[int, str]] = {}
        self._last: int | None = None

    def digest(self, noted: Sequence[Noted], now: float) -> Batch:
        """Return the rows of what came in this order; ``now`` is of the monotonic clock."""
        batch = Batch(gpus=self._gpus)
        for one in noted:
            match one.what:
                case GpuView() as view:
                    self._gpus[view.uuid] = (view.index, view.name)
                    at = int(view.at + one.ahead)
                    batch.samples[int(view.at), view.uuid] = (at, sample(view))
                    self.uses.see(view, one.ahead)
                case LogRecord() as said:
                    self._say(batch, said, now + one.ahead)
        self.uses.expire(now)
        batch.uses = [(use, True) for use in self.uses.open]
        batch.uses += [(use, False) for use in self.uses.ended]
        batch.renamed = self.uses.renamed
        self.uses.ended, self.uses.renamed = [], []
        return batch

    def _say(self, batch: Batch, said: LogRecord, wall: float) -> None:
        """Take in an event, and how many were lost before it if so."""
        if self._last is not None and said.number > self._last + 1:
            lost = {"event": "lost", "count": said.number - self._last - 1}
            batch.events.append((wall, "lost", None, json.dumps(lost)))
        self._last = said.number
        try:
            fields = json.loads(said.line)
            name, gpu = str(fields["event"]), fields.get("gpu")
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        if name in _NOT_KEPT:
            return
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            wall = datetime.fromisoformat(fields["time"]).timestamp()  # or else when it came
        batch.events.append((wall, name, gpu if isinstance(gpu, str) else None, said.line))


def sample(view: GpuView) -> Sample:
    """Return what is kept of a view; what was read too long ago is not known."""
    read = view.read is not None and view.at - view.read < STALE
    told = view.telemetry
    if told is not None and view.at - told.at >= STALE:
        told = None
    busy = {"BUSY": 1, "IDLE": 0}.get(view.occupancy)
    seen: dict[str, float | None] = {
        "temperature_c": view.temperature_c if read else None,
        "power_w": view.power_w if read else None,
        "utilization": view.utilization if read else None,
        "memory_used": view.memory_used if read else None,
        "memory_foreign": view.memory_foreign if read else None,
        "sm_clock_mhz": view.sm_clock_mhz if read else None,
        "held": view.held,
        "share": view.share,
        "iterations_per_s": view.iterations_per_s,
        "flops_per_s": view.flops_per_s,
        "bytes_per_s": view.bytes_per_s,
        "busy": busy,
        "ours": int(view.stressor == "RUNNING"),
        "health": None if view.health is None else CONDITIONS.index(view.health),
    }
    if told is not None:
        for name in ("temperature_c", "power_w", "utilization", "sm_clock_mhz"):
            if seen[name] is None:
                seen[name] = getattr(told, name)
        seen["memory_temperature_c"] = told.memory_temperature_c
        seen["memory_utilization"] = told.memory_utilization
    return tuple(seen.get(name) for name in SAMPLE)
