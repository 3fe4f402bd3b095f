"""Plot how sentinel approaches its targets, by seconds, from results of ``benchmarks.pace``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results import Record

#: Distinguishable with red-green colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73")
_INCHES = (8.0, 3.4)


def draw_pace(records: Sequence[Record], path: Path) -> None:
    """Draw the last curve of each target into a file, whose suffix selects the format.

    Args:
        records: Results, one per target, each with its ``kind``, ``target`` and ``curve``.
        path: The file; its folder exists.

    Raises:
        ValueError: The suffix is not supported.
    """
    # Equal results give equal files: no date, no random names.
    mpl.rcParams["svg.hashsalt"] = "pace"
    figure = Figure(figsize=_INCHES, layout="constrained")
    shares, watts = figure.subplots(1, 2)
    _curves(shares, [record for record in records if record["kind"] == "util"], "utilization", 100)
    shares.set(ylabel="utilization in %", ylim=(0, 100), title="--util 20%, 50%, 80%")
    _curves(watts, [record for record in records if record["kind"] == "power"], "watts", 1)
    watts.set(ylabel="power in W", ylim=(0, None), title="--power 400W, 550W")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curves(axes: Axes, records: Sequence[Record], figure: str, scale: float) -> None:
    """Draw each record's curve, and its target as a dashed line of the same colour."""
    for record, colour in zip(records, _COLOURS, strict=False):
        seen = [second for second in record["curve"] if second[figure] is not None]
        seconds = [second["s"] for second in seen]
        axes.plot(seconds, [scale * second[figure] for second in seen], color=colour)
        axes.axhline(scale * record["target"], color=colour, linestyle="--", linewidth=0.8)
    axes.set_xlabel("seconds at this target")
    axes.grid(visible=True, alpha=0.3)
