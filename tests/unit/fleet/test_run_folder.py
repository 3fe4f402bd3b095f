"""The folder of a fleet run: what it keeps, what it refuses, and how a run is found."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.fleet.run_folder import (
    MAX_KNOWN,
    FleetFolder,
    FleetRun,
    check_nodes,
    find_fleet,
    known_folder,
    remember,
    write_shared,
)

RUN = FleetRun(
    id="sentinel-20261123-1130-standard",
    engine="slurm",
    level="standard",
    plan="standard",
    plan_hash="0123456789abcdef",
    nodes=("node1", "node2.example.org"),
    started=datetime(2026, 11, 23, 11, 30, tzinfo=UTC),
    jobs=("17", "18"),
    tasks={"node1": "17", "node2.example.org": "18"},
    submitted=datetime(2026, 11, 23, 11, 31, tzinfo=UTC),
    simulate=2,
)


def test_a_run_is_read_as_it_was_written(folder: FleetFolder) -> None:
    folder.write(RUN)
    assert folder.read() == RUN
    assert folder.run_file.stat().st_mode & 0o077  # readable for others, less the umask
    assert [one.name for one in folder.path.glob("*.json*")] == ["fleet.json"]


def test_a_run_without_tasks_and_level_is_read(folder: FleetFolder) -> None:
    run = replace(RUN, level=None, jobs=(), tasks={}, simulate=None)
    folder.write(run)
    assert folder.read() == run


@pytest.mark.parametrize("left", ["fleet.json", "node1.json"])
def test_a_folder_with_a_run_is_refused(folder: FleetFolder, left: str) -> None:
    (folder.path / left).write_text("{}")
    with pytest.raises(ConfigError, match="it has a run already"):
        folder.create()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--report .*file/run: Not a directory"):
        FleetFolder(path=tmp_path / "file" / "run").create()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "fleet.json cannot be read"),
        ("[]", "its schema_version is None"),
        ('{"schema_version": "2.0"}', "its schema_version is '2.0', this version reads 1.0"),
        ('{"schema_version": "1.3"}', "expected the fields engine, id, nodes, plan"),
    ],
)
def test_an_invalid_run_is_refused(folder: FleetFolder, text: str, message: str) -> None:
    folder.run_file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        folder.read()


def test_a_later_addition_is_ignored(folder: FleetFolder) -> None:
    folder.write(RUN)
    value = json.loads(folder.run_file.read_text()) | {"schema_version": "1.9", "new": 1}
    folder.run_file.write_text(json.dumps(value))
    assert folder.read().nodes == RUN.nodes


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a fleet's run"):
        FleetFolder(path=tmp_path).read()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "no nodes"),
        (("a", "../b"), "'../b' is not a name"),
        (("fleet",), "'fleet' is not a name"),
        (("a", "b", "a"), "node a is given twice"),
    ],
)
def test_a_node_whose_report_would_be_another_file_is_refused(
    nodes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"--nodelist: {message}"):
        check_nodes(nodes, "--nodelist")


def test_several_commands_may_write_a_file_at_once(folder: FleetFolder) -> None:
    texts = {character * 50_000 for character in "abcd"}

    def write(text: str) -> None:
        for _ in range(8):
            write_shared(folder.page, text)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, texts))
    assert folder.page.read_text().rstrip("\n") in texts
    assert not list(folder.path.glob("*.new"))


def test_one_command_at_a_time_submits_the_tasks_of_a_folder(folder: FleetFolder) -> None:
    other = FleetFolder(path=folder.path)
    with folder.submitting():
        with (
            pytest.raises(ConfigError, match="another command submits the tasks of") as refused,
            other.submitting(),
        ):
            raise AssertionError("both submit")
        assert f"rmdir {folder.path}/submitting" in str(refused.value)
        other.write(RUN)
        with pytest.raises(ConfigError, match="it has a run already"):
            folder.check_new()
    with other.submitting():
        pass
    assert not (folder.path / "submitting").exists()


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
