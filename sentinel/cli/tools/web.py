"""``sentinel page``: print the address of the web page, with the token."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel.cli.display.json_output import print_json
from sentinel.cli.options.client_options import json_option, with_client
from sentinel.client import Client, Status
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode

#: Browsers cannot open the wildcard addresses; use the loopback address of the family.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


@click.command("page")
@json_option
@with_client
def command(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Print the address of the web page, for a browser on this host.

    It includes the daemon's token after a `#`, which browsers never send: everyone with the address
    can do what the page can do. The daemon must listen at a TCP address (--tcp).
    """
    found = address(client.status())
    if as_json:
        print_json({"address": found})
    else:
        click.echo(found)
    return int(ExitCode.OK)


def address(status: Status) -> str:
    """Return the address of the web page with the token.

    Raises:
        AccessDeniedError: This user cannot read the token.
        ConfigError: The daemon listens at no TCP address.
    """
    daemon = status.daemon
    if not daemon.tcp:
        raise ConfigError(
            "the page requires a TCP address, and this daemon listens only at its socket",
            "End it with `sentinel shutdown`, and start it again as before with --tcp"
            " 127.0.0.1:8765 added. Or set api.tcp.",
        )
    host, _, port = daemon.tcp.rpartition(":")
    host = host.strip("[]")
    host = _LOOPBACK.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/#token={_token(daemon.token)}"


def _token(path: str | None) -> str:
    """Read the token.

    Raises:
        AccessDeniedError: This user cannot read it.
    """
    try:
        return Path(path or "").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not a token"
        raise AccessDeniedError(f"{path}: the token cannot be read: {why}") from error
