"""Find the known names that an unknown one may have been meant for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: The least similarity of two names, from 0 to 1: a letter that is wrong, missing or in another
#: place. Below it, names of another meaning are as similar: `limit` and `list` have 0.67,
#: `interval` and `watch-interval` 0.73.
_SIMILAR = 0.75
#: What the next names may lack to the most similar one.
_AS_SIMILAR = 0.1
_MAX_FOUND = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names that are about as similar as the most similar one.

    Names with the same first word are a family, such as ``temp_normal_from`` and
    ``temp_critical_from``. A name with the first word of a family is only compared with that.
    """
    names = list(known)
    first, several = _first_word(name)
    family = [one for one in names if _first_word(one)[0] == first]
    if several and family:
        names = family
    ratios = {one: _similarity(name, one) for one in names}
    least = max(_SIMILAR, max(ratios.values(), default=0.0) - _AS_SIMILAR)
    ranked = sorted((one for one in ratios if ratios[one] >= least), key=lambda one: -ratios[one])
    return ranked[:_MAX_FOUND]


def _first_word(name: str) -> tuple[str, bool]:
    """Return the first word of a name, and whether it has more."""
    words = re.split(r"[-_.]", name.lstrip("-").lower())
    return words[0], len(words) > 1


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lstrip("-"), other.lstrip("-")).ratio()
