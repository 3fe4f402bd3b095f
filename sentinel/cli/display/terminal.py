"""What a terminal can show: colours, characters and widths. Light: ``sentinel status`` needs it."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Callable
from typing import Any, TextIO

import click

from sentinel.cli.word import Word

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
    return sum(map(_char_width, text))


def cut(text: str, width: int) -> str:
    """Truncate a text to ``width`` columns, with an ellipsis as its last one."""
    if cell_width(text) <= width:
        return text
    kept, used = [], 0
    for one in text:
        used += _char_width(one)
        if used > width - 1:
            break
        kept.append(one)
    return "".join(kept) + "…" if width > 0 else ""


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


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
    text = "".join(_ASCII.get(one, "?") for one in error.object[error.start : error.end])
    return text, error.end
