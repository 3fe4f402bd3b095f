"""Tables on standard output, as wide as the terminal; colours only where they are wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Columns are one space apart, and the flexible one keeps at least so many.
_GAP = 1
_LEAST = 6


def wants_colour() -> bool:
    """Return whether standard output is a terminal that shows colours, and nobody minds."""
    dumb = os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")


def console() -> Console:
    """Return standard output as rich sees it: it takes no text of ours for markup."""
    return Console(
        color_system="auto" if wants_colour() else None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: int,
    width: int,
    right: Sequence[int] = (),
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Return a table without lines that is at most ``width`` columns wide, if it can be.

    Args:
        header: The name of each column.
        rows: Their cells.
        flexible: The column that is cut where there is no room for all.
        width: The most columns.
        right: The columns that are aligned to the right.
        styles: The style of a cell that has exactly this text.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(row[number]) for row in [header, *cells]) for number in range(len(header))
    ]
    others = sum(widths) - widths[flexible] + _GAP * (len(header) - 1)
    widths[flexible] = max(_LEAST, min(widths[flexible], width - others))
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for number, name in enumerate(header):
        made.add_column(
            name,
            width=widths[number],
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if number in right else "left",
        )
    for row in cells:
        made.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    return made


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: int,
    right: Sequence[int] = (),
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table; see :func:`table`."""
    out = console()
    out.print(table(header, rows, flexible=flexible, width=out.width, right=right, styles=styles))


def printable(text: str) -> str:
    """Return text without what would move a terminal's cursor: processes choose their names."""
    return "".join(one if one.isprintable() else "?" for one in text)
