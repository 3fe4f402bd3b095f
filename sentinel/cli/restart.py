"""``sentinel restart``: the daemon begins anew, with other settings."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sentinel.cli.options import flags
from sentinel.cli.talking import json_option, show, talks
from sentinel.client import Client

__all__ = ["command"]


@click.command("restart")
@json_option
@talks
@flags
def command(
    client: Client,
    as_json: bool,  # noqa: FBT001 - click's
    given: Mapping[str, str],
) -> int:
    """Take over these settings, and occupy anew with them; the daemon stays.

    Settings given here replace all those that the daemon was started with. Without any, those
    stay, and the file is read anew.
    """
    return show(client.restart(given or None), as_json=as_json)
