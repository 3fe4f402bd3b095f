"""The hash of what decides a start: code changes it, comments and docstrings do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.start_code import PATHS, start_code

BEFORE = """\
'One.'

LIMIT = 1  # a comment


def first() -> int:
    'Two.'
    return LIMIT
"""


def package(folder: Path, text: str) -> Path:
    """Write a package in which each file has this text."""
    for name in PATHS:
        path = folder / name if name.endswith(".py") else folder / name / "main.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (BEFORE, True),
        (BEFORE.replace("Two", "Three").replace("a comment", "another"), True),
        (BEFORE.replace("\n\n\n", "\n"), True),
        (BEFORE.replace("LIMIT = 1", "LIMIT = 2"), False),
        (BEFORE.replace("    return LIMIT\n", ""), False),
    ],
)
def test_code_alone_changes_the_hash(tmp_path: Path, after: str, *, same: bool) -> None:
    before = start_code(package(tmp_path / "before", BEFORE))
    assert (start_code(package(tmp_path / "after", after)) == before) is same


def test_a_new_file_of_a_folder_changes_the_hash(tmp_path: Path) -> None:
    folder = package(tmp_path, BEFORE)
    before = start_code(folder)
    (folder / "stressor/another.py").write_text(BEFORE)
    assert start_code(folder) != before


def test_all_files_exist_in_the_package() -> None:
    assert len(start_code()) == 12
