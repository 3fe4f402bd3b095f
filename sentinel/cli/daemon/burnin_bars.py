"""The bars of a burn-in on a terminal: one for each GPU, with its phase and the time left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sentinel.cli.display.output import printable
from sentinel.client import GpuStatus
from sentinel.units import format_duration

if TYPE_CHECKING:  # slow to import, and only for a terminal
    from rich.console import ConsoleDimensions, RenderableType

#: From these widths on, a bar has its passes and results beside it, and temperature and power.
_MEDIUM, _WIDE = 70, 100
#: The columns that stay free for the `^C` that the terminal echoes: it must not begin a line.
_ECHO = 3


def burnin_bars(gpus: Sequence[GpuStatus], heading: str, size: ConsoleDimensions) -> RenderableType:
    """Build the bars, below a heading; why a GPU does not count at the moment is below all.

    Without room for all, GPUs that are done are left out first.
    """
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.text import Text

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        expand=True,
        auto_refresh=False,
    )
    width, room = size.width, size.height - 2
    if hidden := max(0, len(gpus) - room):
        first = sorted(gpus, key=lambda gpu: gpu.burnin is None or gpu.burnin.over)[:room]
        heading = f"{hidden} more GPUs on a higher terminal; {heading}"
        gpus = [gpu for gpu in gpus if gpu in first]
    for gpu in gpus:
        progress.add_task(
            printable(f"GPU {gpu.index}  {_phase(gpu, width)}"),
            total=1000,
            completed=int(1000 * share_done(gpu)),
            facts=", ".join(_facts(gpu, width)),
        )
    notes = [f"GPU {gpu.index}: {printable(why)}" for gpu in gpus if (why := _why(gpu))]
    shown = Group(
        Text(printable(heading), no_wrap=True, overflow="ellipsis"),
        progress.get_renderable(),
        *(Text(note) for note in notes),
    )
    return Constrain(shown, max(1, width - _ECHO))


def share_done(gpu: GpuStatus) -> float:
    """Compute the share of the work of a plan that is done, without passes not yet measured."""
    if gpu.burnin is None or gpu.burnin.over:
        return 1.0
    worked, left = gpu.burnin.seconds, gpu.burnin.left_s
    # Passes at the end of a plan take time that no share of it is known of.
    return min(0.99, worked / (worked + left)) if worked + left else 0.0


def _phase(gpu: GpuStatus, width: int) -> str:
    progress = gpu.burnin
    if progress is None or progress.over:
        return "done"
    phase = f"{progress.number}/{progress.phases} {progress.phase}"
    if not progress.quota_passes or width < _MEDIUM:
        return phase
    return f"{phase} pass {min(progress.passes + 1, progress.quota_passes)}/{progress.quota_passes}"


def _facts(gpu: GpuStatus, width: int) -> Iterator[str]:
    """Yield what follows a bar: the time left, the results and the sensors, as there is room."""
    progress = gpu.burnin
    if progress is None:
        return
    if not progress.over and round(progress.left_s):
        # What passes take, and the starts of later phases, is not known, and not counted.
        more = progress.number < progress.phases or progress.passes < progress.quota_passes
        over = "over " if more else ""
        yield f"{over}{format_duration(round(progress.left_s))} left"
    if progress.errors:
        yield f"{progress.errors:,} WRONG"
    elif width >= _MEDIUM:
        yield f"{progress.checks:,} checked"
    if width >= _WIDE and gpu.temperature_c is not None:
        yield f"{gpu.temperature_c} C"
    if width >= _WIDE and gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W"


def _why(gpu: GpuStatus) -> str | None:
    """Explain why a GPU does nothing for the plan, or has ended early; None if neither is so."""
    progress = gpu.burnin
    return None if progress is None else progress.ended or progress.waiting
