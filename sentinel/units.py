"""Read and write sizes, shares, durations, rates and watts as people do: 20GiB, 88%, 2h, 400W."""

from __future__ import annotations

import re
from typing import TypeVar

T = TypeVar("T")

_SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z%]*)\s*")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names, such as ``512MiB``, ``20GiB`` or ``1.5GB``.

    Raises:
        ValueError: It is no positive number with one of the units B, kB ... TB, KiB ... TiB.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _SIZES.get(match[2].upper()) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size <= 0:
        message = f"{text!r} is not a size; write a number and a unit, such as 512MiB or 20GiB"
        raise ValueError(message)
    return size


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` names, such as ``25ms``, ``90``, ``5m`` or ``1h30m``.

    Raises:
        ValueError: It is no positive number of seconds and no run of numbers with ms, s, m, h, d.
    """
    compact = text.replace(" ", "")
    parts = _DURATION.findall(compact)
    if parts and "".join(number + unit for number, unit in parts) == compact:
        seconds = sum(float(number) * _DURATIONS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", compact):
        seconds = float(compact)
    else:
        seconds = 0.0
    if seconds <= 0:
        message = f"{text!r} is not a duration; write one such as 25ms, 10s, 5m or 1h30m"
        raise ValueError(message)
    return seconds


def format_size(size: float) -> str:
    """Return ``size`` in bytes with a binary unit and at most one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:  # noqa: PLR2004 - the step of binary units
            return f"{size:.0f} {unit}" if unit in {"B", "KiB", "MiB"} else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Return ``seconds`` in its largest fitting unit, two units above a minute."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def format_brief(seconds: float) -> str:
    """Return ``seconds`` in four or five characters, for tables: 196ms, 2.1s, 45s, 12m, 3h, 5d."""
    if seconds < 0.9995:  # noqa: PLR2004 - what would be 1000 ms
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:  # noqa: PLR2004 - what would be 10.0 s
        return f"{seconds:.1f}s"
    for size, unit, most in ((1, "s", 100), (60, "m", 100), (3600, "h", 100)):
        if round(seconds / size) < most:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"
