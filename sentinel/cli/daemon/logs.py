"""``sentinel logs``: show the log of the daemon, wherever it is, and follow it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from sentinel.cli.display.log_lines import follow, last_lines, readable
from sentinel.cli.display.output import color_option, printable
from sentinel.cli.options.command_options import address_options, simulated_folder
from sentinel.client import connect
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host.daemons.daemon_lookup import Location, last_location, locate
from sentinel.host.files.paths import stderr_file

#: How many lines of the standard error of a daemon that has ended are shown.
_STDERR_LINES = 20


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
@click.option("--json", "as_json", is_flag=True, help="Print the JSON lines of the log.")
@color_option
@address_options
def command(
    following: bool,  # noqa: FBT001 - click's
    count: int,
    as_json: bool,  # noqa: FBT001
    socket: str | None,
    simulated: bool,  # noqa: FBT001
) -> int:
    """Show the end of the daemon's log, also after its end or a start that failed.

    Without a running daemon, it is the log of the last one, whatever directory it used. A daemon in
    a unit of systemd logs to the journal, which is read by journalctl. Exit code 3 if there is no
    log.
    """
    folder = simulated_folder(chosen=simulated)
    named = socket is not None or simulated
    where = locate(socket, folder) if named else last_location()
    path, match, runs = _log(where)
    lines: Iterable[str]
    if match is not None:
        from sentinel.cli.journal_reader import journal_lines

        lines = journal_lines(match, count, following=following)
    else:
        lines = follow(path, count) if following else last_lines(path, count)
    for line in filter(_is_event, lines) if as_json else readable(lines):
        print(line, flush=True)
    if not runs and not as_json:
        for line in _after_the_end(where, path if match is None else None):
            click.echo(line, err=True)
    return int(ExitCode.OK)


def _log(where: Location) -> tuple[Path, str | None, bool]:
    """Find the log: the one that the daemon reports, or else that of the last one.

    Returns:
        The file, or the match for journalctl, and whether the daemon runs.

    Raises:
        ConfigError: The daemon has no log.
        NotRunningError: There is no daemon, and no log of one.
    """
    log, match, runs = where.log, where.journal, False
    with contextlib.suppress(SentinelError):
        daemon = connect(where.socket, timeout=3.0).status().daemon
        log, match, runs = None if daemon.log is None else Path(daemon.log), daemon.journal, True
    if match is not None:
        return Path(), match, runs
    if log is None:
        raise ConfigError(
            "this daemon writes no log: it runs in the foreground, and its standard output has all",
            "A daemon that `sentinel start` began writes one; this one with --log-file FILE.",
        )
    if not runs and not log.exists():
        raise NotRunningError(
            f"there is no log: no daemon runs at {where.socket}, and {log} is missing",
            "Start a daemon with `sentinel start`, or name another: --socket PATH, --simulated.",
        )
    return log, None, runs


def _after_the_end(where: Location, path: Path | None) -> Iterator[str]:
    """Yield what a daemon that has ended left on its standard error, and that it has ended."""
    if path is not None:
        with contextlib.suppress(ConfigError):
            yield from map(printable, last_lines(stderr_file(path), _STDERR_LINES))
    kept = "the journal" if path is None else str(path)
    yield f"sentinel: no daemon runs at {where.socket}; this was the log of the last, in {kept}"


def _is_event(line: str) -> bool:
    """Check for a line of JSON: the journal has other output, too."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False
