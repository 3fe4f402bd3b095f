"""Fit the trend of a GPU's temperature by least squares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.protocol.history_types import Direction

#: The smallest number of readings, one a second: with fewer, one flicker by a degree would decide.
MIN_SAMPLES = 10
#: A smaller change of the line is stable: NVML reports whole degrees (nvmlDeviceGetTemperature), so
#: it may be rounding.
MIN_CHANGE_C = 1.0


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The trend of readings; None without enough readings."""

    samples: int
    current_c: float | None
    minimum_c: float | None
    maximum_c: float | None
    average_c: float | None
    slope_c_per_min: float | None
    direction: Direction


def fit_trend(readings: Sequence[tuple[float, float]]) -> Trend:
    """Fit the trend of (seconds, degrees Celsius), oldest first, on one clock."""
    values = [value for _, value in readings]
    slope = _slope(readings) if len(readings) >= MIN_SAMPLES else None
    return Trend(
        samples=len(values),
        current_c=values[-1] if values else None,
        minimum_c=min(values, default=None),
        maximum_c=max(values, default=None),
        average_c=sum(values) / len(values) if values else None,
        slope_c_per_min=None if slope is None else slope * 60,
        direction=_direction(slope, readings),
    )


def _slope(readings: Sequence[tuple[float, float]]) -> float | None:
    """Compute the slope per second, or None if all readings have the same time."""
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
    if abs(change) < MIN_CHANGE_C:
        return Direction.STABLE
    return Direction.RISING if change > 0 else Direction.FALLING
