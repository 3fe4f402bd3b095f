"""``sentinel status``: show every GPU in a table, the daemon, and the end of its log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sentinel.cli import gpu_table
from sentinel.cli.client_options import duration, json_option, with_client
from sentinel.cli.gpu_options import gpu_selection, only
from sentinel.cli.json_output import print_json
from sentinel.client import Client, Status
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


LOG_LINES = 5


@click.command("status")
@duration("--watch", "every", "Repeat this often, until Ctrl+C.")
@gpu_selection
@json_option
@with_client
def command(
    client: Client,
    gpus: tuple[str, ...],
    every: float | None,
    as_json: bool,  # noqa: FBT001 - click's
) -> int:
    """Show the GPUs, by default all, and the daemon; exit code 3 if no daemon runs.

    An empty cell is unknown. HELD BY is sentinel with its workload, the foreign processes, or the
    holder of a reservation. HAND-OVER is the time until the memory was free at the last hand-over,
    and the time since. A `!` marks a GPU with findings: it computed or stored something wrong.
    """
    if every is not None:
        if as_json:
            raise ConfigError("--watch cannot be combined with --json")
        _watch(client, gpus, every)
    if not as_json:
        _print(only(client.status(), gpus))
        return int(ExitCode.OK)
    try:
        status = only(client.status(), gpus)
    except NotRunningError:
        print_json({"running": False})
        raise
    print_json({"running": True, **status.json})
    return int(ExitCode.OK)


def _print(status: Status) -> None:
    from sentinel.cli.output import console

    out = console()
    out.print(_table(status, out.width))
    for line in _below(status):
        click.echo(line)


def _table(status: Status, width: int) -> Table:
    from sentinel.cli.output import table

    return table(
        gpu_table.HEADER,
        [gpu_table.row(gpu, status.reservations) for gpu in status.gpus],
        flexible=gpu_table.FLEXIBLE,
        width=width,
        right=gpu_table.RIGHT,
        styles=gpu_table.STYLES,
    )


def _below(status: Status) -> Iterator[str]:
    """Yield the lines below the table."""
    from sentinel.cli.event_format import printable

    notes = [printable(line) for line in gpu_table.notes(status)]
    if notes:
        yield ""
        yield from notes
    yield ""
    yield from map(printable, gpu_table.facts(status, datetime.now().astimezone()))
    yield from _logged(status.daemon.log)


def _logged(log: str | None) -> Iterator[str]:
    """Yield the last lines of the log if it can be read; the daemon may be on another host."""
    from sentinel.cli.daemon.logs import readable
    from sentinel.cli.log_follow import last_lines

    if log is not None:
        with contextlib.suppress(ConfigError):
            yield from readable(last_lines(Path(log), LOG_LINES))


# --- repetition ------------------------------------------------------------------------------


def _watch(client: Client, gpus: tuple[str, ...], every: float) -> None:
    """Repeat without end, in place on a terminal; errors do not end it."""
    from sentinel.cli.output import console

    out = console()
    if not out.is_terminal or out.is_dumb_terminal:
        while True:
            try:
                _print(only(client.status(), gpus))
            except SentinelError as error:
                click.echo(f"sentinel: {error}", err=True)
            click.echo()
            time.sleep(every)
    _watch_in_place(client, gpus, every, out)


def _watch_in_place(client: Client, gpus: tuple[str, ...], every: float, out: Console) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            try:
                status = only(client.status(), gpus)
            except SentinelError as error:
                live.update(Text(str(error)), refresh=True)
            else:
                below = Text.from_ansi("\n".join(_below(status)))
                live.update(Group(_table(status, out.width), below), refresh=True)
            time.sleep(every)
