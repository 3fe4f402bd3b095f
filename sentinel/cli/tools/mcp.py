"""``sentinel mcp``: serve tools for agents over the Model Context Protocol."""

from __future__ import annotations

import signal

import click

from sentinel.cli.options.command_options import with_client
from sentinel.client import Client
from sentinel.errors import ConfigError, ExitCode


@click.command("mcp")
@with_client
def command(client: Client) -> int:
    """Serve tools for agents over standard input and output (Model Context Protocol).

    The tools are status, pause, resume, reserve, cancel_reservation, sessions, start_session and
    stop_session. An agent starts this command if it is in the agent's configuration. It ends when
    the agent closes its standard input; the daemon need not run. Requires the package mcp: pip
    install 'gpu-sentry[mcp]'.
    """
    try:
        from sentinel.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigError(
            "sentinel mcp requires version 2 of the package mcp, which is not installed",
            "Install it: pip install 'gpu-sentry[mcp]'",
        ) from error
    # A thread reads standard input, and the interpreter's exit would wait for its next line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(client)
    return int(ExitCode.OK)
