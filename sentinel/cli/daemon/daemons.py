"""``sentinel daemons``: list the daemons of this user and their state directories."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import click

from sentinel.cli.display.json_output import print_json
from sentinel.cli.options.client_options import json_option
from sentinel.errors import ExitCode
from sentinel.host.daemons.daemon_lookup import KnownDaemon, known_daemons
from sentinel.units import format_size

_HEADER = ("PID", "GPUS", "CHANGED", "SIZE", "SOCKET", "STATE")


@click.command("daemons")
@json_option
def command(as_json: bool) -> int:  # noqa: FBT001 - click's
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
