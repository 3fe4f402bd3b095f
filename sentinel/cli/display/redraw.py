"""Show lines in place of the ones before, as watch(1) does, until Ctrl+C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from sentinel.cli.display.terminal import is_interactive
from sentinel.errors import ExitCode, SentinelError

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
