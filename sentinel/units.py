"""Parse and format sizes, durations, other numbers with a unit, and indices: 20GiB, 2h, 0-3."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    **{f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("KMGT", 1)},  # Kubernetes
}
#: The longest time for which a daemon keeps something for a client or waits, in seconds: a year.
MAX_TIME_S = 366 * 86_400
_DURATIONS = {"ms": "0.001", "s": "1", "m": "60", "min": "60", "h": "3600", "d": "86400"}
_QUANTITY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z%°]*)\s*")
_DURATION_PART = re.compile(r"[0-9.]+[a-z]+")
#: A longer text is no number with a unit. The patterns take quadratic time.
_MAX_LENGTH = 100
#: Three digits at most: the beginning of a UUID has eight before its first hyphen.
_RANGE = re.compile(r"([0-9]{1,3})-([0-9]{1,3})", re.ASCII)
#: No host has so many GPUs. Each may be a range of a thousand.
_MAX_SELECTORS = 256

#: The signals of Linux from 1 on; the module `signal` is no part of what is pure.
_SIGNALS = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM"


def parse_quantity(text: str, units: Mapping[str, str | int]) -> float | None:
    """Parse a number with a unit; return None if the text is something else.

    Args:
        text: A decimal number without a sign, and a unit in upper or lower case.
        units: The factor of each unit; the unit ``""`` allows a bare number.
    """
    from decimal import Decimal  # slow to import, and not needed to format

    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    factors = {unit.upper(): factor for unit, factor in units.items()}
    if match is None or match[2].upper() not in factors:
        return None
    return float(Decimal(match[1]) * Decimal(factors[match[2].upper()]))


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as ``512MiB``, ``20GiB`` or ``1.5GB``.

    A number without a unit is refused: programs differ in whether it is MB or GB.

    Raises:
        ValueError: The text is not a positive number with a unit from B, kB ... TB, KiB ... TiB.
    """
    size = int(parse_quantity(text, _SIZES) or 0)
    if size <= 0:
        if parse_quantity(text, {"": 1}):
            number = text.strip()
            message = f"{text!r} has no unit; write {number}MiB or {number}GiB"
            raise ValueError(message)
        if is_ambiguous(text):
            number, unit = text.strip()[:-1], text.strip()[-1].upper()
            message = f"{text!r} may be {number}{unit}B or {number}{unit}iB; write one of them"
            raise ValueError(message)
        message = f"{text!r} is not a size; write a number and a unit, such as 512MiB or 20GiB"
        raise ValueError(message)
    return size


def is_ambiguous(text: str) -> bool:
    """Check for a size such as ``4G``: programs differ in whether that is 4GB or 4GiB."""
    return bool(parse_quantity(text, {"K": 1, "M": 1, "G": 1, "T": 1}))


def parse_size_or_zero(text: str) -> int:
    """Parse a size in bytes as :func:`parse_size` does, or a zero with or without a unit.

    Raises:
        ValueError: The text is not a size.
    """
    is_zero = parse_quantity(text, {"": 1, **_SIZES}) == 0
    return 0 if is_zero else parse_size(text)


def parse_duration(text: str) -> float:
    """Parse a duration in seconds, such as ``25ms``, ``90s``, ``5m`` or ``1h30m``.

    A number without a unit is refused: programs differ in whether it is seconds or minutes.

    Raises:
        ValueError: The text is not a positive duration of numbers with ms, s, m, h, d.
    """
    compact = text.replace(" ", "") if len(text) <= _MAX_LENGTH else ""
    parts = _DURATION_PART.findall(compact)
    amounts = [parse_quantity(part, _DURATIONS) for part in parts]
    whole = "".join(parts) == compact and None not in amounts
    seconds = sum(amount or 0.0 for amount in amounts) if whole else 0.0
    if seconds <= 0:
        if parse_quantity(compact, {"": 1}):
            message = (
                f"{text!r} has no unit; write {compact}s, {compact}m, {compact}h or {compact}d"
            )
            raise ValueError(message)
        if (parts and whole) or parse_quantity(compact, {"": 1}) == 0:
            message = f"{text!r} is out of range; write a duration above 0, such as 10s"
            raise ValueError(message)
        message = f"{text!r} is not a duration; write one such as 25ms, 10s, 5m or 1h30m"
        raise ValueError(message)
    return seconds


def parse_lifetime(text: str) -> float:
    """Parse a duration as :func:`parse_duration` does, of at most MAX_TIME_S.

    Raises:
        ValueError: The text is not a duration, or a longer one.
    """
    seconds = parse_duration(text)
    if seconds > MAX_TIME_S:
        raise ValueError(f"{text!r} is above {MAX_TIME_S // 86_400}d")
    return seconds


def parse_duration_or_zero(text: str) -> float:
    """Parse a duration as :func:`parse_duration` does, or a zero with or without a unit.

    Raises:
        ValueError: The text is not a duration.
    """
    is_zero = parse_quantity(text, {"": 1, **_DURATIONS}) == 0
    return 0.0 if is_zero else parse_duration(text)


def split_selectors(texts: Iterable[str]) -> tuple[str, ...]:
    """Split comma lists of GPUs into unique selectors; a range of indices, 0-3, into its indices.

    Raises:
        ValueError: A selector is empty, a range ends before it begins, or there are too many.
    """
    texts, found = tuple(texts), dict[str, None]()
    parts = [part.strip() for text in texts for part in text.split(",")]
    if len(parts) > _MAX_SELECTORS:
        message = f"{len(parts):,} selectors of GPUs are too many; allowed are {_MAX_SELECTORS}"
        raise ValueError(message)
    for part in parts:
        ends = _RANGE.fullmatch(part)
        indices = range(int(ends[1]), int(ends[2]) + 1) if ends else None
        if not part or (indices is not None and not indices):
            listed = ",".join(texts)
            empty = f"{listed!r} has an empty name in it" if listed.strip() else "no GPU is named"
            why = f"the range {part!r} ends before it begins" if part else empty
            message = f"{why}; write a list such as 0,1 or 0-3"
            raise ValueError(message)
        found |= dict.fromkeys([part] if indices is None else map(str, indices))
    return tuple(found)


def format_size(size: float) -> str:
    """Format a size in bytes with a binary unit and at most one decimal."""
    for unit, digits in (("B", 0), ("KiB", 0), ("MiB", 0), ("GiB", 1)):
        if abs(round(size, digits)) < 1024:  # noqa: PLR2004 - the step of binary units
            return f"{size:.{digits}f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def decimal_prefix(value: float, digits: int) -> tuple[float, str]:
    """Choose what a value of this size is divided by, and the prefix of its unit."""
    factor = 1.0
    for prefix in ("", "k", "M", "G", "T"):
        if abs(float(f"{value / factor:.{digits}g}")) < 1000:  # noqa: PLR2004 - the step
            return factor, prefix
        factor *= 1000
    return factor, "P"


def format_scaled(value: float, unit: str, digits: int = 3) -> str:
    """Format a number with a decimal prefix of its unit: 656 TFLOP/s, 26.2 MB/s."""
    factor, prefix = decimal_prefix(value, digits)
    return f"{value / factor:.{digits}g} {prefix}{unit}"


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit that fits, with smaller ones above a minute."""
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s" if round(seconds, 1) % 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:  # noqa: PLR2004 - as the page has it
        days, hours = divmod(hours, 24)
        parts = (days, "d"), (hours, "h"), (minutes, "min")
        return " ".join(f"{number} {unit}" for number, unit in parts if number)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 node, 1,000 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_indices(indices: Iterable[int], *, width: int = 0, separator: str = ", ") -> str:
    """Format indices in ascending order, runs of them as ranges: 0-3, 7.

    Args:
        indices: The indices.
        width: The digits of each, with zeros in front.
        separator: What separates two ranges.
    """
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    ends = ([run[0], run[-1]] if len(run) > 1 else run for run in runs)
    return separator.join("-".join(f"{index:0{width}}" for index in pair) for pair in ends)


def format_brief(seconds: float) -> str:
    """Format a duration in four or five characters, for tables: 196ms, 2.1s, 45s, 12m, 3h, 5d."""
    if seconds < 0.9995:  # noqa: PLR2004 - what would be 1000 ms
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:  # noqa: PLR2004 - what would be 10.0 s
        return f"{seconds:.1f}s"
    for size, unit, most in ((1, "s", 100), (60, "m", 100), (3600, "h", 100)):
        if round(seconds / size) < most:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def format_exit(code: int) -> str:
    """Format how a process ended, such as ``exited with code 3`` or ``was ended by SIGINT``.

    A limit of memory, as of a control group, shows in no other way than SIGKILL.
    """
    if code >= 0:
        return f"exited with code {code}"
    names = _SIGNALS.split()
    name = f"SIG{names[-code - 1]}" if -code <= len(names) else f"signal {-code}"
    hint = " (the kernel sends it where memory runs out: see `dmesg`)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
