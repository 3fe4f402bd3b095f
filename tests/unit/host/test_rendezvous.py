"""The folder of a group: private, and gone afterwards."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sentinel.host.rendezvous import Rendezvous
from sentinel.protocol.stressor import Account
from tests.harness.narrowing import not_none


def test_only_its_user_can_enter_the_folder_and_it_does_not_stay() -> None:
    with Rendezvous(None) as rendezvous:
        folder = not_none(rendezvous.folder())
        assert rendezvous.folder() == folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(folder.iterdir())
        (folder / "group-1").touch()
    assert not folder.exists()


def test_the_user_of_the_stressors_gets_the_folder() -> None:
    own = os.getuid(), os.getgid()
    account = Account(uid=own[0], gid=own[1], groups=(), name="me", home="/")
    with Rendezvous(account) as rendezvous:
        folder = not_none(rendezvous.folder())
        found = folder.stat()
        assert (found.st_uid, found.st_gid) == own
        assert stat.S_IMODE(found.st_mode) == 0o700


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "sentinel-group-left"
    left.mkdir(mode=0o700)
    (left / "group-1").touch()
    other = tmp_path / "other"
    other.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / "sentinel-group-link").symlink_to(target)
    with Rendezvous(None) as first:
        folder = not_none(first.folder())
        assert not left.exists()
        with Rendezvous(None) as second:
            assert folder.exists()
            assert second.folder() != folder
        assert folder.exists()
    assert not folder.exists()
    assert other.exists()
    assert (target / "kept").exists()


def test_a_folder_that_was_removed_is_made_again() -> None:
    with Rendezvous(None) as rendezvous:
        first = not_none(rendezvous.folder())
        first.rmdir()
        second = not_none(rendezvous.folder())
        assert stat.S_IMODE(second.stat().st_mode) == 0o700
    assert not second.exists()
