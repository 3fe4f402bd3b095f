"""The limits of the checks, and a file that replaces some of them.

The file has the names and the shape of DCGM's ``error_thresholds.yaml``, as TOML::

    spec = "dcgm-error-thresholds-v1"

    [common_thresholds."ecc.corrected_new.warn".GT]
    value = 100

    [xids]
    63 = "fail"
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sentinel.burnin.checks.xid_table import XIDS
from sentinel.errors import ConfigError

SPEC = "dcgm-error-thresholds-v1"

#: The verdicts that a file may give an XID.
XID_VERDICTS = ("fail", "warn", "pass")


class Comparison(StrEnum):
    """How a value breaks a limit, in DCGM's words."""

    GT = "GT"
    GTE = "GTE"
    LT = "LT"
    LTE = "LTE"


_SIGNS = {Comparison.GT: ">", Comparison.GTE: ">=", Comparison.LT: "<", Comparison.LTE: "<="}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A number, and how a value breaks it."""

    comparison: Comparison
    value: float
    #: The file that replaced the default, or empty.
    origin: str = ""

    def broken_by(self, value: float) -> bool:
        """Compare a value with the limit."""
        match self.comparison:
            case Comparison.GT:
                return value > self.value
            case Comparison.GTE:
                return value >= self.value
            case Comparison.LT:
                return value < self.value
            case Comparison.LTE:
                return value <= self.value

    def __str__(self) -> str:
        return f"{_SIGNS[self.comparison]} {self.value:g}"


def above(value: float) -> Limit:
    """Build a limit that greater values break."""
    return Limit(comparison=Comparison.GT, value=value)


def at_least(value: float) -> Limit:
    """Build a limit that equal and greater values break."""
    return Limit(comparison=Comparison.GTE, value=value)


def below(value: float) -> Limit:
    """Build a limit that smaller values break."""
    return Limit(comparison=Comparison.LT, value=value)


def at_most(value: float) -> Limit:
    """Build a limit that equal and smaller values break."""
    return Limit(comparison=Comparison.LTE, value=value)


#: The limits of one check by name: ``fail`` and ``warn``, which ``by_limits`` applies, and others.
Limits = Mapping[str, Limit]


def describe(limits: Limits) -> str:
    """Describe limits in one line: ``fail > 80, warn > 8``."""
    return ", ".join(f"{name} {limit}" for name, limit in limits.items())


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a file replaces; nothing by default."""

    #: By the id of the check and the name of the limit.
    replaced: Mapping[str, Limits] = field(default_factory=dict)
    #: The verdicts of XIDs by number.
    xids: Mapping[int, str] = field(default_factory=dict)
    #: Where they are from, such as the path of the file.
    origin: str = ""

    def of(self, check: str, defaults: Limits) -> Limits:
        """Build the limits in force for a check."""
        return {**defaults, **self.replaced[check]} if check in self.replaced else defaults

    def source_of(self, check: str, default: str) -> str:
        """Name the source of a check's limits: the file if it replaced one of them."""
        return self.origin if check in self.replaced else default

    def only(self, checks: Collection[str], *, xids: bool) -> Thresholds:
        """Keep what concerns these checks, and the XIDs or not."""
        kept = {check: limits for check, limits in self.replaced.items() if check in checks}
        return replace(self, replaced=kept, xids=self.xids if xids else {})

    def overridden(self) -> dict[str, str]:
        """List the replaced limits and XIDs, for a report."""
        found = {
            f"{check}.{name}": str(limit)
            for check, limits in self.replaced.items()
            for name, limit in limits.items()
        }
        return found | {f"xid.{number}": verdict for number, verdict in self.xids.items()}


# --- the file --------------------------------------------------------------------------------


def parse(text: str, origin: str, known: Mapping[str, Limits]) -> Thresholds:
    """Parse the text of a file.

    Args:
        text: The TOML document.
        origin: The path of the file, for messages.
        known: The default limits of each check by its id.

    Raises:
        ConfigError: It is no TOML, or has a key or value that is not allowed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: it is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{origin}: its tables or lists are nested too deeply") from None
    _only(document, ("version", "spec", "common_thresholds", "xids"), origin, "")
    if document.get("spec") != SPEC:
        raise ConfigError(f"{origin}: spec is {document.get('spec')!r}", f'It must be "{SPEC}".')
    limits = {f"{check}.{name}": (check, name) for check in known for name in known[check]}
    replaced: dict[str, dict[str, Limit]] = {}
    for key, entry in _table(document, "common_thresholds", origin).items():
        where = f'common_thresholds."{key}"'
        if key not in limits:
            near = difflib.get_close_matches(key, limits, n=3)
            allowed = f"Did you mean {' or '.join(near)}? " if near else ""
            allowed += "docs/checks.md and docs/fleet-report.md list all."
            raise ConfigError(f"{origin}: {where} is not a threshold", allowed)
        check, name = limits[key]
        default = known[check][name]
        value = _value(entry, default.comparison, origin, where)
        replaced.setdefault(check, {})[name] = replace(default, value=value, origin=origin)
    xids = dict(_xids(_table(document, "xids", origin), origin))
    return Thresholds(replaced=replaced, xids=xids, origin=origin)


def _value(entry: Any, comparison: Comparison, origin: str, where: str) -> float:
    """Extract the number of one entry, which must keep its comparison."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{origin}: {where} is not a table", f"Write {comparison}.value = N.")
    _only(entry, (comparison, "metadata"), origin, f"{where}.")
    table = _table(entry, comparison, origin, f"{where}.")
    _only(table, ("value", "field_id", "field_ids"), origin, f"{where}.{comparison}.")
    value = table.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        what = f"{origin}: {where}.{comparison}.value is {value!r}"
        raise ConfigError(what, "It must be a finite number.")
    return float(value)


def _xids(table: Mapping[str, Any], origin: str) -> Iterable[tuple[int, str]]:
    for key, verdict in table.items():
        if not key.isascii() or not key.isdecimal():
            raise ConfigError(f"{origin}: xids.{key} is not the number of an XID")
        if int(key) not in XIDS:
            known = ", ".join(str(number) for number in XIDS)
            raise ConfigError(f"{origin}: XID {key} is not known", f"Allowed are {known}.")
        if verdict not in XID_VERDICTS:
            allowed = f"Allowed are {', '.join(XID_VERDICTS)}."
            raise ConfigError(f"{origin}: xids.{key} is {verdict!r}", allowed)
        yield int(key), verdict


def _table(document: Mapping[str, Any], key: str, origin: str, prefix: str = "") -> dict[str, Any]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {prefix}{key} is not a table")
    return table


def _only(table: Mapping[str, Any], allowed: Iterable[str], origin: str, prefix: str) -> None:
    """Check that a table has no key but the allowed ones."""
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            remedy = f"Allowed are {', '.join(allowed)}."
            raise ConfigError(f"{origin}: {prefix}{key} is not known", remedy)
