"""The processes on all GPUs, as nvidia-smi lists them: user, memory, kind and command line."""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.host.processes.command_lines import CommandLines
from sentinel.host.processes.procfs import read_stat

if TYPE_CHECKING:
    from sentinel.client import GpuStatus, Process

HEADER = ("GPU", "PID", "USER", "TYPE", "MEMORY", "COMMAND")
#: The column that is truncated first, and the right-aligned columns.
FLEXIBLE = 5
RIGHT = (0, 1, 4)

_COMMANDS = CommandLines()
#: The kernel keeps this many characters of a process's name.
_MAX_NAME = 15


@dataclass(frozen=True)
class GpuJob:
    """A process on a GPU; None is unknown."""

    index: int
    pid: int
    #: stressor, or NVML's list that has the process: compute, mps or graphics.
    kind: str
    user: str | None
    memory_bytes: int | None
    command: str | None
    #: Whether /proc of this host has the process.
    is_local: bool


def jobs(gpus: Sequence[GpuStatus], *, local: bool) -> list[GpuJob]:
    """List the processes on these GPUs: stressors, foreign and allocated ones.

    Args:
        gpus: The GPUs.
        local: Whether the daemon runs on this host, so that /proc has the command lines.
    """
    return [job for gpu in gpus for job in _jobs_of(gpu, local=local)]


def row(job: GpuJob) -> tuple[str, ...]:
    """Return the cells of a process; an empty cell is unknown.

    The folder of the program is left out, since it takes the room of the arguments.
    """
    program, space, rest = (job.command or "").partition(" ")
    command = f"{program.rpartition('/')[2]}{space}{rest}"
    used = "" if job.memory_bytes is None else f"{job.memory_bytes / 2**20:.0f}MiB"
    return str(job.index), str(job.pid), job.user or "", job.kind, used, command


def _jobs_of(gpu: GpuStatus, *, local: bool) -> Iterator[GpuJob]:
    if gpu.pid is not None:
        there = local and read_stat(gpu.pid) is not None
        yield GpuJob(
            index=gpu.index,
            pid=gpu.pid,
            kind="stressor",
            user=gpu.stressor_user or (_owner(gpu.pid) if there else None),
            memory_bytes=gpu.held,
            command=f"sentinel {gpu.workload or ''}".rstrip(),
            is_local=there,
        )
    seen = set()
    for process in (*(gpu.processes or ()), *(gpu.allocated_processes or ())):
        if process.pid in seen:
            continue
        seen.add(process.pid)
        there = local and _is_same(process)
        yield GpuJob(
            index=gpu.index,
            pid=process.pid,
            kind=process.kind or "compute",
            user=process.user,
            memory_bytes=process.memory,
            command=process.command
            or (_command_line(process.pid) if there else None)
            or process.name,
            is_local=there,
        )


def _is_same(process: Process) -> bool:
    """Check that /proc means this process, and not one of another PID namespace."""
    stat = read_stat(process.pid)
    if stat is None or process.name is None:
        return False
    return stat.name[:_MAX_NAME] == process.name[:_MAX_NAME]


def _owner(pid: int) -> str | None:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command_line(pid: int) -> str | None:
    """Read a command line, or None if it is hidden or the process has ended."""
    stat = read_stat(pid)
    return None if stat is None else _COMMANDS.get(pid, stat.started, stat.name)
