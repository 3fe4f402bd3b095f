"""Find moments within stretches of time: soaks on busy hosts have thousands of both. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Stretches:
    """Stretches of time, both ends included; they may overlap.

    Args:
        stretches: The beginning and the end of each.
    """

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        self._firsts: list[float] = []
        #: The latest end of each stretch and of those before it.
        self._lasts: list[float] = []
        for first, last in sorted(stretches):
            self._firsts.append(first)
            self._lasts.append(max(last, self._lasts[-1]) if self._lasts else last)

    def __contains__(self, moment: float) -> bool:
        """Check whether a moment is in one of them."""
        number = bisect_right(self._firsts, moment)
        return number > 0 and moment <= self._lasts[number - 1]
