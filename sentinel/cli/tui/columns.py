"""The columns of the table of GPUs: which there are at a width, and their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from sentinel.cli.display import gpu_table
from sentinel.cli.display.process_table import GpuJob
from sentinel.cli.display.terminal import cell_width, cut, printable
from sentinel.client import GpuStatus, ReservationInfo

#: By what the table can be sorted.
SORTS = ("index", "state", "load", "memory", "temperature", "power")
#: The least width of the column that takes the remaining room.
_MIN_FLEXIBLE = 10

#: The number of each cell in :func:`gpu_table.row`.
_CELLS = {name: number for number, name in enumerate(gpu_table.HEADER)}
#: The order in which states are sorted: what needs attention first.
_STATES = ("failed", "unknown", "backoff", "stopping", "busy", "reserved", "paused", "idle")


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    #: The least width of the screen that shows it.
    from_width: int
    right: bool = False


COLUMNS = (
    Column("GPU", 0, right=True),
    Column("NAME", 170),
    Column("STATE", 0),
    Column("SINCE", 72, right=True),
    Column("HELD BY", 0),
    Column("MEMORY", 0, right=True),
    Column("LOAD", 0, right=True),
    Column("TEMP", 0, right=True),
    Column("POWER", 0, right=True),
    Column("RATE", 80, right=True),
    Column("HAND-OVER", 130),
    Column("HISTORY", 80),
)
FLEXIBLE = "HELD BY"


def columns_at(width: int) -> tuple[Column, ...]:
    """Return the columns for a screen of this width."""
    return tuple(column for column in COLUMNS if column.from_width <= width)


def history_width(width: int) -> int:
    """Return the number of samples in the graph of each row."""
    return 10 if width < 120 else 20 if width < 180 else 40  # noqa: PLR2004 - common widths


def cells(
    gpu: GpuStatus,
    columns: Sequence[Column],
    reservations: Sequence[ReservationInfo],
    history: str,
    *,
    with_limits: bool,
) -> list[str]:
    """Return the cells of a GPU.

    Args:
        gpu: The GPU.
        columns: The columns.
        reservations: All reservations.
        history: The graph.
        with_limits: Whether temperature and power have their limits.
    """
    row = gpu_table.row(gpu, reservations)
    extra = {"NAME": gpu.name, "HISTORY": history}
    if not row[_CELLS[FLEXIBLE]]:  # not held: the room is for the reason
        extra[FLEXIBLE] = gpu_table.why(gpu)
    if with_limits:
        extra["TEMP"] = _of(gpu.temperature_c, temperature_limit_c(gpu), "C")
        extra["POWER"] = _of(gpu.power_w, power_limit_w(gpu), "W")
    return [
        printable(extra[column.name] if column.name in extra else row[_CELLS[column.name]])
        for column in columns
    ]


def temperature_limit_c(gpu: GpuStatus) -> int | None:
    """Return where a GPU begins to slow itself down, or its highest allowed temperature."""
    if gpu.telemetry is None:
        return None
    return gpu.telemetry.slowdown_c or gpu.telemetry.maximum_c


def power_limit_w(gpu: GpuStatus) -> float | None:
    """Return the power limit in force."""
    return None if gpu.telemetry is None else gpu.telemetry.power_limit_w


def _of(value: float | None, limit: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0f}{unit}" if limit is None else f"{value:.0f}/{limit:.0f}{unit}"


def fit(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[list[str]]:
    """Truncate the flexible column so that all columns fit the width, with a space between."""
    place = next(number for number, one in enumerate(columns) if one.name == FLEXIBLE)
    used = 0
    for number, column in enumerate(columns):
        if number != place:
            widest = max([cell_width(column.name), *(cell_width(row[number]) for row in rows)])
            used += widest + 1
    room = max(_MIN_FLEXIBLE, width - used)
    return [
        [cut(cell, room) if number == place else cell for number, cell in enumerate(row)]
        for row in rows
    ]


def sort_key(name: str) -> Callable[[GpuStatus], tuple[float, int]]:
    """Return the key of a sort: the highest first, the index among equals."""

    def key(gpu: GpuStatus) -> tuple[float, int]:
        state = gpu_table.state(gpu)
        values: dict[str, float | None] = {
            "index": 0.0,
            "state": -(_STATES.index(state) if state in _STATES else len(_STATES)),
            "load": gpu.utilization,
            "memory": None if gpu.memory_used is None else gpu.memory_used / gpu.memory_total,
            "temperature": gpu.temperature_c,
            "power": gpu.power_w,
        }
        value = values[name]
        return (-value if value is not None else 1.0, gpu.index)

    return key


def matches(gpu: GpuStatus, text: str, more: Sequence[str] = ()) -> bool:
    """Check whether a GPU has each word of a filter: its index, state, model, UUID or processes.

    Args:
        gpu: The GPU.
        text: The words; an empty text matches every GPU.
        more: Further texts of the GPU, such as its command lines.
    """
    named = [
        f"{process.user or ''} {process.pid} {process.name or ''}" for process in gpu.processes
    ]
    about = [gpu_table.state(gpu), gpu.name, gpu.uuid, gpu.workload or "", *named, *more]
    whole = " ".join(about).lower()
    return all(word == str(gpu.index) or word in whole for word in text.lower().split())


def shown_gpus(
    gpus: Sequence[GpuStatus], jobs: Iterable[GpuJob], words: str, sort: str
) -> list[GpuStatus]:
    """List the GPUs that match a filter, sorted.

    Args:
        gpus: All GPUs.
        jobs: Their processes, whose command lines are searched, too.
        words: The words of the filter; see :func:`matches`.
        sort: By what they are sorted; see SORTS.
    """
    commands: dict[int, list[str]] = {}
    for job in jobs:
        commands.setdefault(job.index, []).append(job.command or "")
    found = [gpu for gpu in gpus if matches(gpu, words, commands.get(gpu.index, ()))]
    return sorted(found, key=sort_key(sort))


def table_cell(text: str, column: Column, *, style: str = "", first: bool) -> Text:
    """Build a cell with a space before it, unless it is the first."""
    made = Text("" if first else " ", justify="right" if column.right else "left")
    made.append(text, style=style)
    return made
