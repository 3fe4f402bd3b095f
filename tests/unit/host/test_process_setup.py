"""The available memory is the least of the host's and of each control group's."""

from __future__ import annotations

from pathlib import Path

from sentinel.host.process_setup import _left_in_groups, available_bytes

MIB = 2**20


def group(folder: Path, limit: str, current: int, inactive: int) -> None:
    """Create the files of a control group."""
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nactive_file 0\n")


def test_each_group_with_a_limit_counts_and_pages_of_files_are_free(tmp_path: Path) -> None:
    group(tmp_path / "jobs", str(100 * MIB), 60 * MIB, 10 * MIB)
    group(tmp_path / "jobs" / "mine", "max", 60 * MIB, 0)
    group(tmp_path / "jobs" / "mine" / "step", str(40 * MIB), 35 * MIB, 5 * MIB)
    left = _left_in_groups(tmp_path, "12:pids:/x\n0::/jobs/mine/step\n")
    assert left == [10 * MIB, 50 * MIB]


def test_a_host_without_control_groups_has_no_such_limit(tmp_path: Path) -> None:
    assert _left_in_groups(tmp_path, "0::/missing\n") == []
    assert _left_in_groups(tmp_path, "4:memory:/x\n") == []


def test_this_host_has_some() -> None:
    available = available_bytes()
    assert available is not None
    assert available > MIB
