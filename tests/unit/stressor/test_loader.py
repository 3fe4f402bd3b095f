"""A workload is loaded by name, and errors are described in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.errors import ConfigError, WorkloadError
from sentinel.stressor.loader import describe, load_workload


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


def test_a_module_that_is_not_found_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_another.py").write_text("\nimport not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        load_workload("nowhere_to_be_found.sub:work")
    assert "PYTHONPATH" in caught.value.remedy
    assert "<frozen" not in str(caught.value)
    with pytest.raises(WorkloadError) as caught:
        load_workload("needs_another:work")
    assert caught.value.remedy == ""
    assert "(needs_another.py:2 in <module>)" in str(caught.value)


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
