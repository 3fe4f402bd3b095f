"""Only regular files that no other user could have written are read; invalid ones are kept."""

from __future__ import annotations

import ast
import os
import re
import socket
from pathlib import Path

import pytest

import sentinel
from sentinel.host.regular_file import (
    MAX_SET_ASIDE,
    open_regular,
    read_regular,
    replace_file,
    set_aside,
    sync_folder,
    why_foreign,
)
from tests.harness.access_lists import allow
from tests.harness.isolation import STRANGER


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


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC])
def test_what_is_written_is_no_file_of_another_user(tmp_path: Path, flags: int) -> None:
    path = tmp_path / "sentinel.log"
    path.write_text("before")
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(OSError, match=f"it belongs to uid {STRANGER}"):
        open_regular(path, flags | os.O_CREAT)
    assert path.read_text() == "before"
    os.close(open_regular(path, os.O_RDONLY))


def test_what_is_written_is_no_file_that_all_users_may_write(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.log"
    path.write_text("before")
    path.chmod(0o666)
    with pytest.raises(OSError, match="all users may write it"):
        open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert path.read_text() == "before"
    path.chmod(0o660)
    os.close(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert not path.read_text()


def test_what_is_written_is_no_file_that_an_access_list_lets_another_user_write(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sentinel.log"
    path.write_text("before")
    allow(path, STRANGER, permissions=6)
    why = f"its access control list lets uid {STRANGER} write it"
    with pytest.raises(OSError, match=why):
        open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert path.read_text() == "before"
    allow(path, STRANGER, permissions=4)
    os.close(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert not path.read_text()


#: Modules that write without it, and why.
ELSEWHERE = {
    "host/simulation.py": "simulated GPUs are shared by all of their users",
    "api/access.py": "O_EXCL: the file is new",
    "cli/options/command_options.py": "a path that the user of the command has named",
    "cli/tools/config.py": "mode x: the file is new",
    "cli/tools/install_unit.py": "the folder of systemd's units",
    "client/hold.py": "a temporary folder of its own",
    "fleet/engine.py": "the folder of a run, which is refused if it is another user's",
    "host/process_setup.py": "/dev/null, and the descriptors 1 and 2",
    "probe/one_shot.py": "a device of a GPU",
    "stressor/main.py": "/proc/self",
    "supervisor/daemonize.py": "a memory file of its own",
    "diagnostics/one_shot.py": "a memory file of its own",
    "cli/daemon/burnin_record.py": "/dev/null",
    "cli/failures.py": "/dev/null",
}


OPENS = re.compile(r"\b(open|write_text|write_bytes)\(")


def test_every_file_that_is_written_is_opened_by_one_function() -> None:
    """``open`` with a mode, ``os.open`` with a flag that writes, and what writes by a path."""
    package = Path(sentinel.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if file != package / "host" / "regular_file.py"
        if OPENS.search(text := file.read_text())  # most files open none, and parsing takes long
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and writes(call)
    }
    assert found == set(ELSEWHERE)


def writes(call: ast.Call) -> bool:
    """Check whether a call opens or writes a file by its path."""
    last = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if last not in {"open", "write_text", "write_bytes"}:
        return False
    name = ast.unparse(call.func)
    rest = [ast.unparse(one) for one in (*call.args, *(word.value for word in call.keywords))]
    if name == "os.open":
        return any(flag in "".join(rest) for flag in ("flags", "O_WRONLY", "O_RDWR", "O_CREAT"))
    if name == "open" or name.endswith(".open"):
        return any(mode.strip("'").rstrip("bt+") in {"w", "a", "x"} for mode in rest)
    return name.endswith((".write_text", ".write_bytes")) and not name.startswith("formatter.")


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


def test_a_fifo_in_place_of_the_new_file_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.new")
    with pytest.raises(OSError, match="not a regular file"):
        replace_file(tmp_path / "file", "text")


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


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_file_that_an_access_list_lets_another_user_write_is_foreign(
    file: Path, *, of_folder: bool
) -> None:
    listed = file.parent if of_folder else file
    allow(listed, 4321, permissions=6)
    assert why_foreign(file) == f"the access control list of {listed} lets uid 4321 write it"


def test_a_link_is_foreign_but_one_to_the_folder(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert why_foreign(link) == f"{link} is a link"
    folder = file.parent / "folder"
    folder.symlink_to(file.parent)
    assert why_foreign(folder / file.name) is None
    file.parent.chmod(0o777)
    assert why_foreign(folder / file.name) == f"all users may write {file.parent}"


def test_a_file_in_a_loop_of_links_cannot_be_examined(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    file = loop / "node.toml"
    why = f"{file} cannot be examined: Too many levels of symbolic links"
    assert why_foreign(file) == why


@as_root
def test_the_file_and_the_folder_of_another_user_are_foreign(file: Path) -> None:
    os.chown(file, STRANGER, STRANGER)
    assert why_foreign(file) == f"{file} belongs to uid {STRANGER}"
    os.chown(file, 0, 0)
    os.chown(file.parent, STRANGER, STRANGER)
    assert why_foreign(file) == f"{file.parent} belongs to uid {STRANGER}"


@as_root
def test_for_root_who_owns_a_folder_above_could_replace_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = file.parent / "inner" / file.name
    inner.parent.mkdir(mode=0o755)
    inner.write_text("{}")
    os.chown(file.parent, STRANGER, STRANGER)
    assert why_foreign(inner) == f"the folder {file.parent} belongs to uid {STRANGER}"
    link = file.parent.parent / f"{file.parent.name}-link"
    link.symlink_to(inner.parent)
    assert why_foreign(link / inner.name) == why_foreign(inner), "a link is followed"
    os.chown(file.parent, 0, 0)
    assert why_foreign(link / inner.name) is None
    os.lchown(link, STRANGER, STRANGER)
    assert why_foreign(link / inner.name) == f"{link} belongs to uid {STRANGER}"
    link.unlink()
    os.chown(file.parent, STRANGER, STRANGER)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert why_foreign(inner) is None, "a user chooses whose folders to trust"


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
