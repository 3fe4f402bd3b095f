"""The API's responses about the past: readings, events, usage and temperature trends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sentinel.protocol.api_types import ResponseModel, ResponseType
from sentinel.protocol.views import GpuHealth, described


@dataclass(frozen=True, kw_only=True)
class PastReading(ResponseType):
    """The readings of one step from `at` on, summarized; null is not known.

    Each figure is a mean, except minimum and maximum (`_min_`, `_max_`), the worst health and the
    sum of joules.
    """

    at: datetime
    seconds: int = field(metadata=described("The seconds of the step that have a reading."))
    temperature_c: float | None = None
    temperature_min_c: float | None = None
    temperature_max_c: float | None = None
    power_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    energy_j: float | None = None
    memory_temperature_c: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used: float | None = None
    held: float | None = None
    memory_foreign: float | None = None
    sm_clock_mhz: float | None = None
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    busy: float | None = field(
        default=None, metadata=described("The share of time with a foreign process on the GPU.")
    )
    ours: float | None = field(
        default=None, metadata=described("The share of time with a running stressor.")
    )
    health: GpuHealth | None = None


@dataclass(frozen=True, kw_only=True)
class PastReadings(ResponseModel):
    """The readings of a GPU, one for each step of `step_s` seconds that has any."""

    gpu: str
    step_s: int
    readings: tuple[PastReading, ...]


@dataclass(frozen=True, kw_only=True)
class PastEvent(ResponseType):
    """One event; `fields` are its other fields."""

    at: datetime
    name: str
    gpu: str | None = None
    index: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecordedEvents(ResponseModel):
    """The last events, oldest first."""

    events: tuple[PastEvent, ...]


@dataclass(frozen=True, kw_only=True)
class PastUse(ResponseType):
    """One use of a GPU by one process; `until` is when the process was seen last."""

    gpu: str
    index: int
    #: "from" is a keyword of Python.
    began: datetime = field(metadata={"alias": "from"})
    until: datetime
    going_on: bool = False
    who: str | None = field(
        default=None,
        metadata=described("`sentinel` or the name of the process; null if it is not known."),
    )
    ours: bool = field(
        default=False,
        metadata=described("Whether it is a stressor; any process may have its name."),
    )
    pid: int | None = None
    user: str | None = None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Usage(ResponseModel):
    """The uses of GPUs by processes, oldest first."""

    usage: tuple[PastUse, ...]


@dataclass(frozen=True, kw_only=True)
class UserHours(ResponseType):
    """The GPU time of the processes of one user."""

    user: str | None = field(metadata=described("Null if it is not known."))
    #: Several processes on one GPU count once.
    allocated_s: float
    unused_s: float = field(
        metadata=described("Of that, the time in which the GPU had no load: below 1 %.")
    )


@dataclass(frozen=True, kw_only=True)
class GpuHours(ResponseModel):
    """The GPU time by user, most unused first, and without a foreign process, in seconds."""

    users: tuple[UserHours, ...]
    #: Without a process, and with a running stressor.
    idle_s: float
    stressors_s: float


class Direction(StrEnum):
    """The direction of a trend."""

    RISING = "rising"
    FALLING = "falling"
    STABLE = "stable"
    VARYING = "varying"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class TemperatureTrend(ResponseModel):
    """The trend of a GPU's temperature in the last `minutes`.

    The slope is that of the least-squares line. The trend is rising if the line rises by a degree
    or more and the present temperature is above the mean, and falling likewise. Otherwise it is
    stable if all readings are within 5 degrees, and varying if not. It is unknown with fewer than
    ten readings, one a second.
    """

    gpu: str
    minutes: int
    samples: int
    current_c: float | None = None
    minimum_c: float | None = None
    maximum_c: float | None = None
    average_c: float | None = None
    slope_c_per_min: float | None = None
    trend: Direction
