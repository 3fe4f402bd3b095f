"""Where a GPU's temperature goes, by the line that fits its last readings best. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.protocol.history_types import Direction

#: Fewer readings, one a second, are no trend: one flicker between two degrees would decide it.
FEWEST = 10
#: A line that rises or falls by less than so many degrees over the readings is level: NVML tells
#: whole degrees (nvmlDeviceGetTemperature), so what is below one may be rounding.
STEADY = 1.0


@dataclass(frozen=True, kw_only=True)
class Trend:
    """What readings show, in degrees Celsius; ``slope`` is degrees a minute, by least squares.

    What cannot be told of so few readings is ``None``.
    """

    samples: int
    current: float | None
    minimum: float | None
    maximum: float | None
    average: float | None
    slope: float | None
    direction: Direction


def trend_of(readings: Sequence[tuple[float, float]]) -> Trend:
    """Return the trend of (seconds, degrees Celsius), the oldest first, on one clock."""
    values = [value for _, value in readings]
    slope = _slope(readings) if len(readings) >= FEWEST else None
    return Trend(
        samples=len(values),
        current=values[-1] if values else None,
        minimum=min(values, default=None),
        maximum=max(values, default=None),
        average=sum(values) / len(values) if values else None,
        slope=None if slope is None else slope * 60,
        direction=_direction(slope, readings),
    )


def _slope(readings: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope per second of the line of least squares; none where all are of one time."""
    count = len(readings)
    mean_at = sum(at for at, _ in readings) / count
    mean = sum(value for _, value in readings) / count
    spread = sum((at - mean_at) ** 2 for at, _ in readings)
    if spread == 0:
        return None
    return sum((at - mean_at) * (value - mean) for at, value in readings) / spread


def _direction(slope: float | None, readings: Sequence[tuple[float, float]]) -> Direction:
    if slope is None:
        return Direction.UNKNOWN
    change = slope * (readings[-1][0] - readings[0][0])
    if abs(change) < STEADY:
        return Direction.STABLE
    return Direction.RISING if change > 0 else Direction.FALLING
