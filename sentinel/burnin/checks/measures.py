"""Names and units of the measurements of a report, and their texts. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sentinel.units import decimal_prefix, format_duration

#: The title of each measurement and its unit; a rate gets a decimal prefix.
MEASURES = {
    "flops_per_s": ("Rate", "FLOP/s"),
    "bytes_per_s": ("Bandwidth", "B/s"),
    "power_w": ("Power", "W"),
    "temperature_c": ("Temperature", "°C"),
    "memory_temperature_c": ("Memory temperature", "°C"),
    "sm_clock_mhz": ("Clock", "MHz"),
}

#: How the names of the rates of links end, and their unit; the part and the sender come first.
_LINK, _LINK_UNIT = "_bytes_per_s", "B/s"

#: The significant digits of a value.
_DIGITS = 4

#: What stands for a value that is missing.
MISSING = "\u2013"


def title(name: str) -> str:
    """Name a measurement for people."""
    if name not in MEASURES and name.endswith(_LINK):
        return name.removesuffix(_LINK).replace("_", " ").capitalize()
    return MEASURES.get(name, (name, ""))[0]


def unit_of(name: str) -> str:
    """Return the unit of a measurement; empty if it has none."""
    return MEASURES.get(name, ("", _LINK_UNIT if name.endswith(_LINK) else ""))[1]


def format_measure(name: str, value: float) -> str:
    """Format a value of a measurement with its unit."""
    factor, unit = scaled_unit(name, value)
    return f"{value / factor:.{_DIGITS}g} {unit}".rstrip()


def scaled_unit(name: str, value: float) -> tuple[float, str]:
    """Choose the unit of a measurement for values of this size: a rate gets a decimal prefix.

    Returns:
        What a value is divided by, and the unit.
    """
    unit = unit_of(name)
    factor, prefix = decimal_prefix(value, _DIGITS) if name.endswith("_per_s") else (1.0, "")
    return factor, f"{prefix}{unit}"


def format_value(value: Any, unit: str = "") -> str:
    """Format the value of a check or of a counter; a text has no unit."""
    match value:
        case None:
            text = MISSING
        case bool():
            text = "yes" if value else "no"
        case float():
            text = f"{value:.4g}" if abs(value) < 1 else f"{value:.6g}"
        case int():
            text = f"{value:,}"
        case list() | tuple():
            text = ", ".join(str(item) for item in value) or "none"
        case str():
            return value
        case _:
            text = str(value)
    return f"{text} {unit}" if unit and value is not None else text


def format_seconds(value: float) -> str:
    """Format a duration that may be nothing."""
    return format_duration(value) if value else "0 s"


def format_time(text: str | None) -> str:
    """Format a time in ISO 8601 to the second, with its offset from UTC."""
    if text is None:
        return MISSING
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return text
