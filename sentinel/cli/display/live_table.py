"""Lines on a stream with a table below them, or in place of the ones before, drawn again."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from sentinel.cli.display.output import Table, is_interactive, wants_colour
from sentinel.errors import ExitCode, SentinelError

if TYPE_CHECKING:  # slow to import, and not needed without a terminal
    from rich.live import Live


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

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the table below the lines for the duration."""
        if not self.is_live:
            yield
            return
        from rich.console import Console
        from rich.live import Live

        out = Console(file=self._stream, markup=False, emoji=False, highlight=False)
        # Another thread prints, so the console's own redirection of the streams is not wanted.
        with Live(
            console=out,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            self._live = live
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
        text = Text.from_ansi("\n".join([*above, *lines]), no_wrap=True)
        self._live.update(text, refresh=True)


#: Another screen without a cursor; back to the first one with its cursor.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def repeat(lines: Callable[[], Sequence[str]], every: float) -> int:
    """Print lines again and again, in place on a terminal; Ctrl+C ends it without a message.

    Args:
        lines: Returns what to show. An error is shown instead, and ends nothing.
        every: The pause between two times, in seconds.

    Returns:
        The exit code for Ctrl+C.
    """
    out = sys.stdout
    in_place = is_interactive(out)
    try:
        if in_place:
            out.write(_ENTER)
        while True:
            try:
                shown = lines()
            except SentinelError as error:
                if not in_place:
                    print(f"sentinel: {error}", file=sys.stderr)
                shown = f"sentinel: {error}".splitlines() if in_place else []
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
    from os import get_terminal_size

    height = get_terminal_size(sys.stdout.fileno()).lines
    if len(lines) > height:
        more = len(lines) - height + 1
        lines = [*lines[: height - 1], f"... {more} more lines; a higher terminal shows them"]
    return _HOME + "\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _END_OF_SCREEN
