"""Parsers for the values of settings: sizes, shares, counts, files, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable

from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import _NUMBER_AND_UNIT, T, parse_size

_WATTS = {"W": 1.0, "KW": 1000.0}
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)?:)?(?P<port>[0-9]{1,5})", re.ASCII)
_LAST_PORT = 65535


def parse_memory(text: str) -> MemoryTarget:
    """Return how much memory ``text`` asks for: a share (``0.88``, ``88%``) or a size (``20GiB``).

    Raises:
        ValueError: It is neither a share in (0, 1] nor a size.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match and match[2] in {"", "%"}:
        return MemoryTarget(share=parse_share(text))
    return MemoryTarget(size=parse_size(text))


def parse_share(text: str) -> float:
    """Return the share in (0, 1] that ``text`` names, such as ``0.05`` or ``5%``.

    Raises:
        ValueError: It is none.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    share = float(match[1]) / (100 if match[2] else 1) if match and match[2] in {"", "%"} else 0.0
    if not 0 < share <= 1:
        message = f"{text!r} is not a share; write one above 0 and up to 1, such as 0.88 or 88%"
        raise ValueError(message)
    return share


def parse_file(text: str) -> str:
    """Return the path in ``text``, or the word ``off``.

    Raises:
        ValueError: There is nothing in it, or a NUL.
    """
    path = text.strip()
    if not path or "\0" in path:
        message = f"{text!r} is not a path; write one, or off"
        raise ValueError(message)
    return path


def parse_power(text: str) -> float:
    """Return the watts that ``text`` names, such as ``400W`` or ``0.4kW``.

    Raises:
        ValueError: It is no positive number with one of the units W and kW.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _WATTS.get(match[2].upper(), 0.0) if match else 0.0
    watts = float(match[1]) * factor if match else 0.0
    if watts <= 0:
        message = f"{text!r} is not a power; write a number and a unit, such as 400W or 0.4kW"
        raise ValueError(message)
    return watts


def parse_celsius(text: str) -> float:
    """Return the degrees Celsius in ``text``, such as ``85`` or ``85.5C``.

    Raises:
        ValueError: It is no number, has more than three decimals, or has another unit.
    """
    match = re.fullmatch(r"\s*([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*(?:°?C)?\s*", text, re.ASCII)
    if match is None:
        form = "write degrees Celsius with three decimals at most, such as 85 or 85.5C"
        message = f"{text!r} is no temperature; {form}"
        raise ValueError(message)
    return float(match[1])


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma list; ``all`` alone is none, which leaves nothing out.

    Raises:
        ValueError: One of them is empty.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        message = f"{text!r} has an empty name in it; write a comma list such as 0,1"
        raise ValueError(message)
    return () if names == ("all",) else names


def parse_count(text: str) -> int:
    """Return the whole number in ``text``.

    Raises:
        ValueError: It is none.
    """
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        message = f"{text!r} is not a whole number"
        raise ValueError(message)
    return int(text)


def parse_rate(text: str) -> float:
    """Return the number in ``text``, such as ``2`` or ``0.5``.

    Raises:
        ValueError: It is none.
    """
    if not re.fullmatch(r"\s*[0-9]{1,9}(\.[0-9]{1,9})?\s*", text, re.ASCII):
        message = f"{text!r} is not a number; write one such as 2 or 0.5"
        raise ValueError(message)
    return float(text)


def parse_address(text: str) -> str:
    """Return ``host:port``; without a host, as in ``8765`` and ``:8765``, that of this very host.

    Port 0 is any that is free. The address of IPv6 stands in brackets, as in ``[::1]:8765``.

    Raises:
        ValueError: It is none.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > _LAST_PORT:
        message = f"{text!r} is no address; write one such as 127.0.0.1:8765 or [::1]:8765"
        raise ValueError(message)
    return f"{match['host'] or '127.0.0.1'}:{int(match['port'])}"


def or_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return what takes what ``parse`` takes, and ``off`` for nothing at all."""

    def parse_or_off(text: str) -> T | None:
        return None if text.strip() == "off" else parse(text)

    return parse_or_off


def one_of(*words: str) -> Callable[[str], str]:
    """Return what takes one of these words and nothing else."""

    def parse(text: str) -> str:
        if text.strip() not in words:
            message = f"{text!r} is none of {', '.join(words)}"
            raise ValueError(message)
        return text.strip()

    return parse
