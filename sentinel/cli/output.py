"""Print tables that fit the terminal, with colours if they are enabled."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sentinel.cli.event_format import printable, wants_colour

#: The space between columns, and the minimum width of the flexible one.
_GAP = 1
_MIN_WIDTH = 6


def console() -> Console:
    """Return a rich console for standard output, without markup."""
    return Console(
        color_system="auto" if wants_colour(sys.stdout) else None,
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
    """Build a table without lines, at most ``width`` columns wide if possible.

    Args:
        header: The names of the columns.
        rows: The cells.
        flexible: The column that is truncated if necessary.
        width: The maximum width.
        right: The right-aligned columns.
        styles: Styles by the exact text of a cell.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(row[number]) for row in [header, *cells]) for number in range(len(header))
    ]
    others = sum(widths) - widths[flexible] + _GAP * (len(header) - 1)
    widths[flexible] = max(_MIN_WIDTH, min(widths[flexible], width - others))
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
