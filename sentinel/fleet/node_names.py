"""Names of many nodes, as Slurm and ClusterShell write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sentinel.units import format_indices

#: The last number of a name, with what is before and after it.
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def fold_names(names: Iterable[str]) -> str:
    """Fold names: ``node-[001-003,007],login``."""
    parts: list[str] = []
    numbers: dict[tuple[str, int, str], list[int]] = {}
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            parts.append(name)
        else:
            numbers.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
    for (before, width, after), found in numbers.items():
        folded = format_indices(found, width=width, separator=",")
        parts.append(f"{before}[{folded}]{after}" if len(found) > 1 else f"{before}{folded}{after}")
    return ",".join(sorted(parts))
