"""The settings and options with a new name: an old name is an error that has the new one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sentinel.config.setting import variable_of


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """One setting that had another key, flag and variable."""

    old_key: str
    old_flag: str
    key: str
    flag: str


#: The settings that were renamed.
RENAMED = (
    Renamed(
        old_key="memory.reserve", old_flag="--reserve", key="memory.keep_free", flag="--keep-free"
    ),
    Renamed(
        old_key="budget.reserve",
        old_flag="--budget-reserve",
        key="budget.keep_unallocated",
        flag="--keep-unallocated",
    ),
    *(
        Renamed(
            old_key=f"throttle.{old}",
            old_flag=f"--{old.replace('_', '-')}",
            key=f"throttle.{new}",
            flag=f"--{new.replace('_', '-')}",
        )
        for old, new in (
            ("temp_optimal", "temp_normal_from"),
            ("temp_normal", "temp_throttled_from"),
            ("temp_throttle", "temp_critical_from"),
            ("temp_critical", "temp_overheating_from"),
            ("memory_optimal", "memory_normal_from"),
            ("memory_normal", "memory_throttled_from"),
            ("memory_critical", "memory_critical_from"),
        )
    ),
)

_NEW = {
    **{one.old_key: one.key for one in RENAMED},
    **{one.old_flag: one.flag for one in RENAMED},
    **{variable_of(one.old_flag): variable_of(one.flag) for one in RENAMED},
    # Of commands that select GPUs; --gpus was a number in some of them, which --count is now.
    "--gpu": "--gpus",
}


def new_name(old: str, known: Collection[str]) -> str | None:
    """Return the new name of a key, a flag or a variable, or None if it is not a renamed one.

    Args:
        old: The name as given.
        known: The names that are allowed there.
    """
    new = _NEW.get(old)
    return new if new in known else None
