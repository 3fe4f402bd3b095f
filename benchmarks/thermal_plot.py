"""Plot temperature, health and pace from results of ``benchmarks.thermal``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.results import Record

#: Distinguishable with red-green colour blindness (Okabe and Ito, 2008).
_COLOURS = {
    "optimal": "#009E73",
    "normal": "#56B4E9",
    "throttled": "#E69F00",
    "critical": "#D55E00",
}
_LINE, _POWER = "#000000", "#0072B2"
_INCHES = (8.0, 4.2)
#: The thresholds of ``benchmarks.thermal``, in degrees Celsius.
_THRESHOLDS = {"NORMAL": 50, "THROTTLED": 56, "CRITICAL": 60}


def draw_heat(records: Sequence[Record], path: Path) -> None:
    """Draw temperature and power over the health, into a file whose suffix selects the format.

    Args:
        records: The samples, two per second.
        path: The file; its folder exists.

    Raises:
        ValueError: The suffix is not supported.
    """
    mpl.rcParams["svg.hashsalt"] = "heat"
    figure = Figure(figsize=_INCHES, layout="constrained")
    heat, pace = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    seconds = [record["s"] for record in records]
    for axes in (heat, pace):
        _conditions(axes, records)
        axes.grid(visible=True, alpha=0.3)
    heat.plot(seconds, [record["temperature_c"] for record in records], color=_LINE)
    for name, degrees in _THRESHOLDS.items():
        heat.axhline(degrees, color=_LINE, linestyle="--", linewidth=0.7)
        heat.annotate(name, (seconds[-1], degrees), ha="right", va="bottom", fontsize=7)
    heat.set(ylabel="temperature in °C")
    shades = [Patch(color=colour, alpha=0.25, label=name) for name, colour in _COLOURS.items()]
    figure.legend(handles=shades, loc="outside upper center", ncols=len(shades), frameon=False)
    pace.plot(seconds, [record["power_w"] for record in records], color=_POWER)
    pace.set(ylabel="power in W", xlabel="seconds", ylim=(0, None))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _conditions(axes: Axes, records: Sequence[Record]) -> None:
    """Shade each period of one health."""
    begin = 0
    for number, record in enumerate(records):
        last = number == len(records) - 1
        if last or records[number + 1]["health"] != record["health"]:
            end = records[number if last else number + 1]["s"]
            colour = _COLOURS.get(record["health"])
            if colour is not None:
                axes.axvspan(records[begin]["s"], end, color=colour, alpha=0.25, linewidth=0)
            begin = number + 1
