"""Plot what each node of a Slurm does during a day, as ``tests/harness/slurm_day.py`` records it.

python -m benchmarks.slurm_day_plot RECORD PICTURE
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.results import Record, Results

#: Distinguishable with red-green colour blindness (Okabe and Ito, 2008).
_COLOURS = {
    "stressor": "#56B4E9",
    "burn-in": "#009E73",
    "job": "#E69F00",
    "drained": "#CC79A7",
    "lost": "#000000",
}
_INCHES, _DPI = (9.0, 5.4), 100


def draw_day(records: Sequence[Record], path: Path) -> None:
    """Draw a row for each node, and one for the controller, in the colours of their states.

    Args:
        records: The changes of state, in their order; other kinds are left out.
        path: The file, whose suffix selects the format; its folder exists.

    Raises:
        ValueError: The suffix is not supported.
    """
    changes = [record for record in records if record["kind"] == "state"]
    end_s = max(change["s"] for change in changes)
    nodes = [*sorted({change["node"] for change in changes}, key=_place)]
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    for row, node in enumerate(nodes):
        own = [change for change in changes if change["node"] == node]
        ends_s = [change["s"] for change in own[1:]] + [end_s]
        for change, until_s in zip(own, ends_s, strict=True):
            colour = _COLOURS.get(change["state"], "none")
            axes.barh(row, until_s - change["s"], left=change["s"], color=colour, height=0.7)
    axes.set(xlabel="seconds", xlim=(0, end_s), yticks=range(len(nodes)), yticklabels=nodes)
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)
    shades = [Patch(color=colour, label=state) for state, colour in _COLOURS.items()]
    figure.legend(handles=shades, loc="outside upper center", ncols=len(shades), frameon=False)
    figure.savefig(path, dpi=_DPI)


def _place(node: str) -> int:
    """Sort the nodes by their numbers, after the controller."""
    return int(node.removeprefix("node")) if node.startswith("node") else 0


if __name__ == "__main__":
    draw_day(Results(Path(sys.argv[1])).records, Path(sys.argv[2]))
