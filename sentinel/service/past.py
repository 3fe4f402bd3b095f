"""What a GPU did before now, for the routes that tell of it in another shape than the history."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentinel.control import GpuView
from sentinel.service.desk import Desk

__all__ = ["PastReading", "Trend", "readings", "trend"]


@dataclass(frozen=True, kw_only=True)
class PastReading:
    """What was read of a GPU at a time, in seconds since the epoch."""

    at: float
    utilization: float | None
    memory_used: int | None
    temperature_c: int | None
    condition: str | None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """How the temperature of a GPU went, in degrees Celsius."""

    samples: int
    current_c: float | None
    minimum_c: float | None
    maximum_c: float | None
    average_c: float | None
    trend: str


# This is the one place where the history is asked; without one, the last reading is all there is.


async def readings(_: Desk, view: GpuView, most: int) -> list[PastReading]:
    """Return the last readings of a GPU, at most so many, the newest last."""
    if view.read is None or most < 1:
        return []
    last = PastReading(
        at=time.time() - (time.monotonic() - view.read),
        utilization=view.utilization,
        memory_used=view.memory_used,
        temperature_c=view.temperature_c,
        condition=view.condition,
    )
    return [last]


async def trend(_: Desk, view: GpuView, minutes: int) -> Trend:  # noqa: ARG001 - one look has no span
    """Return how the temperature of a GPU went over so many minutes."""
    one = view.temperature_c
    return Trend(
        samples=0 if one is None else 1,
        current_c=one,
        minimum_c=one,
        maximum_c=one,
        average_c=one,
        trend="unknown",
    )
