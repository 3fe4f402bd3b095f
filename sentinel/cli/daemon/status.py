"""``sentinel status``: show every GPU, its processes, the daemon, and the end of its log.

It runs in scripts and prompts, so it decodes no response and imports no library but click: see
tests/integration/cli/test_status.py for the modules that it may import.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sentinel.cli.display import gpu_table
from sentinel.cli.display.output import (
    color_option,
    cut,
    print_json,
    printable,
    table,
    terminal_width,
    wants_colour,
)
from sentinel.cli.failures import error_fields
from sentinel.cli.options.command_options import (
    duration,
    gpu_selection,
    json_option,
    only_json,
    with_requester,
)
from sentinel.client.requester import JsonView
from sentinel.errors import ConfigError, ExitCode, NotRunningError, ServiceError

if TYPE_CHECKING:
    from sentinel.client import Status
    from sentinel.client.requester import Requester

LOG_LINES = 5


def _or_daemons(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--daemons``, which needs no daemon."""

    @functools.wraps(function)
    def either(*, daemons: bool, as_json: bool, **options: Any) -> int:
        if daemons:
            from sentinel.cli.daemon.daemons import list_daemons

            return list_daemons(as_json=as_json)
        return function(as_json=as_json, **options)

    text = "List the daemons of this user, running or ended, and their state directories."
    return click.option("--daemons", is_flag=True, help=text)(either)


@click.command("status")
@_or_daemons
@click.option("--page", is_flag=True, help="Print the address of the web page, with its token.")
@click.option(
    "--list", "as_list", is_flag=True, help="Print the GPUs and no more, one line for each."
)
@duration("--watch", "every", "Repeat this often, until Ctrl+C.")
@color_option
@gpu_selection
@json_option
@with_requester
def command(
    client: Requester,
    gpus: tuple[str, ...],
    every: float | None,
    as_list: bool,  # noqa: FBT001 - click's
    page: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> int:
    """Show the GPUs, by default all, their processes and the daemon; exit code 3 if none runs.

    An empty cell is unknown. HELD BY is sentinel with its workload, the foreign processes, or the
    holder of a reservation. HAND-OVER is the time until the memory was free at the last hand-over,
    and the time since. A `!` marks a GPU with findings: it computed or stored something wrong.
    """
    if page:
        from sentinel.cli.daemon.daemons import print_page

        daemon = JsonView(client.request("GET", "/v1/status")["daemon"])
        return print_page(daemon, as_json=as_json)
    if as_json:
        if every is not None:
            raise ConfigError("--watch cannot be combined with --json")
        return _print_json(client, gpus, as_list=as_list)
    if every is None:
        print("\n".join(_lines(client, gpus, as_list=as_list)))
        return int(ExitCode.OK)
    from sentinel.cli.display.live_table import repeat

    return repeat(lambda: _lines(client, gpus, as_list=as_list), every)


def _print_json(client: Requester, gpus: Sequence[str], *, as_list: bool) -> int:
    try:
        status = only_json(client.request("GET", "/v1/status"), gpus)
    except NotRunningError as error:
        print_json({"running": False, **error_fields(error)})
        return int(error.exit_code)
    print_json({"running": True, **({"gpus": status["gpus"]} if as_list else status)})
    return int(ExitCode.OK)


def _lines(client: Requester, gpus: Sequence[str], *, as_list: bool) -> list[str]:
    """Request the status and format it.

    Raises:
        SentinelError: As for every verb of a client.
    """
    try:
        response = client.request("GET", "/v1/status")
    except NotRunningError as error:
        raise _with_burnins(error) from error
    status = cast("Status", JsonView(only_json(response, gpus)))
    try:
        if as_list:
            stale = gpu_table.is_stale(status)
            return [printable(gpu_table.list_line(gpu, stale=stale)) for gpu in status.gpus]
        return list(_report(status, local=not client.address.host))
    except (AttributeError, TypeError, ValueError) as error:
        raise ServiceError(
            f"invalid response from the daemon: {error}",
            "Client and daemon may be of different versions: sentinel --version",
        ) from error


def _with_burnins(error: NotRunningError) -> NotRunningError:
    """Name the burn-ins that hold GPUs without a daemon."""
    from sentinel.host.daemons.registry import records_folder, running_burnins

    runs = running_burnins(records_folder(os.environ, os.getuid()))
    text = "".join(f"\n{run}\nTo follow it: sentinel burnin attach {run.run}" for run in runs)
    return NotRunningError(error.what, f"{error.remedy}{text}") if runs else error


def _report(status: Status, *, local: bool) -> Iterator[str]:
    """Yield all lines.

    Args:
        status: The state of the daemon.
        local: Whether the daemon runs on this host.
    """
    stale = gpu_table.is_stale(status)
    width, colour = terminal_width(), wants_colour(sys.stdout)
    yield cut(printable(gpu_table.title(status)), width)
    yield from table(
        gpu_table.HEADER,
        [gpu_table.row(gpu, status.reservations or (), stale=stale) for gpu in status.gpus],
        flexible=gpu_table.FLEXIBLE,
        width=width,
        right=gpu_table.RIGHT,
        styles=gpu_table.STYLES,
        colour=colour,
    )
    if not stale:
        yield from _processes(status, width, local=local, colour=colour)
    notes = [printable(line) for line in gpu_table.notes(status)]
    if notes:
        yield ""
        yield from notes
    yield ""
    yield from map(printable, gpu_table.facts(status, datetime.now().astimezone()))
    yield from _logged(status.daemon.log)


def _processes(status: Status, width: int, *, local: bool, colour: bool) -> Iterator[str]:
    """Yield the table of processes, if there are any."""
    from sentinel.cli.display import gpu_table

    rows = [gpu_table.process_row(job) for job in gpu_table.jobs(status.gpus, local=local)]
    if rows:
        yield ""
        yield from table(
            gpu_table.PROCESS_HEADER,
            rows,
            flexible=gpu_table.PROCESS_FLEXIBLE,
            width=width,
            right=gpu_table.PROCESS_RIGHT,
            colour=colour,
        )


def _logged(log: str | None) -> Iterator[str]:
    """Yield the last lines of the log if it can be read; the daemon may be on another host.

    What is logged at the debug level is left out: several lines a second would hide all else.
    """
    if log is None:
        return
    from sentinel.cli.display.log_lines import is_notable, last_wanted, readable

    with contextlib.suppress(ConfigError):
        yield from readable(last_wanted(Path(log), LOG_LINES, is_notable))
