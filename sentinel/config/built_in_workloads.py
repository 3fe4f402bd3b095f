"""The options of the built-in workloads, which every process can check without importing torch.

The signatures of the workloads use the same types; a test compares them with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from sentinel.config.option_values import Option
from sentinel.errors import ConfigError

#: The package of the built-in workloads.
PACKAGE = "sentinel.stressor.workloads."

#: Sides of matrices are a multiple of this. cuBLAS requires 16 for fp8 and 8 for int8.
GRAIN = 64
#: More seeds than a day has time for.
_MAX_SEEDS = 1000
#: Limits of the duration of a phase of ``mixed``.
_MIN_PHASE_S, _MAX_PHASE_S = 0.1, 3600.0
#: Limits of how long ``memtest`` leaves a stripe untouched.
_MIN_RETENTION_S, _MAX_RETENTION_S = 1.0, 7200.0
_MIN_HZ, _MAX_HZ = 0.5, 10.0
_MIN_DUTY, _MAX_DUTY = 0.1, 0.9

#: The kinds of numbers that are multiplied.
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
#: The phases of ``mixed``, and the plan of all that the GPU supports.
PHASES = (*DTYPES, "memory")
#: The patterns of ``memtest``.
PATTERNS = (
    *("zeros", "ones", "aa", "55"),
    *("walking-one", "address", "random", "random-complement"),
)
#: The plan of all phases, and the name of all patterns.
ALL = "all"


def check_seeds(seeds: int) -> None:
    """Check the number of seeds.

    Raises:
        ConfigError: It is not from 1 to 1000.
    """
    if not 1 <= seeds <= _MAX_SEEDS:
        raise ConfigError(f"seeds={seeds} is out of range", f"allowed is from 1 to {_MAX_SEEDS}")


def check_size(size: int) -> None:
    """Check the rows of square matrices; 0 chooses.

    Raises:
        ConfigError: It is no positive multiple of 64.
    """
    if size and (size < GRAIN or size % GRAIN):
        raise ConfigError(f"size={size} is not a positive multiple of {GRAIN}")


def check_seconds(seconds: float) -> None:
    """Check the duration of a phase of ``mixed``.

    Raises:
        ConfigError: It is out of range.
    """
    if not _MIN_PHASE_S <= seconds <= _MAX_PHASE_S:
        what = f"mixed: seconds={seconds:g} is out of range"
        raise ConfigError(what, f"allowed is from {_MIN_PHASE_S:g} to {_MAX_PHASE_S:g}")


def split_names(text: str) -> list[str]:
    """Split names with plus signs between them."""
    return [name.strip() for name in text.split("+")]


def check_plan(plan: str) -> None:
    """Check the names of the phases of ``mixed``, if they are not all.

    Raises:
        ConfigError: A phase is unknown.
    """
    for name in split_names(plan) if plan != ALL else ():
        if name not in PHASES:
            known = ", ".join(PHASES)
            what = f"mixed: there is no {name!r} in plan={plan!r}"
            raise ConfigError(what, f"Write some of {known} with a plus between them, or {ALL}.")


def check_patterns(patterns: str) -> None:
    """Check the names of the patterns of ``memtest``, if they are not all.

    Raises:
        ConfigError: A pattern is unknown.
    """
    for name in split_names(patterns) if patterns != ALL else ():
        if name not in PATTERNS:
            allowed = f"allowed are all, or some of {'+'.join(PATTERNS)}"
            raise ConfigError(f"memtest: patterns={patterns} has {name!r} in it; {allowed}")


def check_retention(retention: float) -> None:
    """Check how long ``memtest`` leaves a stripe untouched, in seconds; 0 leaves none.

    Raises:
        ConfigError: It is out of range.
    """
    if retention and not _MIN_RETENTION_S <= retention <= _MAX_RETENTION_S:
        what = f"memtest: retention={retention:g} is out of range; allowed is 0, or from 1 to 7200"
        raise ConfigError(what)


def check_hz(hz: float) -> None:
    """Check the periods per second of ``pulse``.

    Raises:
        ConfigError: They are out of range.
    """
    if not _MIN_HZ <= hz <= _MAX_HZ:
        raise ConfigError(f"pulse: hz={hz:g} is out of range; allowed is from 0.5 to 10")


def check_duty(duty: float) -> None:
    """Check the share of a period of ``pulse`` under load.

    Raises:
        ConfigError: It is out of range.
    """
    if not _MIN_DUTY <= duty <= _MAX_DUTY:
        raise ConfigError(f"pulse: duty={duty:g} is out of range; allowed is from 0.1 to 0.9")


#: The kind of number that is multiplied; ``auto`` chooses by the GPU.
GemmDtype = Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8"]
Size = Annotated[int, check_size]
Seeds = Annotated[int, check_seeds]
#: Which results are checked: all, one in 16, or none.
Verify = Literal["full", "sample", "off"]
Plan = Annotated[str, check_plan]
PhaseSeconds = Annotated[float, check_seconds]
Patterns = Annotated[str, check_patterns]
Retention = Annotated[float, check_retention]
Hz = Annotated[float, check_hz]
Duty = Annotated[float, check_duty]
#: Whether the GPUs of a host pulse on their own, all at once, or every other one half a period
#: later.
Sync = Literal["off", "in-phase", "out-of-phase"]

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
    "links": {},
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
        "size": Option(Size, 0),
        "sync": Option(Sync, "off"),
    },
}
