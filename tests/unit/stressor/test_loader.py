"""A workload is loaded by name, and errors are described in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sentinel.errors import ConfigError
from sentinel.stressor.loader import describe, load_workload

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_to_be_found:work", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("json:nothing", "AttributeError"),
        ("json:__name__", "workload json:__name__ is a str, which cannot be called"),
        ("gem", "there is no workload 'gem'"),
    ],
)
def test_an_unloadable_workload_is_an_error_with_its_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload(name)
    assert message in str(caught.value)


def test_an_error_is_described_in_one_bounded_line() -> None:
    def fail() -> None:
        raise ValueError("first\nsecond " + "x" * 10_000)

    with pytest.raises(ValueError, match="first") as caught:
        fail()
    line = describe(caught.value)
    assert line.startswith("ValueError: first second xxx")
    assert line.endswith(" in fail)")
    assert "(test_loader.py:" in line
    assert len(line) < 1200


def test_an_error_without_a_readable_text_is_still_described() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(UnreadableError()) == "UnreadableError"
