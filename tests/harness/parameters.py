"""Parameters of a test of which ``make test`` takes some, and ``make test-all`` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_long(
    names: str,
    values: Iterable[Any],
    *,
    quick: int = 1,
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test, and mark all parameters but the first ones as long.

    It is for parameters that take the same way through the code: a few of them find most of what
    all of them find.

    Args:
        names: The names of the parameters, separated by commas.
        values: The values; of several names, a tuple each.
        quick: How many stay in ``make test``.
        ids: As for ``pytest.mark.parametrize``.
    """
    several = "," in names
    marked = [
        value if number < quick else _long(value, several=several)
        for number, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, marked, ids=ids)


def _long(value: Any, *, several: bool) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.long], id=value.id)
    return pytest.param(*(value if several else (value,)), marks=pytest.mark.long)
