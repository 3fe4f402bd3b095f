"""Print for a terminal: colours, characters and widths, tables once or drawn again, and JSON.

Light: ``sentinel status`` needs it.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from sentinel.errors import ExitCode, SentinelError
from sentinel.protocol import SCHEMA_VERSION

if TYPE_CHECKING:  # slow to import, and only for a terminal
    from rich.console import ConsoleDimensions, RenderableType
    from rich.live import Live

#: The space between columns, and the minimum width of the flexible one.
_GAP = " "
_MIN_WIDTH = 6
#: The width of output that is no terminal.
_PIPE_WIDTH = 240
#: The indentation of what continues a row.
_INDENT = "      "
_STYLES = {
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "INCOMPLETE": "magenta",
    "MISSING": "magenta",
}
_VERDICT = re.compile(rf"^({'|'.join(_STYLES)})\b", re.MULTILINE)
#: Another screen without a cursor; back to the first one with its cursor.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

#: SGR parameters by the names that styles are made of.
_SGR = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_RESET = "\x1b[0m"

#: Replacements for characters that the encoding of a stream does not have; others become "?".
_ASCII = {
    "…": "~",
    "\N{MULTIPLICATION SIGN}": "x",
    "·": ".",
    "—": "-",
    "\N{EN DASH}": "-",
    "°": " ",
    "→": "->",
    "↓": "v",
    "↑": "^",
    "┌": "+",
    "─": "-",
    "│": "|",
    **dict(zip("▁▂▃▄▅▆▇█", "_..--=##", strict=True)),
}
_ERROR_HANDLER = "sentinel.degrade"

#: The values of ``--color``.
COLOR_CHOICES = ("auto", "always", "never")


class Word(click.Choice[str]):
    """One of these words, in any case; the error for another one names them, and the nearest."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, case_sensitive=False)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Build the message for a word that is not allowed."""
        del ctx
        from sentinel.config.sources import nearest  # slow to import

        near = nearest(str(value), self.choices)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"{value!r} is not one of {', '.join(self.choices)}{hint}"


class _Choice:
    """The value of ``--color`` for this process; the option sets it."""

    colour = "auto"


def _choose(_: click.Context, __: click.Parameter, when: str) -> None:
    _Choice.colour = when


def color_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--color``."""
    return click.option(
        "--color",
        type=Word(COLOR_CHOICES),
        default="auto",
        show_default=True,
        expose_value=False,
        is_eager=True,
        callback=_choose,
        help="Colours: auto follows NO_COLOR, FORCE_COLOR and whether there is a terminal.",
    )(function)


def is_interactive(stream: TextIO) -> bool:
    """Check whether a stream is a terminal with cursor control."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Check whether output to a stream has colours.

    ``--color`` decides, then NO_COLOR (https://no-color.org), FORCE_COLOR
    (https://force-color.org) and whether the stream is a terminal, in this order.
    """
    if _Choice.colour != "auto":
        return _Choice.colour == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_interactive(stream)


def styled(text: str, style: str) -> str:
    """Add a style, such as ``bold red``; an empty one changes nothing."""
    if not style:
        return text
    return f"\x1b[{';'.join(_SGR[name] for name in style.split())}m{text}{_RESET}"


def printable(text: str) -> str:
    """Replace control characters: the names of processes must not move the cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def cell_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to import

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Truncate a text to ``width`` columns, with an ellipsis as its last one."""
    if cell_width(text) <= width:
        return text
    from rich.cells import set_cell_size  # slow to import

    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def degrade_streams() -> None:
    """Replace what the encoding of the standard streams cannot express, instead of failing."""
    codecs.register_error(_ERROR_HANDLER, _degrade)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's stream may have none
        if reconfigure is not None:
            reconfigure(errors=_ERROR_HANDLER)


def _degrade(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_ASCII.get(char, "?") for char in error.object[error.start : error.end])
    return text, error.end


@dataclass(frozen=True)
class Table:
    """A table without rules.

    Only the flexible column is truncated. The last columns that have no room continue each row on
    a line of their own, with their names.
    """

    #: The names of the columns.
    header: Sequence[str]
    #: The column that is truncated if necessary; without one, nothing is.
    flexible: int | None = None
    #: The right-aligned columns.
    right: Sequence[int] = ()
    #: Styles by the exact text of a cell.
    styles: Mapping[str, str] = field(default_factory=dict)

    def lines(
        self,
        rows: Iterable[Sequence[str]],
        width: int | None = None,
        *,
        colour: bool | None = None,
    ) -> list[str]:
        """Build the lines of these rows.

        Args:
            rows: The cells.
            width: The columns that the lines have if possible; by default those of the terminal.
            colour: Whether to apply the styles; by default as for standard output.
        """
        width = terminal_width() if width is None else width
        colour = wants_colour(sys.stdout) if colour is None else colour
        cells = [[printable(cell) for cell in row] for row in rows]
        widths = [max(map(cell_width, column)) for column in zip(self.header, *cells, strict=True)]
        shown = _columns_that_fit(widths, self.flexible, width)
        if self.flexible is not None and self.flexible < shown:
            others = sum(widths[:shown]) - widths[self.flexible] + len(_GAP) * (shown - 1)
            least = min(_MIN_WIDTH, widths[self.flexible])
            widths[self.flexible] = max(least, min(widths[self.flexible], width - others))
        styles = self.styles if colour else {}

        def line(row: Sequence[str], style: str = "") -> str:
            parts = []
            for number, text in enumerate(row[:shown]):
                fitted = cut(text, widths[number])
                space = " " * (widths[number] - cell_width(fitted))
                painted = styled(fitted, style or styles.get(text, ""))
                parts.append(space + painted if number in self.right else painted + space)
            return _GAP.join(parts).rstrip()

        lines = [line(self.header, "dim" if colour else "")]
        for row in cells:
            lines.append(line(row))
            lines.extend(_continued(self.header[shown:], row[shown:], width, styles))
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


def fit_report(text: str) -> str:
    """Prepare a report for standard output: coloured verdicts, and lines that fit a terminal."""
    if sys.stdout.isatty():
        text = "\n".join(map(fitted, text.splitlines()))
    if not wants_colour(sys.stdout):
        return text
    return _VERDICT.sub(lambda match: styled(match[1], _STYLES[match[1]]), text)


def fitted(line: str) -> str:
    """Wrap a line for the terminal of standard output; a pipe or file gets it whole."""
    return wrapped(line, terminal_width()) if sys.stdout.isatty() else line


def wrapped(line: str, width: int) -> str:
    """Wrap a line between words, unless it ends with a command to copy."""
    if ": sentinel " in line or cell_width(line) <= width:
        return line
    import textwrap  # slow to import

    indent = " " * (len(line) - len(line.lstrip()))
    wrapper = textwrap.TextWrapper(max(width, 40), indent, f"{indent}  ")
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return wrapper.fill(line.strip())


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object with its schema version."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **to_json(values)}))


def to_json(value: Any) -> Any:
    """Convert a value to JSON types: dataclasses to objects, times to ISO 8601, paths to text."""
    if is_dataclass(value) and not isinstance(value, type):
        # By the names of the API: `alias` is that of a field whose own is a keyword of Python.
        return {
            field.metadata.get("alias", field.name): to_json(getattr(value, field.name))
            for field in fields(value)
        }
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")  # as the API writes it
        case Path():
            return str(value)
        case Mapping():
            return {key: to_json(one) for key, one in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
        case _:
            return value


class LiveTable:
    """Prints lines, and on a terminal keeps a table below them.

    Args:
        stream: Where to print.
        table: The table.
    """

    def __init__(self, stream: TextIO, table: Table) -> None:
        self._stream = stream
        self._table = table
        self.is_live = is_interactive(stream)
        self.has_colours = wants_colour(stream)
        self._live: Live | None = None
        #: The size of the terminal at the last drawing.
        self._size: ConsoleDimensions | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the table below the lines for the duration."""
        if not self.is_live:
            yield
            return
        from rich.console import Console
        from rich.live import Live

        out = Console(
            file=self._stream,
            markup=False,
            emoji=False,
            highlight=False,
            no_color=not self.has_colours,
        )
        # Another thread prints, so the console's own redirection of the streams is not wanted.
        with Live(
            console=out,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            self._live = live
            out.show_cursor()  # a process that is killed or stopped could not show it again
            try:
                yield
            finally:
                self._live = None

    def line(self, text: str) -> None:
        """Print a line above the table."""
        if self._live is None:
            print(text, file=self._stream, flush=True)
            return
        from rich.text import Text

        self._live.console.print(Text.from_ansi(text), soft_wrap=True)

    @property
    def height(self) -> int:
        """The lines of the terminal; 0 while there is no table."""
        return self._live.console.height if self._live is not None else 0

    def draw(self, rows: Sequence[Sequence[str]], above: Sequence[str] = ()) -> None:
        """Replace the table by these rows, and the lines above it; nothing without a terminal."""
        if self._live is None:
            return
        from rich.text import Text

        lines = self._table.lines(rows, self._live.console.width, colour=self.has_colours)
        self.show(lambda _: Text.from_ansi("\n".join([*above, *lines]), no_wrap=True))

    def show(self, build: Callable[[ConsoleDimensions], RenderableType]) -> None:
        """Replace what is below the lines; nothing without a terminal.

        Args:
            build: Builds it for the size of the terminal.
        """
        if self._live is None:
            return
        size = self._live.console.size
        if self._size not in {None, size}:
            # The terminal has wrapped or cut what it shows, and rich would not find its beginning.
            self._live.console.clear()
        self._size = size
        self._live.update(build(size), refresh=True)


def repeat(lines: Callable[[], Sequence[str]], every: float) -> int:
    """Print lines again and again, in place on a terminal; Ctrl+C ends it without a message.

    Args:
        lines: Returns what to show. An error is shown instead, without a terminal once; it ends
            nothing.
        every: The pause between two times, in seconds.

    Returns:
        The exit code for Ctrl+C.
    """
    out = sys.stdout
    in_place, last = is_interactive(out), ""
    try:
        if in_place:
            out.write(_ENTER)
        while True:
            try:
                shown, failed = lines(), ""
            except SentinelError as error:
                failed = f"sentinel: {error}"
                shown = failed.splitlines() if in_place else []
            if failed and failed != last and not in_place:
                print(failed, file=sys.stderr)
            last = failed
            if in_place or not failed:
                out.write(_screen(shown) if in_place else "\n".join([*shown, "", ""]))
                out.flush()
            time.sleep(every)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    finally:
        if in_place:
            out.write(_LEAVE)
            out.flush()


def _screen(lines: Sequence[str]) -> str:
    """Build what replaces the screen; lines below its end are cut, with a note."""
    height = os.get_terminal_size(sys.stdout.fileno()).lines
    if len(lines) > height:
        more = len(lines) - height + 1
        lines = [*lines[: height - 1], f"... {more} more lines; a higher terminal shows them"]
    return _HOME + "\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _END_OF_SCREEN
