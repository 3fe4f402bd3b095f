"""Command-line options for the settings, and the option for the log format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sentinel.cli import value_completion
from sentinel.config.model import SETTINGS
from sentinel.config.sources import find_file, gather
from sentinel.errors import ConfigError

#: The largest number of simulated GPUs.
_MAX_SIMULATED = 64


def _checked_count(_: click.Context, option: click.Parameter, count: int | None) -> int | None:
    """Check the number of simulated GPUs."""
    if count is not None:
        check_range(option.opts[0], count, 1, _MAX_SIMULATED)
    return count


def simulate_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--simulate``."""
    return click.option("--simulate", metavar="N", type=int, callback=_checked_count, help=text)


def check_range(flag: str, value: int, least: int, most: int) -> None:
    """Check the value of an option.

    Raises:
        ConfigError: It is out of range.
    """
    if not least <= value <= most:
        raise ConfigError(f"{flag}: {value} is out of range", f"allowed is from {least} to {most}")


#: Adds the argument ``plan``: a level or a file, whose plan each GPU goes through again and again.
plan_option = click.option(
    "--plan",
    metavar="LEVEL|FILE",
    shell_complete=value_completion.plans,
    help="Go through this burn-in plan again and again, instead of one workload.",
)


def log_format(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--log-format`` and ``--json``; pass whether to print ``text`` instead of JSON."""

    @functools.wraps(function)
    def chosen(*, log_format: str, as_json: bool, **rest: Any) -> Any:
        return function(text=log_format == "text" and not as_json, **rest)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="The same as --log-format json."),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            help="Text or JSON lines, also for a pipe or a file.  [default: text]",
        ),
    ):
        chosen = option(chosen)
    return chosen


def settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option per setting and ``--config``; pass all given values as ``sources``."""

    @functools.wraps(function)
    def gathered(*, config: str | None, **values: Any) -> Any:
        given = _taken(values)
        home = Path(os.environ.get("HOME") or "/")
        file = find_file(config, os.environ, home)
        return function(sources=gather(given, os.environ, file), **values)

    return click.option(
        "--config",
        metavar="FILE",
        help="Read settings from this TOML file; flags and SENTINEL_* variables override it.",
    )(_with_flags(gathered))


def flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option per setting; pass the texts of the given ones by key as ``given``."""

    @functools.wraps(function)
    def taken(**values: Any) -> Any:
        return function(given=_taken(values), **values)

    return _with_flags(taken, defaults=False)


def _taken(values: dict[str, Any]) -> dict[str, str]:
    """Remove the settings from click's arguments; return the given texts by key."""
    given = {}
    for setting in SETTINGS:
        value = values.pop(setting.field)
        text = ",".join(value) if setting.form.many and value else value
        if text is not None and text != ():
            given[setting.key] = text
    return given


def _with_flags(command: Callable[..., Any], *, defaults: bool = True) -> Callable[..., Any]:
    for setting in reversed(SETTINGS):
        default = f"  [default: {setting.default}]" if setting.default and defaults else ""
        command = click.option(
            setting.flag,
            setting.field,
            metavar=setting.form.metavar,
            multiple=setting.form.many,
            shell_complete=value_completion.of_setting(setting.key, setting.form.metavar),
            help=setting.help + default,
        )(command)
    return command
