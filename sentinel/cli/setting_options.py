"""The options that several commands share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sentinel.config.settings import SETTINGS
from sentinel.config.sources import find_file, gather


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


def settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each setting, and ``sources``: all that was given."""

    @functools.wraps(function)
    def gathered(*, config: str | None, **values: Any) -> Any:
        given = _taken(values)
        home = Path(os.environ.get("HOME") or "/")
        file = find_file(config, os.environ, home)
        return function(sources=gather(given, os.environ, file), **values)

    return click.option(
        "--config",
        metavar="FILE",
        help="Read settings from this TOML file; flags and SENTINEL_* variables go over it.",
    )(_with_flags(gathered))


def flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each setting, and ``given``: the text of each, by key."""

    @functools.wraps(function)
    def taken(**values: Any) -> Any:
        return function(given=_taken(values), **values)

    return _with_flags(taken, defaults=False)


def _taken(values: dict[str, Any]) -> dict[str, str]:
    """Take the settings out of what click passes, and return the text of those that were given."""
    given = {}
    for setting in SETTINGS:
        value = values.pop(setting.field)
        text = ",".join(value) if setting.many and value else value
        if text is not None and text != ():
            given[setting.key] = text
    return given


def _with_flags(command: Callable[..., Any], *, defaults: bool = True) -> Callable[..., Any]:
    """Give a command one option for each setting."""
    for setting in reversed(SETTINGS):
        default = f"  [default: {setting.default}]" if setting.default and defaults else ""
        command = click.option(
            setting.flag,
            setting.field,
            metavar=setting.metavar,
            multiple=setting.many,
            help=setting.help + default,
        )(command)
    return command
