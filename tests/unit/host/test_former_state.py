"""The files of a daemon that had its state in the shared folder are taken over once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.host.daemons import daemon_records
from sentinel.host.daemons.daemon_records import DaemonRecord
from sentinel.host.daemons.former_state import take_over
from sentinel.host.files.paths import Places, places, prepare


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """Provide the paths of a daemon with a socket of its own, with files in the shared folder."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "SENTINEL_SOCKET": f"{tmp_path}/run/s"}
    (tmp_path / "run").mkdir(mode=0o700)
    found = places(environ, 1000)
    prepare(found)
    for name in ("reservations.json", "token", "history.db", "sentinel.log", "verified.json"):
        (found.shared / name).write_text(f"old {name}")
    return found


def record(where: Places, **changes: str) -> DaemonRecord:
    """Build the record of a daemon as it was when all had one folder."""
    facts = {"socket": str(where.socket), **changes}
    return daemon_records.describe_own(where.shared, **facts)


def test_the_only_daemon_of_the_folder_moves_its_files_once(where: Places) -> None:
    (where.state / "sentinel.log").touch()  # opened already, and empty
    taken = take_over(where, [record(where)])
    names = {"reservations.json", "token", "history.db", "sentinel.log"}
    assert {path.name for path in taken} == names
    assert all((where.state / name).read_text() == f"old {name}" for name in names)
    assert {path.name for path in where.shared.iterdir() if path.is_file()} == {"verified.json"}
    assert take_over(where, [record(where)]) == []


def test_of_a_folder_with_several_daemons_each_gets_a_copy_of_what_all_need(where: Places) -> None:
    taken = take_over(where, [record(where), record(where, socket="/usual")])
    assert {path.name for path in taken} == {"reservations.json", "token"}
    assert (where.state / "token").read_text() == (where.shared / "token").read_text()
    assert (where.state / "token").stat().st_mode & 0o777 == 0o600
    assert not (where.state / "history.db").exists()


def test_a_new_daemon_takes_nothing_of_another(where: Places) -> None:
    assert take_over(where, []) == []
    assert take_over(where, [record(where, socket="/usual")]) == []
    assert list(where.state.iterdir()) == []


def test_files_that_the_daemon_has_already_are_kept(where: Places) -> None:
    (where.state / "reservations.json").write_text("new")
    take_over(where, [record(where)])
    assert (where.state / "reservations.json").read_text() == "new"


def test_nothing_is_started_without_the_files(where: Places) -> None:
    where.state.rmdir()
    with pytest.raises(
        ConfigError, match=r"cannot be moved to .*: No such file or directory. Nothing was"
    ):
        take_over(where, [record(where)])
