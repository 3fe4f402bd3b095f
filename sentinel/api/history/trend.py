"""Fit the trend of a GPU's temperature by least squares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.protocol.history_types import Direction

#: The smallest number of readings, one a second: with fewer, one flicker by a degree would decide.
MIN_SAMPLES = 10
#: A smaller change of the line is no trend: NVML reports whole degrees (nvmlDeviceGetTemperature),
#: so it may be rounding.
MIN_CHANGE_C = 1.0
#: Readings in a smaller range are stable: the smallest distance between two default thresholds of
#: health (85 and 90), so that a stable GPU is within one threshold.
STABLE_RANGE_C = 5.0


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
    """Choose the direction of the line and of the present temperature, if both are the same.

    So a rising temperature is never at its minimum, nor a falling one at its maximum.
    """
    if slope is None:
        return Direction.UNKNOWN
    values = [value for _, value in readings]
    change = slope * (readings[-1][0] - readings[0][0])
    above_mean = values[-1] - sum(values) / len(values)
    if change >= MIN_CHANGE_C and above_mean > 0:
        return Direction.RISING
    if change <= -MIN_CHANGE_C and above_mean < 0:
        return Direction.FALLING
    is_stable = max(values) - min(values) < STABLE_RANGE_C
    return Direction.STABLE if is_stable else Direction.VARYING
