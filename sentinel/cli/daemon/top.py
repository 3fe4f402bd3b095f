"""``sentinel top``: show every GPU live, with keys to pause, resume and reserve."""

from __future__ import annotations

import os
import sys

import click

from sentinel.cli.display.output import Word, color_option, wants_colour
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import duration, gpu_selection, only, with_client
from sentinel.client import Client
from sentinel.errors import ConfigError, ExitCode


@click.command("top")
@duration("--every", "every", "Update this often.  [default: 1s]")
@click.option(
    "--sort",
    type=Word(("index", "state", "load", "memory", "temperature", "power")),
    default="index",
    show_default=True,
    help="What comes first; s changes it.",
)
@click.option(
    "--filter",
    "words",
    metavar="WORDS",
    default="",
    shell_complete=value_completion.states,
    help="Only GPUs with these words: states, models, users, commands; / changes it.",
)
@gpu_selection
@color_option
@with_client
def command(
    client: Client, gpus: tuple[str, ...], every: float | None, sort: str, words: str
) -> int:
    """Show every GPU live, or those that are given.

    p pauses the selected one, r resumes it, v reserves it, / filters, s sorts, ? shows all keys, q
    quits.

    Requires textual: pip install 'gpu-sentry[tui]'. Exit code 3 if no daemon runs.
    """
    if not wants_colour(sys.stdout):
        os.environ["NO_COLOR"] = "1"  # for textual
    try:
        from sentinel.cli.tui import Live
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "sentinel top requires textual, which is not installed",
            "Install it: pip install 'gpu-sentry[tui]'. Without it: sentinel status --watch 2s",
        ) from error
    first = client.status()
    only(first, gpus)  # an error before the screen
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "sentinel top requires a terminal with cursor control",
            "Without one: sentinel status --watch 2s",
        )
    Live(client, first, every=every or 1.0, gpus=gpus, sort=sort, words=words).run()
    return int(ExitCode.OK)
