"""Lines on a stream and, on a terminal, a table below them that is drawn again in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from sentinel.cli.display.terminal import is_interactive, wants_colour

if TYPE_CHECKING:  # slow to import, and not needed without a terminal
    from rich.live import Live


class LiveTable:
    """Prints lines, and on a terminal keeps a table below them.

    Args:
        stream: Where to print.
        header: The names of the columns.
        right: The right-aligned columns.
        flexible: The column that is truncated if necessary; without one, nothing is.
    """

    def __init__(
        self,
        stream: TextIO,
        header: Sequence[str],
        right: Sequence[int],
        flexible: int | None = None,
    ) -> None:
        self._stream = stream
        self._header = header
        self._right = right
        self._flexible = flexible
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

        from sentinel.cli.display.output import table

        lines = table(
            self._header,
            rows,
            flexible=self._flexible,
            width=self._live.console.width,
            right=self._right,
            colour=self.has_colours,
        )
        text = Text.from_ansi("\n".join([*above, *lines]), no_wrap=True)
        self._live.update(text, refresh=True)
