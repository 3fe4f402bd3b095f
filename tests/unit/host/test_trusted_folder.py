"""Files that another user could have written are known, and name nothing that is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.host.files.trusted_folder import why_foreign
from tests.harness.other_user import STRANGER

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text("{}")
    path.chmod(0o644)
    return path


def test_an_own_file_is_not_foreign(file: Path) -> None:
    assert why_foreign(file) is None
    assert why_foreign(file.with_name("missing")) is None


def test_a_file_that_all_may_write_is_foreign(file: Path) -> None:
    file.chmod(0o666)
    assert why_foreign(file) == f"all users may write {file}"
    file.chmod(0o644)
    file.parent.chmod(0o777)
    assert why_foreign(file) == f"all users may write {file.parent}"
    file.parent.chmod(0o1777)
    assert why_foreign(file) is None


def test_a_link_is_foreign(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert why_foreign(link) == f"{link} is a link"


@as_root
def test_the_file_and_the_folder_of_another_user_are_foreign(file: Path) -> None:
    os.chown(file, STRANGER, STRANGER)
    assert why_foreign(file) == f"{file} belongs to uid {STRANGER}"
    os.chown(file, 0, 0)
    os.chown(file.parent, STRANGER, STRANGER)
    assert why_foreign(file) == f"{file.parent} belongs to uid {STRANGER}"


@as_root
def test_the_files_of_root_may_belong_to_another_user_on_a_shared_disk(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (file, file.parent):
        os.chown(one, STRANGER, STRANGER)
    create = os.open

    def create_as_stranger(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = create(path, flags, mode)
        os.fchown(descriptor, STRANGER, STRANGER)
        return descriptor

    monkeypatch.setattr(os, "open", create_as_stranger)
    assert why_foreign(file) is None
