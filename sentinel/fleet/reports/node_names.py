"""Write many nodes: their names in ranges, as Slurm and ClusterShell do, and counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: The last number of a name, with what is before and after it.
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def fold_names(names: Iterable[str]) -> str:
    """Fold names: ``node-[001-003,007],login``."""
    plain: list[str] = []
    numbers: dict[tuple[str, int, str], list[int]] = {}
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            numbers.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
    folded = [_fold(*key, found) for key, found in numbers.items()]
    return ",".join(sorted(plain + folded))


def _fold(before: str, width: int, after: str, numbers: list[int]) -> str:
    """Fold the numbers of names that have all else in common."""
    parts = [
        f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        for first, last in _ranges(sorted(numbers))
    ]
    inner = ",".join(parts)
    return f"{before}[{inner}]{after}" if len(numbers) > 1 else f"{before}{inner}{after}"


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of consecutive numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number > last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
