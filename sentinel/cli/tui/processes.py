"""The table of processes: what each uses of its GPU and of this host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.cli.display import process_table
from sentinel.cli.display.output import table
from sentinel.cli.display.process_table import GpuJob
from sentinel.cli.display.terminal import cut
from sentinel.cli.tui.samples import Usage

HEADER = ("GPU", "PID", "USER", "MEMORY", "CPU", "RAM", "TYPE", "COMMAND")
_RIGHT = (0, 1, 3, 4, 5)
#: Below this width there is no type, and a short user, so that the command has room.
_NARROW = 76
_SHORT_USER = 10
_TYPE, _COMMAND = 6, 7


def process_lines(jobs: Iterable[GpuJob], usage: Mapping[int, Usage], width: int) -> list[str]:
    """Return the lines of a table, at most ``width`` columns wide if possible.

    Args:
        jobs: The processes.
        usage: What they use of this host, by PID.
        width: The columns that there are.
    """
    rows = [_row(job, usage.get(job.pid)) for job in jobs]
    if not rows:
        return ["no process uses these GPUs"]
    header: tuple[str, ...] = HEADER
    if width < _NARROW:
        header = _without_type(HEADER)
        rows = [_without_type((*row[:2], cut(row[2], _SHORT_USER), *row[3:])) for row in rows]
    return table(header, rows, flexible=len(header) - 1, width=width, right=_RIGHT)


def _row(job: GpuJob, use: Usage | None) -> tuple[str, ...]:
    index, pid, user, kind, memory, command = process_table.row(job)
    share = None if use is None else use.processor_share
    cpu = "" if share is None else f"{share:.0%}"
    ram = "" if use is None else f"{use.resident_bytes / 2**20:.0f}MiB"
    return index, pid, user, memory, cpu, ram, kind, command


def _without_type(row: tuple[str, ...]) -> tuple[str, ...]:
    return (*row[:_TYPE], *row[_COMMAND:])
