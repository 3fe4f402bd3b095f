"""Reads since when somebody wants to know, and gives moments the form that clients get."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from sentinel.api.http.errors import ProblemError
from sentinel.protocol.api_types import Code
from sentinel.units import parse_duration

#: Nobody asks for what was longer ago, in seconds: ten years.
LONGEST = 3660 * 86_400.0
#: Beyond the years that a datetime has, in seconds since the epoch.
_FIRST, _LAST = -62_135_596_800.0, 253_402_300_799.0


def since_when(text: str, now: float) -> float:
    """Return the moment that ``text`` names, in seconds since the epoch.

    Args:
        text: A duration before now, such as ``90s`` or ``7d``, or a date and time with its offset.
        now: Seconds since the epoch.

    Raises:
        ProblemError: It is neither, or too long ago.
    """
    moment = _before(text, now)
    if moment is None:
        moment = _date(text)
    if moment is None:
        why = (
            f"since: {text[:60]!r} is neither a time such as 90s, 2h or 7d"
            " nor a moment such as 2026-11-20T19:40:00+00:00"
        )
        raise ProblemError(Code.INVALID, f"{why}.")
    if now - moment > LONGEST:
        raise ProblemError(Code.INVALID, f"since: {text[:60]!r} is more than ten years ago.")
    return min(moment, now)


def iso(moment: float) -> str:
    """Return seconds since the epoch as a date with its offset, to the millisecond."""
    bounded = min(max(moment, _FIRST), _LAST)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="milliseconds")


def _before(text: str, now: float) -> float | None:
    try:
        seconds = parse_duration(text)
    except (ValueError, OverflowError):
        return None
    return now - seconds if math.isfinite(seconds) else None


def _date(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
