"""The memory that the host, or the control group of this process, has left."""

from __future__ import annotations

import contextlib
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Compute how much memory a new process can take without swapping, or None if unknown.

    That is the least of the kernel's estimate for the host and what the limit of each enclosing
    control group (version 2) leaves, in bytes; pages of files count as free.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        found.append(_fields(_MEMINFO)["MemAvailable:"] * 1024)
    with contextlib.suppress(OSError, ValueError):
        found += _left_in_groups(_GROUPS, _OWN_GROUP.read_text())
    return min(found, default=None)


def _left_in_groups(root: Path, own: str) -> list[int]:
    """Return what each control group above this process with a limit has left."""
    path = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if path is None:
        return []
    left = []
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        if folder == root.parent:
            break
        with contextlib.suppress(OSError, ValueError, KeyError):
            # "max", which is no number, is no limit.
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            stat = _fields(folder / "memory.stat")
            left.append(limit - used + stat["inactive_file"] + stat["active_file"])
    return left


def _fields(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
