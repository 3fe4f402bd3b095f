"""``sentinel status --daemons`` and ``--page``: the daemons of this user, and the web page."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sentinel.cli.display.output import print_json
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode
from sentinel.host.daemons.daemon_lookup import KnownDaemon, known_daemons
from sentinel.units import format_size

_HEADER = ("PID", "GPUS", "CHANGED", "SIZE", "SOCKET", "STATE")
#: Browsers cannot open the wildcard addresses; use the loopback address of the family.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def list_daemons(*, as_json: bool) -> int:
    """List the daemons of this user that run, and those that have ended and left their state.

    PID is empty for one that has ended. CHANGED is the last change in its state directory, and SIZE
    what that takes on the disk. No state directory is ever removed by itself: the next daemon of
    the same socket continues with it.
    """
    found = known_daemons(os.environ, os.getuid())
    if as_json:
        print_json({"daemons": [_plain(one) for one in found]})
        return int(ExitCode.OK)
    if not found:
        click.echo("this user has no daemon, and none has left a state directory", err=True)
        return int(ExitCode.OK)
    from sentinel.cli.display.output import print_table

    print_table(_HEADER, [_row(one) for one in found], flexible=None, right=(0, 3))
    return int(ExitCode.OK)


def _row(one: KnownDaemon) -> tuple[str, ...]:
    gpus = "" if one.socket is None else "real"
    changed = _time(one.changed)
    return (
        str(one.pid or ""),
        gpus if one.simulated is None else f"{one.simulated} simulated",
        "" if changed is None else f"{changed.astimezone():%Y-%m-%d %H:%M}",
        format_size(one.size),
        one.socket or "",
        str(one.state),
    )


def _plain(one: KnownDaemon) -> dict[str, object]:
    return {
        "running": one.running,
        "pid": one.pid,
        "since": _time(one.since),
        "socket": one.socket,
        "simulated": one.simulated,
        "state": one.state,
        "size": one.size,
        "changed": _time(one.changed),
    }


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def print_page(daemon: Any, *, as_json: bool) -> int:
    """Print the address of the web page, for a browser on this host.

    It includes the daemon's token after a `#`, which browsers never send: everyone with the address
    can do what the page can do.

    Args:
        daemon: The daemon in the status.
        as_json: Whether to print an object.
    """
    found = address(daemon.tcp, daemon.token)
    if as_json:
        print_json({"address": found})
    else:
        click.echo(found)
    return int(ExitCode.OK)


def address(tcp: str | None, token: str | None) -> str:
    """Return the address of the web page with the token.

    Raises:
        AccessDeniedError: This user cannot read the token.
        ConfigError: The daemon listens at no TCP address.
    """
    if not tcp:
        raise ConfigError(
            "the page requires a TCP address, and this daemon listens only at its socket",
            "End it with `sentinel stop`, and start it again as before with --tcp"
            " 127.0.0.1:8765 added. Or set api.tcp, and use: sentinel restart.",
        )
    host, _, port = tcp.rpartition(":")
    host = host.strip("[]")
    host = _LOOPBACK.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/#token={_token(token)}"


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
