"""Convert the options of a workload, a driver or a check from text, by their annotations.

Those of the built-in workloads are here, so that every process can check them without importing
torch. The signatures of the workloads use the same types; a test compares them with this table.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from sentinel.errors import ConfigError

_BOOLS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)
#: Whole numbers of messages have 64 bits, with room for what a workload adds to an option.
_LARGEST = 2**62
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

#: Sides of matrices are a multiple of this. cuBLAS requires 16 for fp8 and 8 for int8.
GRAIN = 64
#: The kinds of numbers that are multiplied.
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
#: The phases of ``mixed``, and the plan of all that the GPU supports.
PHASES = (*DTYPES, "memory")
#: The units of ``units``.
UNITS = (
    *("exp", "log", "sin", "rsqrt", "divide", "intmul", "intdiv"),
    *("atomics", "histogram", "sort", "scan", "sum", "softmax", "attention", "small"),
    *("e5m2", "fp4", "sfu", "shared", "gather"),
)
#: The patterns of ``memtest``.
PATTERNS = (
    *("zeros", "ones", "aa", "55"),
    *("walking-one", "address", "random", "random-complement"),
)
#: The plan of all phases, and the name of all patterns.
ALL = "all"
#: The kind of number that is multiplied; ``auto`` chooses by the GPU.
GemmDtype = Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8"]
#: Which results are checked: all, one in 16, or none.
Verify = Literal["full", "sample", "off"]
#: Whether the GPUs of a host pulse on their own, all at once, or every other one half a period
#: later.
Sync = Literal["off", "in-phase", "out-of-phase"]


class _Required:
    """The default of an option that has none."""


REQUIRED = _Required()


class Option(NamedTuple):
    """One option: an int, a float, a bool, a str or a Literal, maybe with a check."""

    #: Such as ``int``; ``Annotated[int, check]`` calls ``check``, which raises ConfigError.
    annotation: object
    #: The value if it is not given, or REQUIRED.
    default: object = REQUIRED


def convert_options(
    name: str, options: Mapping[str, Option], given: Mapping[str, str]
) -> dict[str, object]:
    """Convert the given options to values.

    Args:
        name: What has the options, for errors.
        options: All of them.
        given: The texts of some.

    Raises:
        ConfigError: One is unknown, missing, of the wrong kind, or refused by its check.
    """
    allowed = describe_options(options)
    for key in given.keys() - options.keys():
        raise ConfigError(f"{name} has no option {key!r}; {allowed}")
    for key, option in options.items():
        if option.default is REQUIRED and key not in given:
            raise ConfigError(f"{name} needs the option {key!r}; {allowed}")
    values: dict[str, object] = {}
    for key, text in given.items():
        annotation = options[key].annotation
        try:
            values[key] = _convert(annotation, text)
        except (ValueError, KeyError):
            what = f"{name}: option {key}={text!r} is not {kind_of(annotation)}; {allowed}"
            raise ConfigError(what) from None
        for check in _checks(annotation):
            try:
                check(values[key])
            except ConfigError as error:
                raise ConfigError(f"{name}: {error.what}", error.remedy) from None
    return values


def describe_options(options: Mapping[str, Option]) -> str:
    """Describe all options, for an error."""
    shown = [
        f"{name} ({kind_of(option.annotation)}"
        + ("" if option.default is REQUIRED else f", default {option.default!r}")
        + ")"
        for name, option in options.items()
    ]
    return f"its options are {', '.join(shown)}" if shown else "it has no options"


def kind_of(annotation: object) -> str:
    """Describe the values that ``annotation`` allows."""
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(annotation)))
    unsupported = f"{annotation}, which cannot be written as an option"
    return next((name for kind, name in _KINDS.items() if annotation is kind), unsupported)


def _checks(annotation: object) -> list[Callable[[object], None]]:
    """Return the checks of an ``Annotated``; of any other annotation there are none."""
    return [item for item in getattr(annotation, "__metadata__", ()) if callable(item)]


def _plain(annotation: object) -> object:
    """Return an annotation without what ``Annotated`` adds to it."""
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return typing.get_args(annotation)[0] if is_annotated else annotation


def _convert(annotation: object, text: str) -> object:
    """Convert ``text``; raises ValueError or KeyError if ``annotation`` does not allow it."""
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {str(value): value for value in typing.get_args(annotation)}[text]
    if annotation is bool:
        return _BOOLS[text.lower()]
    if annotation is str:
        return text
    if annotation is int and abs(whole := int(text)) <= _LARGEST:
        return whole
    if annotation is float and math.isfinite(number := float(text)):
        return number
    raise ValueError


# --- the built-in workloads -------------------------------------------------------------------


def _within(
    name: str, least: float, most: float, *, or_zero: bool = False
) -> Callable[[float], None]:
    """Build the check that an option is in a range, or is 0 if that is allowed, too."""

    def check(value: float) -> None:
        if not (least <= value <= most or (or_zero and value == 0)):
            allowed = f"allowed is {'0, or ' if or_zero else ''}from {least:g} to {most:g}"
            raise ConfigError(f"{name}={value:g} is out of range", allowed)

    return check


def check_size(size: int) -> None:
    """Check the rows of square matrices; 0 chooses.

    Raises:
        ConfigError: It is no positive multiple of 64.
    """
    if size and (size < GRAIN or size % GRAIN):
        raise ConfigError(f"size={size} is not a positive multiple of {GRAIN}")


def split_names(text: str) -> list[str]:
    """Split names with plus signs between them."""
    return [name.strip() for name in text.split("+")]


def check_plan(workload: str, names: Sequence[str]) -> Callable[[str], None]:
    """Build the check of the names in the plan of a workload, if they are not all.

    The check raises ConfigError for an unknown name.
    """

    def check(plan: str) -> None:
        for name in split_names(plan) if plan != ALL else ():
            if name not in names:
                what = f"{workload}: there is no {name!r} in plan={plan!r}"
                some = f"Write some of {', '.join(names)}"
                raise ConfigError(what, f"{some} with a plus between them, or {ALL}.")

    return check


def check_patterns(patterns: str) -> None:
    """Check the names of the patterns of ``memtest``, if they are not all.

    Raises:
        ConfigError: A pattern is unknown.
    """
    for name in split_names(patterns) if patterns != ALL else ():
        if name not in PATTERNS:
            allowed = f"allowed are all, or some of {'+'.join(PATTERNS)}"
            raise ConfigError(f"memtest: patterns={patterns} has {name!r} in it; {allowed}")


Size = Annotated[int, check_size]
#: A day has no time for more.
Seeds = Annotated[int, _within("seeds", 1, 1000)]
Plan = Annotated[str, check_plan("mixed", PHASES)]
UnitPlan = Annotated[str, check_plan("units", UNITS)]
PhaseSeconds = Annotated[float, _within("seconds", 0.1, 3600)]
Patterns = Annotated[str, check_patterns]
#: How many seconds a stripe is left untouched; 0 leaves none.
Retention = Annotated[float, _within("retention", 1, 7200, or_zero=True)]
#: Periods per second.
Hz = Annotated[float, _within("hz", 0.2, 100)]
#: The share of a period under load.
Duty = Annotated[float, _within("duty", 0.1, 0.9)]
#: The load of each period in milliseconds; 0 goes by the duty.
Burst = Annotated[float, _within("burst", 0.1, 5, or_zero=True)]

#: The options of each built-in workload.
BUILT_IN: Mapping[str, Mapping[str, Option]] = {
    "elementwise": {},
    "gemm": {
        "dtype": Option(GemmDtype, "auto"),
        "size": Option(Size, 0),
        "verify": Option(Verify, "full"),
        "seeds": Option(Seeds, 4),
    },
    "hold": {},
    "links": {"nvls": Option(bool, False)},
    "memtest": {
        "patterns": Option(Patterns, ALL),
        "seed": Option(int, 1),
        "retention": Option(Retention, 0.0),
    },
    "mixed": {
        "plan": Option(Plan, ALL),
        "seconds": Option(PhaseSeconds, 10.0),
        "verify": Option(Verify, "full"),
        "seeds": Option(Seeds, 4),
    },
    "pulse": {
        "hz": Option(Hz, 1.0),
        "duty": Option(Duty, 0.5),
        "burst": Option(Burst, 0.0),
        "size": Option(Size, 0),
        "sync": Option(Sync, "off"),
    },
    "units": {
        "plan": Option(UnitPlan, ALL),
        "seconds": Option(PhaseSeconds, 2.0),
    },
}
