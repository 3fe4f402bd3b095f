"""A file that replaces limits of checks and the verdicts of XIDs. Pure.

It has the names and the shape of DCGM's ``error_thresholds.yaml``, as TOML::

    spec = "dcgm-error-thresholds-v1"

    [common_thresholds."ecc.corrected_new.warn".GT]
    value = 100

    [xids]
    63 = "fail"
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.burnin.checks.catalogue import CATALOGUE
from sentinel.burnin.checks.check import Comparison, Limit, Limits, Thresholds
from sentinel.burnin.checks.xid_checks import NVLINK5
from sentinel.config.toml_text import parse_toml
from sentinel.errors import ConfigError
from sentinel.protocol.codec import from_json
from sentinel.protocol.xids import XIDS, XidMeaning

SPEC = "dcgm-error-thresholds-v1"

#: Of the number of an XID; Python refuses to convert thousands.
_MAX_DIGITS = 9

#: The verdicts that a file may give an XID.
XID_VERDICTS = ("fail", "warn", "pass")

#: The checks whose limits are no matter of taste: a result was wrong, or a card is broken or gone.
#: Without them, nothing is proved.
CORRECTNESS = frozenset(name for name, row in CATALOGUE.items() if row.is_of_correctness)


def parse(text: str, origin: str, known: Mapping[str, Limits]) -> Thresholds:
    """Parse the text of a file.

    Args:
        text: The TOML document.
        origin: The path of the file, for messages.
        known: The default limits of each check by its id.

    Raises:
        ConfigError: It is no TOML, or has a key or value that is not allowed.
    """
    document = parse_toml(text, origin)
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
            allowed += "docs/reference/checks.md and docs/guides/fleet.md list all."
            raise ConfigError(f"{origin}: {where} is not a threshold", allowed)
        check, name = limits[key]
        default = known[check][name]
        value = _value(entry, default.comparison, origin, where)
        replaced.setdefault(check, {})[name] = replace(default, value=value, origin=origin)
    xids = dict(_xids(_table(document, "xids", origin), origin))
    excused = {
        f"{check}.{name}": f"{limit}, not {known[check][name]}"
        for check in CORRECTNESS & replaced.keys()
        for name, limit in replaced[check].items()
        if _is_raised(limit, known[check][name])
    } | {
        f"xid.{number}": f"{verdict}, not fail"
        for number, verdict in xids.items()
        if verdict != "fail" and (XIDS[number].meaning is XidMeaning.FAIL or number in NVLINK5)
    }
    excused = dict(sorted(excused.items()))
    return Thresholds(replaced=replaced, xids=xids, origin=origin, excused=excused)


def recorded(value: Mapping[str, Any] | None) -> Thresholds:
    """Build thresholds from the JSON values of their dataclass; None for the defaults.

    Raises:
        DecodeError: They are something else.
    """
    found = Thresholds() if value is None else from_json(Thresholds, value, "thresholds")
    return replace(found, xids={int(number): verdict for number, verdict in found.xids.items()})


def _is_raised(limit: Limit, default: Limit) -> bool:
    """Check whether a limit lets pass what its default does not."""
    above = limit.comparison in {Comparison.GT, Comparison.GTE}
    return limit.value > default.value if above else limit.value < default.value


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
        if not key.isascii() or not key.isdecimal() or len(key) > _MAX_DIGITS:
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
