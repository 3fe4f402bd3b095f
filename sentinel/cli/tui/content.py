"""Show the screen of ``sentinel top``: the table of GPUs, the details of one, and the panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.text import Text

from sentinel.cli.display import gpu_table, output
from sentinel.cli.display.gpu_table import GpuJob
from sentinel.cli.tui.feed import HostUsage, SampleHistory, highest
from sentinel.client import GpuStatus, ReservationInfo
from sentinel.protocol.api_types import GpuTelemetry, Handover
from sentinel.protocol.rules import FAULT_STATES, gpu_state
from sentinel.units import format_brief, format_duration

#: By what the table can be sorted.
SORTS = ("index", "state", "load", "memory", "temperature", "power")
#: The least width of the column that takes the remaining room.
_MIN_FLEXIBLE = 10

#: The number of each cell in :func:`gpu_table.row`.
_CELLS = {name: number for number, name in enumerate(gpu_table.GPUS.header)}
#: The order in which states are sorted: what needs attention first.
_STATES = (
    *FAULT_STATES,
    "failed",
    "unknown",
    "backoff",
    "stopping",
    "busy",
    "reserved",
    "paused",
    "idle",
)
#: The width of the names of the graphs, and of the values after them.
_LABEL, _VALUE = 7, 22
#: The panels, in the order in which Tab goes through them.
PANELS = ("processes", "details", "events")
#: From this width on, all panels are shown, the details beside the others.
WIDE = 110
#: How many rows two panels need, and three, one below the other.
_ROWS_OF_TWO, _ROWS_OF_THREE = 14, 24
#: The least rows of a panel with its title, if it has as many lines.
_LEAST_ROWS = 6
#: The unused rows from which on one more panel is shown.
_LEAST_MORE = 3
PROCESSES = output.Table(
    ("GPU", "PID", "USER", "MEMORY", "CPU", "RAM", "TYPE", "COMMAND"),
    flexible=7,
    right=(0, 1, 3, 4, 5),
)
#: Below this width there is no type, and a short user, so that the command has room.
_NARROW = 76
_NARROW_PROCESSES = output.Table(
    (*PROCESSES.header[:6], "COMMAND"), flexible=6, right=PROCESSES.right
)
_SHORT_USER = 10

FLEXIBLE = "HELD BY"


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
        output.printable(extra[column.name] if column.name in extra else row[_CELLS[column.name]])
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


def _of(value: float | None, limit: float | None, unit: str, of: str = "/") -> str:
    """Format a value and its limit, if they are known."""
    if value is None:
        return ""
    return f"{value:.0f}{unit}" if limit is None else f"{value:.0f}{of}{limit:.0f}{unit}"


def fit(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[list[str]]:
    """Truncate the flexible column so that all columns fit the width, with a space between."""
    place = next(number for number, one in enumerate(columns) if one.name == FLEXIBLE)
    used = 0
    for number, column in enumerate(columns):
        if number != place:
            widest = max(
                [output.cell_width(column.name), *(output.cell_width(row[number]) for row in rows)]
            )
            used += widest + 1
    room = max(_MIN_FLEXIBLE, width - used)
    return [
        [output.cut(cell, room) if number == place else cell for number, cell in enumerate(row)]
        for row in rows
    ]


def sort_key(name: str) -> Callable[[GpuStatus], tuple[float, int]]:
    """Return the key of a sort: the highest first, the index among equals."""

    def key(gpu: GpuStatus) -> tuple[float, int]:
        state = gpu_state(gpu)
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
    about = [gpu_state(gpu), gpu.name, gpu.uuid, gpu.workload or "", *named, *more]
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


def detail_lines(gpu: GpuStatus, samples: SampleHistory, width: int) -> list[str]:
    """Return the lines about a GPU.

    Args:
        gpu: The GPU.
        samples: Its last samples.
        width: The columns that there are. What is wrong is wrapped, the graphs are as long as there
            is room, and other lines are cut.
    """
    lines = [
        f"GPU {gpu.index}  {gpu.name}  {gpu_state(gpu)}",
        f"{gpu.uuid}  {gpu.pci_bus_id}",
        f"{gpu_table.why(gpu)}{f'; {gpu.note}' if gpu.note else ''}",
        *(line for text in gpu_table.findings(gpu) for line in wrap(text, width)),
        *([f"health: {gpu_table.health(gpu)}"] if gpu.health is not None else []),
        *_graphs(gpu, samples, width),
        *_sensors(gpu),
        *_work(gpu),
    ]
    if gpu.handover is not None:
        lines.append(_handover(gpu.handover))
    return [output.cut(output.printable(line), width) for line in lines]


def _graphs(gpu: GpuStatus, samples: SampleHistory, width: int) -> Iterator[str]:
    room = max(10, width - _LABEL - _VALUE)
    hottest = float(temperature_limit_c(gpu) or highest(samples.temperature_c))
    strongest = power_limit_w(gpu) or highest(samples.power_w)
    used = gpu.memory_used
    memory = "" if used is None else f"{used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB"
    rows = (
        ("load", samples.load, 1.0, _percent(gpu.utilization)),
        ("memory", samples.memory, 1.0, memory),
        ("power", samples.power_w, strongest, _of(gpu.power_w, power_limit_w(gpu), " W", " of ")),
        (
            "temp",
            samples.temperature_c,
            hottest,
            _of(gpu.temperature_c, temperature_limit_c(gpu), " C", " of "),
        ),
    )
    for name, values, most, now in rows:
        drawn = gpu_table.graph(list(values)[-room:], most)
        yield f"{name:<{_LABEL}}{now:<{_VALUE}}{drawn}".rstrip()


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _known(*facts: tuple[str, object]) -> str:
    """Join facts, each a format and its value; those that are None are left out."""
    return ", ".join(text.format(value) for text, value in facts if value is not None)


def _sensors(gpu: GpuStatus) -> Iterator[str]:
    """Yield the lines of telemetry; what a GPU does not have is left out."""
    one = gpu.telemetry or GpuTelemetry()
    throttled = one.thermal_throttled_s and format_duration(round(one.thermal_throttled_s))
    width, waits, failed = one.pcie_width, one.remap_pending, one.remap_failed
    lines = {
        "clocks": _known(
            ("SM {} MHz", gpu.sm_clock_mhz),
            ("memory {} MHz", one.memory_clock_mhz),
            ("P{}", one.performance_state),
            ("{}", ", ".join(one.reasons or ()) or None),
        ),
        "heat": _known(
            ("memory {} C", one.memory_temperature_c),
            ("slows down at {} C", one.slowdown_c),
            ("off at {} C", one.shutdown_c),
            ("fan {:.0%}", one.fan_share),
            ("throttled for {}", throttled or None),
        ),
        "links": _known(
            (f"PCIe {{}} x{width}", None if width is None else one.pcie_generation),
            ("{} replays", one.pcie_replays_total or None),
        ),
        "ECC": _known(
            ("{} corrected", one.ecc_corrected_total),
            ("{} uncorrected", one.ecc_uncorrected_total),
            ("a row waits for a reset", waits or None),
            ("a row could not be replaced", failed or None),
        ),
    }
    yield from (f"{name:<{_LABEL}}{facts}" for name, facts in lines.items() if facts)


def _work(gpu: GpuStatus) -> Iterator[str]:
    """Yield what a stressor does and has proved."""
    proved = gpu.verified.seconds if gpu.verified is not None and gpu.verified.checks else None
    facts = _known(
        ("{}", gpu_table.rate(gpu) or None),
        (f"{{:,}} results checked, {gpu.errors or 0:,} wrong", gpu.checks or None),
        ("verified for {} in all", None if proved is None else format_duration(round(proved))),
    )
    if facts:
        yield f"{'work':<{_LABEL}}{facts}"


def _handover(one: Handover) -> str:
    free = "" if one.memory_back is None else f", memory free after {format_brief(one.memory_back)}"
    took = f"exited after {format_brief(one.exit)}{free}"
    return f"gave   {format_brief(one.ago_s)} ago to a newcomer ({one.evidence}): {took}"


def shown_panels(
    width: int, rows: int, first: str, lines: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Choose the panels: as many as there is room for, from ``first`` on.

    Args:
        width: The columns of the screen.
        rows: The rows below the GPUs.
        first: The panel that Tab has chosen.
        lines: The lines of each panel, whose unused rows are for one more; by default they use all.
    """
    if width >= WIDE:
        return PANELS
    count = 3 if rows >= _ROWS_OF_THREE else 2 if rows >= _ROWS_OF_TWO else 1
    start = PANELS.index(first)
    order = [PANELS[(start + number) % len(PANELS)] for number in range(len(PANELS))]
    while lines and count < len(order):
        if sum(lines[name] + 1 for name in order[:count]) + _LEAST_MORE > rows:
            break
        count += 1
    return tuple(order[:count])


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


def process_lines(jobs: Iterable[GpuJob], usage: Mapping[int, HostUsage], width: int) -> list[str]:
    """Return the lines of a table, at most ``width`` columns wide if possible.

    Args:
        jobs: The processes.
        usage: What they use of this host, by PID.
        width: The columns that there are.
    """
    rows = [_process_row(job, usage.get(job.pid)) for job in jobs]
    if not rows:
        return ["no process uses these GPUs"]
    table = PROCESSES
    if width < _NARROW:
        table = _NARROW_PROCESSES
        rows = [(*row[:2], output.cut(row[2], _SHORT_USER), *row[3:6], row[7]) for row in rows]
    return table.lines(rows, width, colour=False)


def _process_row(job: GpuJob, use: HostUsage | None) -> tuple[str, ...]:
    index, pid, user, kind, memory, command = gpu_table.process_row(job)
    share = None if use is None else use.processor_share
    cpu = "" if share is None else f"{share:.0%}"
    ram = "" if use is None else f"{use.resident_bytes / 2**20:.0f}MiB"
    return index, pid, user, memory, cpu, ram, kind, command
