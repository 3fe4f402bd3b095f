"""A run is found by its folder, by its id, or as the last one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.fleet.run_folder import MAX_KNOWN, FleetFolder, find_fleet, known_folder, remember


def begun(tmp_path: Path, known: Path, run_id: str) -> FleetFolder:
    folder = FleetFolder(path=tmp_path / f"folder of {run_id}")
    folder.create()
    remember(known, run_id, folder)
    return folder


def test_a_run_is_found_by_id_folder_and_as_the_last_one(tmp_path: Path) -> None:
    known = known_folder({"XDG_STATE_HOME": str(tmp_path)}, 1000)
    with pytest.raises(ConfigError, match="no fleet run was begun here"):
        find_fleet(known, None)
    first, second = begun(tmp_path, known, "one"), begun(tmp_path, known, "two")
    os.utime(known / "one", ns=(1, 1), follow_symlinks=False)
    assert find_fleet(known, None) == second
    assert find_fleet(known, "one") == first
    assert find_fleet(known, str(first.path)) == first
    assert find_fleet(known, "unknown").path == Path("unknown").absolute()


def test_a_folder_comes_before_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known"
    begun(tmp_path, known, "one")
    monkeypatch.chdir(tmp_path)
    here = FleetFolder(path=tmp_path / "one")
    here.create()
    here.run_file.touch()
    assert find_fleet(known, "one") == here


def test_old_links_are_removed_and_a_full_disk_hinders_nothing(tmp_path: Path) -> None:
    known = tmp_path / "known"
    for number in range(MAX_KNOWN + 3):
        remember(known, f"run{number}", FleetFolder(path=tmp_path))
    assert len(list(known.iterdir())) == MAX_KNOWN
    (tmp_path / "file").touch()
    remember(tmp_path / "file", "run", FleetFolder(path=tmp_path))
