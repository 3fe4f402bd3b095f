"""What clients get of the history, as types."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from sentinel.api.schemas.status import ResponseModel


class PastReading(BaseModel):
    """What was read within one step from `at` on; null is not known.

    Each figure is a mean, but for the least and the most (`_min_`, `_max_`), the worst health,
    and the joules that were used in the time that was read.
    """

    at: datetime
    seconds: int = Field(description="How many seconds of the step were read.")
    temperature_c: float | None
    temperature_min_c: float | None
    temperature_max_c: float | None
    power_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    energy_j: float | None
    memory_temperature_c: float | None
    utilization: float | None
    memory_utilization: float | None
    memory_used: float | None
    held: float | None
    memory_foreign: float | None
    sm_clock_mhz: float | None
    share: float | None
    iterations_per_s: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    busy: float | None = Field(description="The share of the time in which others used it.")
    ours: float | None = Field(description="That in which a stressor of ours worked.")
    health: Literal["optimal", "normal", "throttled", "critical"] | None


class PastReadings(ResponseModel):
    """The readings of a GPU, one for each `step_s` seconds in which there were some."""

    gpu: str
    step_s: int
    readings: list[PastReading]


class PastEvent(BaseModel):
    """One event; `fields` are those of its line that do not stand beside them."""

    at: datetime
    name: str
    gpu: str | None
    index: int | None
    fields: dict[str, Any]


class RecordedEvents(ResponseModel):
    """The last events, the oldest first."""

    events: list[PastEvent]


class PastUse(BaseModel):
    """One use of a GPU by one process; `until` is when it was seen last."""

    gpu: str
    index: int
    from_: datetime = Field(alias="from")
    until: datetime
    going_on: bool
    who: str | None = Field(
        description="`sentinel`, or the name of the process; null where nobody tells."
    )
    ours: bool = Field(description="Whether it is a stressor of ours; others may have any name.")
    pid: int | None
    user: str | None
    seconds: float


class Usage(ResponseModel):
    """Who used which GPU when, the oldest first."""

    usage: list[PastUse]


class Trend(ResponseModel):
    """Where a GPU's temperature went in the last `minutes`.

    The slope is that of the line of least squares. It is stable where that changes by less than a
    degree over the readings, and unknown where there are fewer than ten, one a second.
    """

    gpu: str
    minutes: int
    samples: int
    current_c: float | None
    minimum_c: float | None
    maximum_c: float | None
    average_c: float | None
    slope_c_per_min: float | None
    trend: Literal["rising", "falling", "stable", "unknown"]
