"""``sentinel stop``, ``reload`` and ``shutdown``: orders to the daemon as a whole."""

from __future__ import annotations

import click

from sentinel.cli.talking import json_option, show, talks, waits
from sentinel.client import Client

__all__ = ["reload_", "shutdown", "stop"]


@click.command("stop")
@waits("How long to wait until the memory of every GPU is back")
@json_option
@talks
def stop(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let go of every GPU; the daemon stays, and `sentinel start` goes on.

    Exit code 1 if something is still held after that time.
    """
    return show(client.stop(wait), as_json=as_json)


@click.command("reload")
@json_option
@talks
def reload_(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Read the settings anew; take over all of them, or none.

    Exit code 2 if one is not allowed; nothing has changed then.
    """
    return show(client.reload(), as_json=as_json)


@click.command("shutdown")
@waits("How long to wait until the daemon is gone")
@json_option
@talks
def shutdown(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let go of every GPU and end the daemon."""
    return show(client.shutdown(wait), as_json=as_json)
