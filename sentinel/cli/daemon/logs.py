"""``sentinel logs``: show the log of the daemon, and follow it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from sentinel.cli.client_options import address_options, simulated_folder
from sentinel.cli.event_format import readable
from sentinel.cli.log_follow import follow, last_lines
from sentinel.cli.terminal import color_option
from sentinel.client import connect
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host.paths import find_log


@click.command("logs")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the log.")
@click.option(
    "-n",
    "--lines",
    "count",
    metavar="N",
    type=click.IntRange(0, 1_000_000),
    default=50,
    show_default=True,
    help="Number of lines to show first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON lines of the file.")
@color_option
@address_options
def command(
    following: bool,  # noqa: FBT001 - click's
    count: int,
    as_json: bool,  # noqa: FBT001
    socket: str | None,
    simulated: bool,  # noqa: FBT001
) -> int:
    """Show the end of the daemon's log, also if it does not run."""
    path = _log(socket, simulated_folder(chosen=simulated))
    lines: Iterable[str] = follow(path, count) if following else last_lines(path, count)
    if not as_json:
        lines = readable(lines)
    for line in lines:
        print(line, flush=True)
    return int(ExitCode.OK)


def _log(socket: str | None, simulated: Path | None) -> Path:
    """Find the log: the one that the daemon reports, or else the usual one."""
    try:
        log = connect(socket, simulated=simulated, timeout=3.0).status().daemon.log
    except SentinelError:
        return Path(find_log(simulated))
    if log is None:
        raise ConfigError(
            "this daemon writes no log: it runs in the foreground, and its standard output has all",
            "A daemon that `sentinel start` began writes one.",
        )
    return Path(log)
