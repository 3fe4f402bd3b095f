"""Limits of control groups on processor time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from sentinel.diagnostics.doctor_facts import Quota, Room
from sentinel.diagnostics.doctor_inspection import least_quota, least_room


def host(folder: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """Create a /proc with groups and mounts, and the files of the groups."""
    (folder / "self").mkdir()
    (folder / "self/cgroup").write_text(groups)
    (folder / "self/mountinfo").write_text(mounts.replace("@", str(folder)))
    (folder / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


V2 = "31 23 0:28 / @/cg rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 / @/cg/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:29 / @/cg/memory rw shared:9 - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cpus", "where"),
    [
        ("0::/a/b\n", V2, {"cg/a/b/cpu.max": "max 100000"}, None, ""),
        ("0::/a/b\n", V2, {"cg/a/b/cpu.max": "50000 100000"}, 0.5, "cg/a/b"),
        (
            "0::/a/b\n",
            V2,
            {"cg/a/b/cpu.max": "300000 100000", "cg/a/cpu.max": "200000 100000"},
            2.0,
            "cg/a",
        ),
        ("0::/a\n", V2, {"cg/a/b/cpu.max": "50000 100000"}, None, ""),
        ("0::/x/a\n", V2.replace(" / ", " /x "), {"cg/a/cpu.max": "10000 100000"}, 0.1, "cg/a"),
        ("0::/../y\n", V2, {"cg/cpu.max": "10000 100000"}, 0.1, "cg"),
        (
            "4:cpu,cpuacct:/a\n1:memory:/\n",
            V1,
            {"cg/cpu/a/cpu.cfs_quota_us": "150000", "cg/cpu/a/cpu.cfs_period_us": "100000"},
            1.5,
            "cg/cpu/a",
        ),
        (
            "4:cpu,cpuacct:/a\n",
            V1,
            {"cg/cpu/a/cpu.cfs_quota_us": "-1", "cg/cpu/a/cpu.cfs_period_us": "100000"},
            None,
            "",
        ),
        ("", "", {}, None, ""),
    ],
)
def test_the_tightest_quota_counts(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], cpus: float, where: str
) -> None:
    quota = least_quota(host(tmp_path, groups, mounts, files))
    assert quota == (Quota(cpus=cpus, where=f"{tmp_path}/{where}") if where else None)


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "available", "where"),
    [
        ("0::/a\n", V2, {"cg/a/memory.max": "max", "cg/a/memory.current": "5"}, 8192000, None),
        ("0::/a\n", V2, {"cg/a/memory.max": "5000", "cg/a/memory.current": "400"}, 4600, "cg/a"),
        (
            "0::/a\n",
            V2,
            {
                "cg/a/memory.max": "5000",
                "cg/a/memory.current": "4000",
                "cg/a/memory.stat": "anon 1\ninactive_file 3000\nactive_file 7\n",
            },
            4000,
            "cg/a",
        ),
        ("0::/a\n", V2, {"cg/a/memory.max": "50", "cg/a/memory.current": "90"}, 0, "cg/a"),
        (
            "3:memory:/a\n",
            V1,
            {
                "cg/memory/a/memory.limit_in_bytes": "7000",
                "cg/memory/a/memory.usage_in_bytes": "6000",
                "cg/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
            },
            1500,
            "cg/memory/a",
        ),
        (
            "3:memory:/a\n",
            V1,
            {
                "cg/memory/a/memory.limit_in_bytes": "9223372036854771712",
                "cg/memory/a/memory.usage_in_bytes": "6000",
            },
            8192000,
            None,
        ),
    ],
)
def test_the_smallest_available_memory_counts(
    tmp_path: Path,
    groups: str,
    mounts: str,
    files: dict[str, str],
    available: int,
    where: str | None,
) -> None:
    room = least_room(host(tmp_path, groups, mounts, files))
    expected = f"{tmp_path}/{where}" if where else "MemAvailable"
    assert room == Room(available=available, where=expected)


def test_the_available_memory_of_this_host_is_read() -> None:
    room = least_room()
    assert room is not None
    assert 0 < room.available <= psutil.virtual_memory().total
