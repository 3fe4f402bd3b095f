"""``sentinel top``: show every GPU live, with keys to pause, resume and reserve."""

from __future__ import annotations

import os
import sys

import click

from sentinel.cli.client_options import duration, with_client
from sentinel.cli.gpu_options import gpu_selection, only
from sentinel.client import Client
from sentinel.errors import ConfigError, ExitCode


@click.command("top")
@duration("--every", "every", "Update this often.  [default: 1s]")
@gpu_selection
@with_client
def command(client: Client, gpus: tuple[str, ...], every: float | None) -> int:
    """Show every GPU live, or those that are given.

    p pauses the selected one, r resumes it, v reserves it, q quits.

    Requires textual: pip install 'gpu-sentry[tui]'. Exit code 3 if no daemon runs.
    """
    try:
        from sentinel.cli.tui import Live
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "sentinel top requires textual, which is not installed",
            "Install it: pip install 'gpu-sentry[tui]'. Without it: sentinel status --watch 2s",
        ) from error
    first = only(client.status(), gpus)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "sentinel top requires a terminal with cursor control",
            "Without one: sentinel status --watch 2s",
        )
    Live(client, first, every=1.0 if every is None else every, gpus=gpus).run()
    return int(ExitCode.OK)
