"""Parse the values of settings: quantities, files, names, addresses, and rules for processes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.config.setting import Form
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import parse_quantity, parse_size

_WATTS = {"W": 1, "kW": 1000}
_CELSIUS = {"": 1, "C": 1, "°C": 1}
_SHARES = {"%": "0.01"}
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)?:)?(?P<port>[0-9]{1,5})", re.ASCII)
_WORKLOAD_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_MAX_PORT = 65535
_MAX_PERCENT = 100


def parse_memory(text: str) -> MemoryTarget:
    """Parse a share of the memory (``88%``) or a size (``20GiB``).

    A number without a unit is refused, since it may be either.

    Raises:
        ValueError: The text is neither a share above 0 and up to 100 % nor a size.
    """
    number = parse_quantity(text, {"": 1})
    if number:
        digits = text.strip()
        share = f"{number * 100:g}%" if number <= 1 else f"{digits}%"
        forms = f"{share} for a share or " if number <= _MAX_PERCENT else ""
        message = f"{text!r} has no unit; write {forms}{digits}GiB for a size"
        raise ValueError(message)
    if parse_quantity(text, _SHARES) is not None:
        return MemoryTarget(share=parse_share(text))
    return MemoryTarget(size=parse_size(text))


def parse_share(text: str) -> float:
    """Parse a share above 0 and up to 100 %, such as ``5%``; return 1 for 100 %.

    A number without a unit is refused: 1 may be all or a hundredth.

    Raises:
        ValueError: The text is not a share.
    """
    share = parse_quantity(text, _SHARES)
    if share is not None and 0 < share <= 1:
        return share
    number = parse_quantity(text, {"": 1})
    if number and number <= _MAX_PERCENT:
        digits = text.strip()
        forms = f"{number * 100:g}% or {digits}%" if number <= 1 else f"{digits}%"
        message = f"{text!r} is not a share without a unit; write {forms}"
        raise ValueError(message)
    message = f"{text!r} is not a share; write one above 0% and up to 100%, such as 88%"
    raise ValueError(message)


def parse_file(text: str) -> str:
    """Parse a path, or the word ``off``.

    Raises:
        ValueError: The text is empty or contains a NUL.
    """
    path = text.strip()
    if not path or "\0" in path:
        message = f"{text!r} is not a path; write a path, or off"
        raise ValueError(message)
    return path


def parse_power(text: str) -> float:
    """Parse a power in watts, such as ``400W`` or ``0.4kW``.

    Raises:
        ValueError: The text is not a positive number with the unit W or kW.
    """
    watts = parse_quantity(text, _WATTS)
    if not watts:
        message = f"{text!r} is not a power; write a number and a unit, such as 400W or 0.4kW"
        raise ValueError(message)
    return watts


def parse_celsius(text: str) -> float:
    """Parse a temperature in degrees Celsius, such as ``85`` or ``85.5C``.

    Raises:
        ValueError: The text is not a number, has more than three decimals, or another unit.
    """
    degrees = parse_quantity(text, _CELSIUS)
    if degrees is None or degrees >= 10_000 or round(degrees, 3) != degrees:  # noqa: PLR2004
        form = "write degrees Celsius with at most three decimals, such as 85 or 85.5C"
        message = f"{text!r} is not a temperature; {form}"
        raise ValueError(message)
    return degrees


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a comma list of names; return no names for ``all``.

    Raises:
        ValueError: A name is empty.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        message = f"{text!r} has an empty name in it; write a comma list such as 0,1"
        raise ValueError(message)
    return () if names == ("all",) else names


def parse_workload_names(text: str) -> tuple[str, ...]:
    """Parse a comma list of names of registered workloads; return no names for ``none``.

    Raises:
        ValueError: A name is empty, or is not one of a registered workload.
    """
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if not _WORKLOAD_NAME.fullmatch(name)]
    if wrong:
        message = f"{wrong[0]!r} is not the name of a registered workload; write none or gemm,hold"
        raise ValueError(message)
    return () if names == ("none",) else names


def parse_count(text: str) -> int:
    """Parse a whole number.

    Raises:
        ValueError: The text is not a whole number of at most nine digits.
    """
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        message = f"{text!r} is not a whole number"
        raise ValueError(message)
    return int(text)


def parse_rate(text: str) -> float:
    """Parse a number without a unit, such as ``2`` or ``0.5``.

    Raises:
        ValueError: The text is not a number.
    """
    rate = parse_quantity(text, {"": 1})
    if rate is None:
        message = f"{text!r} is not a number; write one such as 2 or 0.5"
        raise ValueError(message)
    return rate


def parse_address(text: str) -> str:
    """Parse ``host:port``; the default host, as in ``8765`` and ``:8765``, is 127.0.0.1.

    Port 0 is any free port. An IPv6 address is in brackets, as in ``[::1]:8765``.

    Raises:
        ValueError: The text is not an address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > _MAX_PORT:
        message = f"{text!r} is not an address; write one such as 127.0.0.1:8765 or [::1]:8765"
        raise ValueError(message)
    return f"{match['host'] or '127.0.0.1'}:{int(match['port'])}"


def one_of(*words: str) -> Form[str]:
    """Return the form of a value that is one of these words."""

    def parse(text: str) -> str:
        word = text.strip()
        if word not in words:
            message = f"{text!r} is not one of {', '.join(words)}"
            raise ValueError(message)
        return word

    return Form(parse=parse, metavar="|".join(words), words=words)


# --- rules for processes to ignore ------------------------------------------------------------

_FIELDS = ("name", "user")
#: The kernel truncates the name of a process to this many characters.
_MAX_NAME = 15


@dataclass(frozen=True, kw_only=True)
class IgnoreRule:
    """A rule that matches foreign processes.

    A rule by memory applies only to processes with steady memory; see core/gpu/ignored_processes.
    """

    #: ``name``, ``user`` or ``memory``.
    field: str
    #: The exact name or user; for memory, the size as it was written.
    value: str
    #: The memory in bytes below which a process matches; None for the other fields.
    max_bytes: int | None = None

    def matches(self, process: GpuProcess) -> bool:
        """Check a process; an unknown attribute never matches."""
        if self.max_bytes is not None:
            return process.memory is not None and process.memory < self.max_bytes
        if self.field == "user":
            return process.user == self.value
        return process.name == self.value[:_MAX_NAME]

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.max_bytes is None else '<'}{self.value}"


def parse_ignore_rules(text: str) -> tuple[IgnoreRule, ...]:
    """Parse a comma list of rules, such as ``name=Xorg,user=monitor,memory<200MiB``.

    Raises:
        ValueError: An entry is not a rule.
    """
    return tuple(_parse_rule(part.strip()) for part in text.split(","))


def _parse_rule(text: str) -> IgnoreRule:
    field, less, size = (part.strip() for part in text.partition("<"))
    if field == "memory" and less:
        return IgnoreRule(field=field, value=size, max_bytes=parse_size(size))
    field, equals, value = (part.strip() for part in text.partition("="))
    if field not in _FIELDS or not equals or not value:
        message = f"{text!r} is not a rule; write one such as name=Xorg, user=me or memory<200MiB"
        raise ValueError(message)
    return IgnoreRule(field=field, value=value)
