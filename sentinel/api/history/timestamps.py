"""Parse the parameter ``since``, and format times as ISO 8601."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from sentinel.api.http.errors import ProblemError
from sentinel.protocol.problem import Code
from sentinel.units import parse_duration

#: The oldest time that can be requested: ten years.
MAX_AGE_S = 3660 * 86_400.0
#: The range of datetime, in seconds since the epoch.
_MIN_TIME, _MAX_TIME = -62_135_596_800.0, 253_402_300_799.0


def parse_since(text: str, now: float) -> float:
    """Parse a time in the past into seconds since the epoch.

    Args:
        text: A duration before now, such as ``90s`` or ``7d``, or a date and time with its offset.
        now: Seconds since the epoch.

    Raises:
        ProblemError: It is neither, or too long ago.
    """
    time = _parse_duration(text, now)
    if time is None:
        time = _parse_date(text)
    if time is None:
        why = (
            f"since: {text[:60]!r} is neither a duration such as 90s, 2h or 7d"
            " nor a date such as 2026-11-20T19:40:00+00:00"
        )
        raise ProblemError(Code.INVALID, f"{why}.")
    if now - time > MAX_AGE_S:
        raise ProblemError(Code.INVALID, f"since: {text[:60]!r} is more than ten years ago.")
    return min(time, now)


def iso(time: float) -> str:
    """Format seconds since the epoch as a date with its offset, to the millisecond."""
    bounded = min(max(time, _MIN_TIME), _MAX_TIME)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="milliseconds")


def _parse_duration(text: str, now: float) -> float | None:
    try:
        seconds = parse_duration(text)
    except (ValueError, OverflowError):
        return None
    return now - seconds if math.isfinite(seconds) else None


def _parse_date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text.strip())
        return date.timestamp() if date.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
