"""``sentinel page``: the address of the web page, with the token in it."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel.cli.client_options import json_option, with_client
from sentinel.cli.json_output import print_json
from sentinel.client import Client, Status
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode

#: Every address of the host, which no browser can open; its own address by each family.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it is looked for, not listened at


@click.command("page")
@json_option
@with_client
def command(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Print the address of the web page, for a browser on this host.

    It has the daemon's token in it, behind a `#`, which browsers send to nobody: who has the
    address may do whatever the page can do. The daemon must listen at a TCP address (--tcp).
    """
    found = address(client.status())
    if as_json:
        print_json({"address": found})
    else:
        click.echo(found)
    return int(ExitCode.OK)


def address(status: Status) -> str:
    """Return the address of the page of a daemon, with its token.

    Raises:
        AccessDeniedError: The token cannot be read by us.
        ConfigError: The daemon listens at no TCP address.
    """
    daemon = status.daemon
    if not daemon.tcp:
        raise ConfigError(
            "the page needs a TCP address, and this daemon listens only at its socket",
            "Start it with one: sentinel start --tcp 127.0.0.1:8765, or api.tcp in its file.",
        )
    host, _, port = daemon.tcp.rpartition(":")
    host = host.strip("[]")
    host = _EVERYWHERE.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/#token={_token(daemon.token)}"


def _token(path: str | None) -> str:
    """Return what is in the file of the token.

    Raises:
        AccessDeniedError: It cannot be read by us.
    """
    try:
        return Path(path or "").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no token"
        raise AccessDeniedError(f"{path}: the token cannot be read: {why}") from error
