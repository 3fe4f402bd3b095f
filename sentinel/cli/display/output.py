"""Print tables that fit the terminal, with colours if they are enabled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from sentinel.cli.display.terminal import cell_width, cut, printable, styled, wants_colour

#: The space between columns, and the minimum width of the flexible one.
_GAP = " "
_MIN_WIDTH = 6
#: The width of output that is no terminal.
_PIPE_WIDTH = 240
#: The indentation of what continues a row.
_INDENT = "      "


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: int | None,
    width: int,
    right: Sequence[int] = (),
    styles: Mapping[str, str] | None = None,
    colour: bool = False,
) -> list[str]:
    """Build the lines of a table without rules, at most ``width`` columns wide if possible.

    Only the flexible column is truncated. The last columns that have no room continue each row on
    a line of their own, with their names.

    Args:
        header: The names of the columns.
        rows: The cells.
        flexible: The column that is truncated if necessary; without one, nothing is.
        width: The maximum width.
        right: The right-aligned columns.
        styles: Styles by the exact text of a cell.
        colour: Whether to apply the styles.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(header, *cells, strict=True)]
    shown = _columns_that_fit(widths, flexible, width)
    if flexible is not None and flexible < shown:
        others = sum(widths[:shown]) - widths[flexible] + len(_GAP) * (shown - 1)
        least = min(_MIN_WIDTH, widths[flexible])
        widths[flexible] = max(least, min(widths[flexible], width - others))
    styles = (styles or {}) if colour else {}

    def line(row: Sequence[str], style: str = "") -> str:
        parts = []
        for number, text in enumerate(row[:shown]):
            fitted = cut(text, widths[number])
            space = " " * (widths[number] - cell_width(fitted))
            painted = styled(fitted, style or styles.get(text, ""))
            parts.append(space + painted if number in right else painted + space)
        return _GAP.join(parts).rstrip()

    lines = [line(header, "dim" if colour else "")]
    for row in cells:
        lines.append(line(row))
        lines.extend(_continued(header[shown:], row[shown:], width, styles))
    return lines


def _columns_that_fit(widths: Sequence[int], flexible: int | None, width: int) -> int:
    """Return how many of the first columns fit, if the flexible one is as narrow as possible."""
    total = -len(_GAP)
    for number, one in enumerate(widths):
        total += len(_GAP) + (min(one, _MIN_WIDTH) if number == flexible else one)
        if total > width and number > 0:
            return number
    return len(widths)


def _continued(
    names: Sequence[str], cells: Sequence[str], width: int, styles: Mapping[str, str]
) -> Iterator[str]:
    """Yield the cells without room, each after its name."""
    line, used = "", 0
    for name, cell in zip(names, cells, strict=True):
        if not cell:
            continue
        plain = f"{name} {cell}"
        if line and used + 2 + cell_width(plain) > width:
            yield line
            line = ""
        start = f"{line}  " if line else _INDENT
        used = (used + 2 if line else len(_INDENT)) + cell_width(plain)
        line = f"{start}{name} {styled(cell, styles.get(cell, ''))}"
    if line:
        yield line


def terminal_width() -> int:
    """Return the columns of $COLUMNS or the terminal; a pipe or file has room for everything."""
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPE_WIDTH
    except (OSError, ValueError):
        return _PIPE_WIDTH


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: int | None,
    right: Sequence[int] = (),
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table; see :func:`table`."""
    lines = table(
        header,
        rows,
        flexible=flexible,
        width=terminal_width(),
        right=right,
        styles=styles,
        colour=wants_colour(sys.stdout),
    )
    print("\n".join(lines))
