"""Limits of this process's control groups on processor time and memory, in v1 and v2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sentinel.diagnostics.doctor.facts import Quota, Room

#: Version 1 writes "no limit" as the largest multiple of a page.
_NO_LIMIT = 2**60


def least_quota(proc: Path = Path("/proc")) -> Quota | None:
    """Find the tightest quota of processor time on this process, or None.

    Args:
        proc: The mount point of /proc.
    """
    quotas = []
    for folder in _folders("cpu", proc):
        cpus = _cpus(folder)
        if cpus is not None:
            quotas.append(Quota(cpus=cpus, where=str(folder)))
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def least_room(proc: Path = Path("/proc")) -> Room | None:
    """Find how much more memory this process can use, by the host or by one of its groups."""
    rooms = []
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE)
    if found:
        rooms.append(Room(available=int(found[1]) * 1024, where="MemAvailable"))
    for folder in _folders("memory", proc):
        left = _left(folder)
        if left is not None:
            rooms.append(Room(available=left, where=str(folder)))
    return min(rooms, key=lambda room: room.available, default=None)


def _cpus(folder: Path) -> float | None:
    """Read how many processors a group may use, or None if it may use all."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")  # version 2: "50000 100000"
    if not quota:
        quota, period = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    numbers = quota.isdigit() and period.isdigit() and int(period) > 0  # no quota: "max", or "-1"
    return int(quota) / int(period) if numbers else None


def _left(folder: Path) -> int | None:
    """Read how much memory a group may still use, or None if it has no limit.

    Inactive file cache counts as free: the kernel reclaims it first.
    """
    if limit := _text(folder / "memory.max"):
        used, name = _text(folder / "memory.current"), "inactive_file"
    else:
        limit, used = (_text(folder / f"memory.{n}_in_bytes") for n in ("limit", "usage"))
        name = "total_inactive_file"
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT:
        return None
    cached = re.search(rf"^{name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(cached[1]) if cached else 0))


def _folders(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folder of this process's group and those above it, as far as they are visible.

    With both versions mounted, a controller is in one of them only; the other's folder has no file
    of its name, which means no limit.
    """
    paths: dict[str, str] = {}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mount = (_unescaped(field) for field in before.split(" ")[3:5])
        matches = kind == "cgroup2" or controller in options.split(" ")[-1].split(",")
        if matches and kind in paths:
            yield from _upwards(paths[kind], root, Path(mount))


def _upwards(path: str, root: str, mount: Path) -> Iterator[Path]:
    """Yield the folders from a group up to the mount, which shows ``root``.

    A container may see the host's path of its group, or one outside of the mount: then the mount is
    its own group.
    """
    start = root.rstrip("/")
    inner = path.removeprefix(start) if f"{path}/".startswith(f"{start}/") else ""
    folder = mount / ("" if ".." in inner.split("/") else inner.strip("/"))
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _unescaped(field: str) -> str:
    """Replace the octal escapes of blanks in a field of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _text(path: Path) -> str:
    """Read the stripped text of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
