"""Burn-in plans: phases of work for every GPU, read from TOML. Pure.

The levels of ``sentinel burnin`` are such files, in ``sentinel/burnin/levels``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Any

from sentinel.config.specs import check_workload, find_workload, parse_workload, registered
from sentinel.errors import ConfigError
from sentinel.units import format_duration, parse_duration

#: The format that a plan names in its key ``spec``.
SPEC = "sentinel-plan-v1"
#: The built-in workloads that check no results, and those that make no passes over the memory.
_UNCHECKED = frozenset({"elementwise", "hold"})
_WITHOUT_PASSES = _UNCHECKED | {"gemm", "links", "mixed", "pulse"}
#: The longest plan: 168 hours are the longest acceptance test that is asked for.
MAX_PLAN_S = 366 * 24 * 3600.0
MAX_PHASES = 1000

_NAMES = {"str": "text", "int": "a whole number", "bool": "true or false"}
_DURATION = "seconds, or a time such as 10m"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One workload, and how much of its work a GPU must do.

    Work counts only while the workload checks its results, unless ``checked`` is False.
    """

    #: Distinguishes the phases of a plan.
    name: str
    #: As ``--workload`` takes it.
    workload: str
    #: Seconds of work to count; in a steady phase, in one stretch.
    seconds: float = 0.0
    #: How often each pattern of a memory test must have covered the memory.
    passes: int = 0
    #: Rate, power and temperature are judged here, on a GPU whose temperature is stable.
    steady: bool = False
    #: The longest time to wait for a stable temperature, in seconds; that work does not count.
    warm_up: float = 0.0
    #: The results are checked, and work without checks does not count.
    checked: bool = True
    #: Without it there is no PASS; other phases may be impossible on a GPU.
    mandatory: bool = True
    #: The GPUs of a run begin it at the same time, and end it together; it counts in one stretch.
    together: bool = False

    @property
    def in_one_stretch(self) -> bool:
        """Whether an interruption begins its work again."""
        return self.steady or self.together


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The phases of a burn-in, in their order."""

    name: str
    phases: tuple[Phase, ...]
    #: What it is for, in a sentence.
    title: str = ""
    #: A plan that is too short to prove anything gives no PASS.
    screen: bool = False
    #: A run that is older, in seconds, is not resumed.
    resumable: float = 86400.0
    #: How many of a phase's stressors may fail before the phase is given up.
    max_failures: int = 3

    @property
    def seconds(self) -> float:
        """The seconds of work of all phases, without warming up."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def hash(self) -> str:
        """The beginning of the SHA-256 of everything that the plan asks for."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_plan(table: Mapping[str, Any], source: str) -> Plan:
    """Build a plan from a parsed TOML file.

    Args:
        table: The content.
        source: The path of the file, for errors.

    Raises:
        ConfigError: A key is unknown, missing or has a wrong value.
    """
    given = dict(table)
    spec = given.pop("spec", None)
    if spec != SPEC:
        raise ConfigError(f"{source}: spec is {spec!r}", f'Allowed is spec = "{SPEC}".')
    cycles = _cycles(given.pop("cycles", 1), f"{source}: cycles")
    phases = given.pop("phase", None)
    if not isinstance(phases, list) or not 0 < len(phases) <= MAX_PHASES:
        raise ConfigError(f"{source}: no phases", f"Give 1 to {MAX_PHASES} tables [[phase]].")
    parsed = tuple(
        Phase(**_values(Phase, phase, f"{source}: phase {number}"))
        for number, phase in enumerate(phases, start=1)
    )
    values = _values(Plan, given, source, without={"phases"}, also=("cycles",))
    if cycles * len(parsed) > MAX_PHASES:
        what = f"{source}: cycles = {cycles} of {len(parsed)} phases"
        raise ConfigError(what, f"Allowed are {MAX_PHASES} phases in all.")
    plan = Plan(phases=tuple(_repeated(parsed, cycles)), **values)
    _check(plan, source)
    return plan


def check_workloads(plan: Plan, source: str) -> None:
    """Check that the workload of each phase is registered.

    Raises:
        ConfigError: As of :func:`check_workload`, with the phase.
    """
    # Each search reads all packages, and cycles repeat workloads.
    find = cache(partial(find_workload, entries=registered()))
    for phase in plan.phases:
        try:
            check_workload(phase.workload, find)
        except ConfigError as error:
            where = f"{source}: phase {phase.name!r}"
            raise ConfigError(f"{where}: {error.what}", error.remedy) from None


def plan_toml(plan: Plan) -> str:
    """Write a plan as TOML, which :func:`parse_plan` reads as the same plan."""
    lines = [f"spec = {toml_value(SPEC)}", *_pairs(plan, without=("phases",))]
    for phase in plan.phases:
        lines += ["", "[[phase]]", *_pairs(phase)]
    return "\n".join(lines) + "\n"


def _pairs(table: Plan | Phase, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Write the values of a table that differ from the defaults."""
    for field in fields(table):
        value = getattr(table, field.name)
        if field.name not in without and value != field.default:
            yield f"{field.name} = {toml_value(value)}"


def toml_value(value: str | float) -> str:
    """Write a value as TOML: as JSON, but for a character that only TOML escapes."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _cycles(value: Any, where: str) -> int:
    """Check how often the phases are to be done."""
    count: int = _value("int", value, where)
    if not 1 <= count <= MAX_PHASES:
        raise ConfigError(f"{where} = {count} is out of range", f"Allowed is 1 to {MAX_PHASES}.")
    return count


def _repeated(phases: tuple[Phase, ...], cycles: int) -> Iterator[Phase]:
    """Repeat the phases; the names of more than one cycle end with its number."""
    for cycle in range(1, cycles + 1):
        for phase in phases:
            yield phase if cycles == 1 else replace(phase, name=f"{phase.name}-{cycle}")


def _check(plan: Plan, source: str) -> None:
    """Refuse a plan that is contradictory or never ends."""
    for name in (plan.name, *(phase.name for phase in plan.phases)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ConfigError(f"{source}: {name!r} is no name", "Use letters, digits, . _ and -.")
    names = [phase.name for phase in plan.phases]
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{source}: two phases are called {name!r}")
    if not any(phase.mandatory for phase in plan.phases):
        raise ConfigError(f"{source}: no phase is mandatory", "Without one, nothing is proved.")
    for phase in plan.phases:
        _check_phase(phase, f"{source}: phase {phase.name!r}")
    if plan.seconds > MAX_PLAN_S:
        longest = format_duration(MAX_PLAN_S)
        raise ConfigError(f"{source}: it takes more than {longest}")


def _check_phase(phase: Phase, where: str) -> None:
    """Refuse a phase that is contradictory."""
    try:
        name, _ = parse_workload(phase.workload)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", error.remedy) from None
    if phase.checked and name in _UNCHECKED:
        raise ConfigError(f"{where}: {name} checks no results", "Set checked = false there.")
    if phase.passes and name in _WITHOUT_PASSES:
        raise ConfigError(f"{where}: {name} makes no passes", "Give seconds, or use memtest.")
    if phase.seconds <= 0 and phase.passes <= 0:
        raise ConfigError(f"{where} asks for no work", "Give seconds or passes above 0.")
    if phase.steady and phase.seconds <= 0:
        raise ConfigError(f"{where} is steady, and has no seconds")
    if phase.together and (phase.steady or phase.passes or phase.seconds <= 0):
        what = f"{where} has together = true: it needs seconds, and cannot be steady or have passes"
        raise ConfigError(what, "GPUs that work together count seconds, without warming up.")
    if phase.warm_up and not phase.steady:
        raise ConfigError(f"{where} has a warm_up, and is not steady")


def _values(
    kind: type,
    table: Any,
    where: str,
    without: frozenset[str] | set[str] = frozenset(),
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Check the keys and values of a table against the fields of a dataclass.

    Args:
        kind: The dataclass.
        table: The table.
        where: Its place, for errors.
        without: Fields that are no keys.
        also: Keys that are no fields, and have been removed; for errors.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is not a table")
    known = {field.name: str(field.type) for field in fields(kind) if field.name not in without}
    values = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(
                f"{where}: {key!r} is unknown", f"Allowed are {', '.join((*known, *also))}."
            )
        values[key] = _value(known[key], value, f"{where}: {key}")
    required = {"name", *({"workload"} if kind is Phase else ())}
    for key in sorted(required - set(values)):
        raise ConfigError(f"{where}: {key!r} is missing")
    return values


def _value(kind: str, value: Any, where: str) -> Any:
    """Convert one value, or refuse it."""
    if kind == "float":
        seconds = _seconds(value, where)
        if not 0 <= seconds <= MAX_PLAN_S:
            raise ConfigError(f"{where} = {value!r} is out of range", "Allowed is 0 to a year.")
        return seconds
    wanted = {"str": str, "int": int, "bool": bool}[kind]
    if type(value) is not wanted:
        raise ConfigError(f"{where} = {value!r} is not {_NAMES[kind]}")
    if value == "" or (type(value) is int and value < 0):
        raise ConfigError(f"{where} = {value!r} is not allowed")
    return value


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError:
            pass
    raise ConfigError(f"{where} = {value!r} is not {_DURATION}")
