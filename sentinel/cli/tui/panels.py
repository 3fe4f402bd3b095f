"""Which panels of ``sentinel top`` are shown below the GPUs, and how many rows each has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sentinel.cli.display import process_table
from sentinel.cli.display.output import table
from sentinel.cli.display.process_table import GpuJob
from sentinel.cli.display.terminal import cut
from sentinel.cli.tui.samples import Usage

#: The panels, in the order in which Tab goes through them.
PANELS = ("processes", "details", "events")

#: From this width on, all panels are shown, the details beside the others.
WIDE = 110
#: How many rows two panels need, and three, one below the other.
_ROWS_OF_TWO, _ROWS_OF_THREE = 14, 24
#: The least rows of a panel with its title, if it has as many lines.
_LEAST_ROWS = 6


def shown_panels(width: int, rows: int, first: str) -> tuple[str, ...]:
    """Choose the panels: as many as there is room for, from ``first`` on.

    Args:
        width: The columns of the screen.
        rows: The rows below the GPUs.
        first: The panel that Tab has chosen.
    """
    if width >= WIDE:
        return PANELS
    count = 3 if rows >= _ROWS_OF_THREE else 2 if rows >= _ROWS_OF_TWO else 1
    start = PANELS.index(first)
    return tuple(PANELS[(start + number) % len(PANELS)] for number in range(count))


def share_rows(needs: Sequence[int], rows: int) -> list[int]:
    """Share rows among panels one below the other: what each needs, and the rest to the last.

    Args:
        needs: The rows that each needs, with its title, from top to bottom; none is displayed any
            more once the screen closes.
        rows: The rows that there are.
    """
    if not needs:
        return []
    given: list[int] = []
    left = rows
    for number, need in enumerate(needs[:-1]):
        kept = sum(min(other, _LEAST_ROWS) for other in needs[number + 1 :])
        given.append(max(1, min(need, left - kept)))
        left -= given[-1]
    return [*given, max(1, left)]


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
