"""Values that a test expects to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Fail if a value is None; return it."""
    assert value is not None
    return value
