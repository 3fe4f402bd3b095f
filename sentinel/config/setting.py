"""Declare a setting: key, flag, variable, limits and help text, and how its values are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import is_ambiguous, parse_quantity, parse_size, split_selectors

T = TypeVar("T")

_WATTS = {"W": 1, "kW": 1000}
_CELSIUS = {"": 1, "C": 1, "°C": 1}
_SHARES = {"%": "0.01"}
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)?:)?(?P<port>[0-9]{1,5})", re.ASCII)
_WORKLOAD_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_MAX_PORT = 65535
_MAX_PERCENT = 100

_FIELDS = ("name", "user")
#: The kernel truncates the name of a process to this many characters.
_MAX_NAME = 15


class Scope(Enum):
    """Where a setting holds, and when it may change."""

    #: For all GPUs; a reload applies it.
    HOST = auto()
    #: Like HOST, but a single GPU may have its own value.
    GPU = auto()
    #: For all GPUs, from the start of the daemon to its end.
    START = auto()


@dataclass(frozen=True, kw_only=True)
class Form(Generic[T]):
    """How a value is written: its parser, its name in help texts and its limits."""

    #: Converts text to the value, or raises ValueError with the allowed form.
    parse: Callable[[str], T]
    metavar: str
    #: Whether the value is a list, and the flag may be given several times.
    many: bool = False
    #: The smallest and the largest allowed value, as text.
    least: str | None = None
    most: str | None = None
    #: Whether a value names code or a file, which only the daemon's own user and root may set over
    #: the API.
    trusted: bool = False
    #: The allowed words, if they are few.
    words: tuple[str, ...] = ()

    def within(self, least: str, most: str) -> Form[T]:
        """Return this form with limits."""
        return replace(self, least=least, most=most)

    def or_off(self) -> Form[T | None]:
        """Return this form, extended by the word ``off`` for None."""

        def parse_or_off(text: str) -> T | None:
            return None if text.strip() == "off" else self.parse(text)

        metavar = f"{self.metavar}|off"
        return Form(
            parse=parse_or_off,
            metavar=metavar,
            least=self.least,
            most=self.most,
            trusted=self.trusted,
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting, as :func:`setting` declares it for a field of Config."""

    #: The dotted key in a configuration file.
    key: str
    #: The name of the field of Config.
    field: str
    flag: str
    help: str
    form: Form[Any]
    #: The default as text; empty if the default has no text.
    default: str
    scope: Scope

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.flag)

    @property
    def limits(self) -> str:
        """The allowed range as text, or an empty string."""
        return f"{self.form.least} to {self.form.most}" if self.form.least else ""


def variable_of(flag: str) -> str:
    """Return the environment variable that belongs to a flag."""
    return "SENTINEL_" + flag.removeprefix("--").replace("-", "_").upper()


def setting(
    text: str,
    form: Form[T],
    default: str = "",
    *,
    key: str = "",
    flag: str = "",
    unset: object = None,
    scope: Scope = Scope.HOST,
) -> T:
    """Declare a field of Config as a setting.

    Args:
        text: The help text.
        form: How the value is written.
        default: The default as text.
        key: The key in a configuration file; the field's name by default.
        flag: The flag; derived from the field's name by default.
        unset: The value of the field if ``default`` is empty.
        scope: Where it holds.
    """
    declared = Setting(
        key=key, field="", flag=flag, help=text, form=form, default=default, scope=scope
    )
    value: Any = form.parse(default) if default else unset
    result: T = field(default=value, metadata={Setting: declared})
    return result


def gpu_setting(text: str, form: Form[T], default: str = "", **options: Any) -> T:
    """Declare a setting that may differ for single GPUs."""
    return setting(text, form, default, scope=Scope.GPU, **options)


def start_setting(text: str, form: Form[T], default: str = "", **options: Any) -> T:
    """Declare a setting that stays as it was at the start of the daemon."""
    return setting(text, form, default, scope=Scope.START, **options)


def declared_settings(config: type) -> tuple[Setting, ...]:
    """Return the settings of a dataclass, in the order of its fields; those of its bases last."""
    found = []
    own = vars(config)["__annotations__"]
    for declared_field in sorted(fields(config), key=lambda item: item.name not in own):
        declared: Setting | None = declared_field.metadata.get(Setting)
        if declared is not None:
            flag = declared.flag or "--" + declared_field.name.replace("_", "-")
            key = declared.key or declared_field.name
            found.append(replace(declared, field=declared_field.name, key=key, flag=flag))
    return tuple(found)


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
    try:
        return MemoryTarget(size=parse_size(text))
    except ValueError:
        if is_ambiguous(text):
            raise
        message = f"{text!r} is not a share or a size; write one such as 88% or 20GiB"
        raise ValueError(message) from None


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
        message = f"{text!r} has no unit; write {forms}"
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


def parse_gpus(text: str) -> tuple[str, ...]:
    """Parse a comma list of GPUs and ranges of indices; return none for ``all``.

    Raises:
        ValueError: A selector is empty, or a range ends before it begins.
    """
    selectors = split_selectors([text])
    return () if selectors == ("all",) else selectors


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


@dataclass(frozen=True, kw_only=True)
class IgnoreRule:
    """A rule that matches foreign processes.

    A rule by memory applies only to processes with steady memory; see core/attribution.
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
