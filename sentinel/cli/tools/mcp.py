"""``sentinel mcp``: a server of the Model Context Protocol, by which agents ask the daemon."""

from __future__ import annotations

import signal

import click

from sentinel.cli.client_options import with_client
from sentinel.client import Client
from sentinel.errors import ConfigError, ExitCode


@click.command("mcp")
@with_client
def command(client: Client) -> int:
    """Give agents tools to see, pause and reserve GPUs, over standard input and output.

    An agent starts it by itself once it stands in the agent's configuration. Its tools are status,
    pause, resume, reserve and unreserve. It ends when the agent closes its standard input, and the
    daemon need not run. Needs the package mcp: pip install 'gpu-sentry[mcp]'.
    """
    try:
        from sentinel.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigError(
            "sentinel mcp needs version 2 of the package mcp, which is not installed",
            "Install it: pip install 'gpu-sentry[mcp]'",
        ) from error
    # A thread reads standard input, and the interpreter's own exit would wait for its next line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(client)
    return int(ExitCode.OK)
