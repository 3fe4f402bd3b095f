"""The options that several commands share."""

from __future__ import annotations

import sys

import click

__all__ = ["log_format"]


def _as_text(_: click.Context, __: click.Parameter, chosen: str) -> bool:
    return chosen == "text" or (chosen == "auto" and sys.stdout.isatty())


#: Gives a command ``text``: whether people read its standard output, or else a program.
log_format = click.option(
    "--log-format",
    "text",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    callback=_as_text,
    help="Readable lines or JSON lines.  [default: text on a terminal, else json]",
)
