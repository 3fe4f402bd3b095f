"""Only regular files are read, up to a size; invalid ones are kept."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sentinel.host.files.regular_file import (
    MAX_SET_ASIDE,
    open_regular,
    read_regular,
    replace_file,
    set_aside,
    sync_folder,
)


@pytest.fixture(params=["fifo", "socket", "device", "folder"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    match request.param:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
        case "device":
            return Path("/dev/zero")
        case "folder":
            path.mkdir()
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_what_could_block_or_never_end_is_refused_at_once(irregular: Path, flags: int) -> None:
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_regular(irregular, flags)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, 4)


def test_a_link_is_followed_unless_the_caller_forbids_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"1")
    assert read_regular(tmp_path / "link", 1) == b"1"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "link", 1, os.O_NOFOLLOW)


def test_files_that_are_set_aside_do_not_replace_each_other_until_there_are_many(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    for number in range(MAX_SET_ASIDE + 1):
        path.write_text(str(number))
        renamed = set_aside(path)
        assert renamed.read_text() == str(number)
    kept = sorted(file.read_text() for file in tmp_path.iterdir())
    assert kept == [str(number) for number in range(1, MAX_SET_ASIDE + 1)]


def test_a_folder_is_written_to_disk(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")


def test_a_link_in_place_of_the_new_file_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "file.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "file", "text")
    assert victim.read_text() == "mine"
    replace_file(tmp_path / "file", "text")  # the link is gone
    assert (tmp_path / "file").read_text() == "text"
