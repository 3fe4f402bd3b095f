"""What a node must be: the file ``node.toml``, which every command that judges enforces. Pure.

::

    gpus = 8

    [all]
    driver = {min = "550.54.15"}
    ecc = true

    [model."NVIDIA H100 80GB HBM3"]
    power_limit_w = 700
    vbios = ["96.00.74.00.1A", "96.00.A5.00.01"]

    [[infiniband]]
    port = "mlx5_0/1"
    rate_gbps = 400
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NoReturn

from sentinel.config.plan import toml_value
from sentinel.config.toml_text import parse_toml
from sentinel.errors import ConfigError

Value = str | float | bool

MAX_GPUS = 1024

_HEADER = re.compile(r"\s*\[+\s*(.+?)\s*\]+\s*(#.*)?")


class Kind(StrEnum):
    """What a field may be."""

    NUMBER = "a number"
    FLAG = "true or false"
    #: A text whose parts between dots are numbers of this base: it may have a minimum.
    DECIMAL = "a version such as 550.54.15"
    HEXADECIMAL = "a version such as 96.00.74.00.1A"
    TEXT = "a text"


#: What each field of a GPU may be, in the tables ``all`` and ``model``.
GPU_FIELDS: Final[Mapping[str, Kind]] = {
    "memory_mib": Kind.NUMBER,
    "driver": Kind.DECIMAL,
    "vbios": Kind.HEXADECIMAL,
    "power_limit_w": Kind.NUMBER,
    "ecc": Kind.FLAG,
    "mig": Kind.FLAG,
    "persistence": Kind.FLAG,
    "pcie_generation": Kind.NUMBER,
    "pcie_width": Kind.NUMBER,
    "nvlinks": Kind.NUMBER,
    "nvlink_speed_mbps": Kind.NUMBER,
}
#: That of a port, in the tables ``infiniband``, beside its name.
PORT_FIELDS: Final[Mapping[str, Kind]] = {
    "state": Kind.TEXT,
    "rate_gbps": Kind.NUMBER,
}
_BASES = {Kind.DECIMAL: 10, Kind.HEXADECIMAL: 16}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The values that a field may have."""

    one_of: tuple[Value, ...] = ()
    #: The least value; None without one.
    minimum: Value | None = None
    kind: Kind

    def allows(self, value: Value) -> bool | None:
        """Check a value; None if it cannot be compared with the minimum."""
        if self.minimum is None:
            return value in self.one_of
        found, least = comparable(self.kind, value), comparable(self.kind, self.minimum)
        return None if found is None or least is None else found >= least

    def __str__(self) -> str:
        if self.minimum is not None:
            return f"at least {show(self.minimum)}"
        return " or ".join(map(show, self.one_of))


@dataclass(frozen=True, kw_only=True)
class WantedPort:
    """A port of an InfiniBand adapter that must be there."""

    #: Such as ``mlx5_0/1``.
    port: str
    #: By the names of PORT_FIELDS.
    fields: Mapping[str, Wanted]


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a node must be; nothing by default."""

    #: The number of its GPUs; None if that is not said.
    gpus: int | None = None
    #: The serial numbers of its GPUs, all of them; empty if that is not said.
    serials: tuple[str, ...] = ()
    #: By the names of GPU_FIELDS: of all GPUs, and of a model by its name.
    all: Mapping[str, Wanted] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Wanted]] = field(default_factory=dict)
    infiniband: tuple[WantedPort, ...] = ()
    #: Where it is from, such as the path of the file; empty without one.
    source: str = ""
    #: The text of the file.
    text: str = ""

    def of(self, model: str) -> dict[str, Wanted]:
        """Select the fields of a GPU of this model: those of the model come before those of all."""
        return {**self.all, **self.models.get(model, {})}


def comparable(kind: Kind, value: Value) -> tuple[float, ...] | None:
    """Convert a value to what can be ordered, or None if it has no order."""
    if isinstance(value, str):
        try:
            return tuple(int(part, _BASES[kind]) for part in value.split("."))
        except (KeyError, ValueError):
            return None
    return (float(value),)


def show(value: Value) -> str:
    """Write a value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else f"{value:g}"


# --- parsing ---------------------------------------------------------------------------------


def parse_expectation(text: str, source: str) -> Expectation:
    """Parse and check the text of a file.

    Args:
        text: The TOML document.
        source: Its origin, for messages.

    Raises:
        ConfigError: It is not TOML, expects nothing, or has a key or a value that is not allowed;
            with the line, as far as it is known, the key and what is allowed.
    """
    return _Parser(text, source).parse()


def expect_gpus(number: int, more: Expectation | None = None) -> Expectation:
    """Build the expectation of ``--expect-gpus``.

    Args:
        number: How many GPUs the node must have.
        more: A file without that number, whose other fields stay.
    """
    text, source = "" if more is None else more.text, f"--expect-gpus {number}"
    source = source if more is None else f"{more.source}, {source}"
    return parse_expectation(f"gpus = {number}\n{text}", source)


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text, source

    def parse(self) -> Expectation:
        document = parse_toml(self._text, self._source)
        self._only(document, ("gpus", "serials", "all", "model", "infiniband"), "")
        models = self._table(document.get("model", {}), "", "model")
        found = Expectation(
            gpus=self._count(document["gpus"]) if "gpus" in document else None,
            serials=self._serials(document["serials"]) if "serials" in document else (),
            all=self._fields(self._table(document.get("all", {}), "", "all"), "all"),
            models={
                name: self._fields(self._table(table, "model", name), f'model."{name}"')
                for name, table in models.items()
            },
            infiniband=tuple(self._ports(document.get("infiniband", []))),
            source=self._source,
            text=self._text,
        )
        # A model without fields is the only one, or one of those, that a node may have.
        if found == Expectation(source=self._source, text=self._text):
            raise ConfigError(f"{self._source}: it expects nothing", "Write gpus = 8, for example.")
        return found

    def _count(self, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= MAX_GPUS:
            self._refuse("", "gpus", value, f"a whole number from 1 to {MAX_GPUS}")
        return value

    def _serials(self, value: Any) -> tuple[str, ...]:
        good = isinstance(value, list) and value and all(isinstance(s, str) and s for s in value)
        if not good or len(set(value)) < len(value):
            self._refuse("", "serials", value, "a list of different texts")
        return tuple(value)

    def _ports(self, value: Any) -> Iterable[WantedPort]:
        if not isinstance(value, list):
            self._refuse("", "infiniband", value, "tables [[infiniband]]")
        names = [table.get("port") for table in value if isinstance(table, dict)]
        for table in value:
            port = self._table(table, "", "infiniband").get("port")
            if not isinstance(port, str) or not port or names.count(port) > 1:
                self._refuse("infiniband", "port", port, "a name of its own, such as mlx5_0/1")
            given = {"state": "ACTIVE"} | {name: table[name] for name in table if name != "port"}
            yield WantedPort(port=port, fields=self._fields(given, "infiniband", PORT_FIELDS))

    def _fields(
        self, table: Mapping[str, Any], where: str, known: Mapping[str, Kind] = GPU_FIELDS
    ) -> dict[str, Wanted]:
        self._only(table, known, where)
        return {name: self._wanted(known[name], table[name], where, name) for name in table}

    def _wanted(self, kind: Kind, value: Any, where: str, key: str) -> Wanted:
        has_least = isinstance(value, dict)
        values = (
            list(value.values()) if has_least else value if isinstance(value, list) else [value]
        )
        good = bool(values) and all(_is_of(kind, one) for one in values)
        if has_least:
            ordered = kind not in {Kind.FLAG, Kind.TEXT} and good
            good = ordered and list(value) == ["min"] and comparable(kind, values[0]) is not None
        if not good:
            more = "" if kind is Kind.FLAG else ", or a list of such"
            more += "" if kind in {Kind.FLAG, Kind.TEXT} else ", or {min = ...}"
            self._refuse(where, key, value, f"{kind.value}{more}")
        if has_least:
            return Wanted(minimum=values[0], kind=kind)
        return Wanted(one_of=tuple(values), kind=kind)

    def _table(self, value: Any, where: str, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(where, key, value, "a table")
        return value

    def _only(self, table: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
        known = tuple(allowed)
        for key in table:
            if key not in known:
                place = self._place(where, key)
                raise ConfigError(f"{place} is not known", f"Allowed are {', '.join(known)}.")

    def _refuse(self, where: str, key: str, value: Any, allowed: str) -> NoReturn:
        raise ConfigError(f"{self._place(where, key)} is {value!r}", f"Allowed is {allowed}.")

    def _place(self, where: str, key: str) -> str:
        """Name the file, the line, as far as it is found, and the key."""
        path = f"{where}.{key}" if where else key
        line = _line_of(self._text.splitlines(), where.replace('"', ""), key)
        return f"{self._source}: {path}" if line is None else f"{self._source}:{line}: {path}"


def _is_of(kind: Kind, value: Any) -> bool:
    if kind is Kind.FLAG:
        return isinstance(value, bool)
    if kind is Kind.NUMBER:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and value >= 0
    return isinstance(value, str) and bool(value.strip())


def _line_of(lines: Sequence[str], table: str, key: str) -> int | None:
    """Find the line of a key, or of the table that is one; None where it is written otherwise."""
    here = ""
    for number, line in enumerate(lines, start=1):
        if header := _HEADER.fullmatch(line):
            here = re.sub("[\"']", "", header[1])
            if not table and here.partition(".")[0] == key:
                return number
        elif here == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return None


# --- writing ---------------------------------------------------------------------------------


def expectation_toml(expectation: Expectation) -> str:
    """Write an expectation as TOML, which :func:`parse_expectation` reads as the same."""
    lines = [] if expectation.gpus is None else [f"gpus = {expectation.gpus}"]
    if expectation.serials:
        lines.append(f"serials = {_written(Wanted(one_of=expectation.serials, kind=Kind.TEXT))}")
    tables = [("[all]", expectation.all)] if expectation.all else []
    tables += [(f"[model.{toml_value(name)}]", of) for name, of in expectation.models.items()]
    for header, fields in tables:
        lines += ["", header, *(f"{name} = {_written(one)}" for name, one in fields.items())]
    for port in expectation.infiniband:
        pairs = [f"{name} = {_written(one)}" for name, one in port.fields.items()]
        lines += ["", "[[infiniband]]", f"port = {toml_value(port.port)}", *pairs]
    return "\n".join(lines).strip() + "\n"


def _written(wanted: Wanted) -> str:
    if wanted.minimum is not None:
        return f"{{min = {toml_value(wanted.minimum)}}}"
    values = [toml_value(value) for value in wanted.one_of]
    is_list = len(values) > 1 or wanted.kind is Kind.TEXT
    return f"[{', '.join(values)}]" if is_list else values[0]
