"""``sentinel status`` and ``top``: show every GPU, its processes and the daemon, once or live.

`status` runs in scripts and prompts, so it decodes no response and imports no library but click:
see tests/integration/cli/test_status.py for the modules that it may import.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sentinel.cli.display import gpu_table, output
from sentinel.cli.failures import error_fields
from sentinel.cli.options import command_options as options
from sentinel.cli.options import value_completion
from sentinel.client.requester import JsonView
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode, NotRunningError, ServiceError
from sentinel.host.daemon_lookup import KnownDaemon, known_daemons
from sentinel.units import format_count, format_size

if TYPE_CHECKING:
    from sentinel.client import Client, Status
    from sentinel.client.requester import Requester


LOG_LINES = 5
_DAEMONS = output.Table(("PID", "GPUS", "CHANGED", "SIZE", "SOCKET", "STATE"), right=(0, 3))
#: Browsers cannot open the wildcard addresses; use the loopback address of the family.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def _or_daemons(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--daemons``, which needs no daemon."""

    @functools.wraps(function)
    def either(*, daemons: bool, as_json: bool, **rest: Any) -> int:
        if daemons:
            return _list_daemons().show(as_json=as_json)
        return function(as_json=as_json, **rest)

    text = "List the daemons of this user, running or ended, and their state directories."
    return click.option("--daemons", is_flag=True, help=text)(either)


@click.command("status")
@_or_daemons
@click.option("--page", is_flag=True, help="Print the address of the web page, with its token.")
@click.option(
    "--list", "as_list", is_flag=True, help="Print the GPUs and no more, one line for each."
)
@options.duration("--watch", "every", "Repeat this often, by default 2s, until Ctrl+C.", alone="2s")
@output.color_option
@options.gpu_selection
@options.json_option
@options.with_requester
def status(
    client: Requester,
    gpus: tuple[str, ...],
    every: float | None,
    as_list: bool,
    page: bool,
    as_json: bool,
) -> int:
    """Show the GPUs (by default all), their processes and the daemon.

    An empty cell is unknown. HELD BY is sentinel with its workload, the foreign processes, or the
    holder of a reservation. HAND-OVER is the time until the memory was free at the last hand-over,
    and the time since. A `!` marks a GPU with findings or a fault. Exit code 3 if no daemon
    runs.
    """
    if page:
        daemon = JsonView(client.request("GET", "/v1/status")["daemon"])
        found = page_address(daemon.tcp, daemon.token)
        return options.Printed(json={"address": found}, lines=[found]).show(as_json=as_json)
    if as_json:
        if every is not None:
            raise ConfigError("--watch cannot be combined with --json")
        return _print_json(client, gpus, as_list=as_list)
    if every is None:
        print("\n".join(_lines(client, gpus, as_list=as_list)))
        return int(ExitCode.OK)
    return output.repeat(lambda: _lines(client, gpus, as_list=as_list), every)


def _print_json(client: Requester, gpus: Sequence[str], *, as_list: bool) -> int:
    try:
        status = options.only_json(client.request("GET", "/v1/status"), gpus)
    except NotRunningError as error:
        output.print_json({"running": False, **error_fields(error)})
        return int(error.exit_code)
    output.print_json({"running": True, **({"gpus": status["gpus"]} if as_list else status)})
    return int(ExitCode.OK)


def _lines(client: Requester, gpus: Sequence[str], *, as_list: bool) -> list[str]:
    """Request the status and format it.

    Raises:
        SentinelError: As for every verb of a client.
    """
    try:
        response = client.request("GET", "/v1/status")
    except NotRunningError as error:
        raise _with_holders(error, client.address.socket) from error
    status = cast("Status", JsonView(options.only_json(response, gpus)))
    try:
        if as_list:
            stale = gpu_table.is_stale(status)
            return [output.printable(gpu_table.list_line(gpu, stale=stale)) for gpu in status.gpus]
        return "\n".join(_report(status, local=not client.address.host)).split("\n")
    except (AttributeError, TypeError, ValueError) as error:
        raise ServiceError(
            f"invalid response from the daemon: {error}",
            "Client and daemon may be of different versions: sentinel --version",
        ) from error


def _with_holders(error: NotRunningError, socket: str) -> NotRunningError:
    """Name the burn-ins that hold GPUs without a daemon, and the sentinels of other users."""
    from sentinel.host.lock_holders import SHARED_FOLDERS, holders
    from sentinel.host.registry import records_folder, running_burnins
    from sentinel.host.simulation import default_folder

    simulated = default_folder().absolute()
    shared = [simulated / "locks"] if Path(socket).parent == simulated else SHARED_FOLDERS
    found = Counter(
        holder for held in holders(shared).values() for holder in held if holder.uid != os.getuid()
    )
    text = "".join(
        f"\n{run}\nTo follow it: sentinel burnin attach {shlex.quote(str(run.run))}"
        for run in running_burnins(records_folder(os.environ, os.getuid()))
    )
    text += "".join(
        f"\n{format_count(count, 'GPU')} held by {holder.by_name()}"
        for holder, count in found.items()
    )
    return NotRunningError(error.what, f"{error.remedy}{text}")


def _report(status: Status, *, local: bool) -> Iterator[str]:
    """Yield all lines.

    Args:
        status: The state of the daemon.
        local: Whether the daemon runs on this host.
    """
    stale = gpu_table.is_stale(status)
    yield output.cut(output.printable(gpu_table.title(status)), output.terminal_width())
    reservations = status.reservations or ()
    yield from gpu_table.GPUS.lines(
        gpu_table.row(gpu, reservations, stale=stale) for gpu in status.gpus
    )
    jobs = [] if stale else gpu_table.jobs(status.gpus, local=local)
    if jobs:
        yield ""
        yield from gpu_table.PROCESSES.lines(map(gpu_table.process_row, jobs))
    notes = [*gpu_table.notes(status)]
    if notes:
        notes.append("")
    notes += gpu_table.facts(status, datetime.now().astimezone())
    yield ""
    yield from (output.fitted(output.printable(line)) for line in notes)
    yield from _logged(status.daemon.log)


def _logged(log: str | None) -> Iterator[str]:
    """Yield the last lines of the log if it can be read; the daemon may be on another host.

    What happens again and again is left out, as it would hide what happened: the debug level, and
    what the table above shows.
    """
    if log is None:
        return
    from sentinel.cli.display.log_lines import is_notable, readable
    from sentinel.cli.display.log_reader import last_wanted

    with contextlib.suppress(ConfigError):
        yield from readable(last_wanted(Path(log), LOG_LINES, is_notable))


# --- the daemons, and the web page -----------------------------------------------------------


def _list_daemons() -> options.Printed:
    """List the daemons of this user that run, and those that have ended and left their state.

    PID is empty for one that has ended. CHANGED is the last change in its state directory, and SIZE
    what that takes on the disk. No state directory is ever removed by itself: the next daemon of
    the same socket continues with it.
    """
    known = known_daemons(os.environ, os.getuid())
    none = "this user has no daemon, and none has left a state directory"
    found, rows = list(map(_daemon_json, known)), list(map(_daemon_row, known))
    return options.listing(_DAEMONS, rows, none, daemons=found)


def _daemon_row(daemon: KnownDaemon) -> tuple[str, ...]:
    gpus = "" if daemon.socket is None else "real"
    changed = _moment(daemon.changed)
    return (
        str(daemon.pid or ""),
        gpus if daemon.simulated is None else f"{daemon.simulated} simulated",
        "" if changed is None else f"{changed.astimezone():%Y-%m-%d %H:%M}",
        format_size(daemon.size),
        daemon.socket or "",
        str(daemon.state),
    )


def _daemon_json(daemon: KnownDaemon) -> dict[str, object]:
    moments = {"since": _moment(daemon.since), "changed": _moment(daemon.changed)}
    return {**vars(daemon), **moments}


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def page_address(tcp: str | None, token: str | None) -> str:
    """Return the address of the web page, for a browser on this host.

    It includes the daemon's token after a `#`, which browsers never send: everyone with the address
    can do what the page can do.

    Raises:
        AccessDeniedError: This user cannot read the token.
        ConfigError: The daemon listens at no TCP address.
    """
    if not tcp:
        raise ConfigError(
            "the page requires a TCP address, and this daemon listens only at its socket",
            "End it with `sentinel stop`, and start it again as before with --tcp"
            " 127.0.0.1:8765 added. Or save it, and restart: sentinel set --save"
            " api.tcp=127.0.0.1:8765; sentinel restart",
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


@click.command("top")
@options.duration("--every", "every", "Update this often.  [default: 1s]")
@click.option(
    "--sort",
    type=output.Word(("index", "state", "load", "memory", "temperature", "power")),
    default="index",
    show_default=True,
    help="What comes first; s changes it.",
)
@click.option(
    "--filter",
    "words",
    metavar="WORDS",
    default="",
    shell_complete=value_completion.states,
    help="Only GPUs with these words: states, models, users, commands; / changes it.",
)
@options.gpu_selection
@output.color_option
@options.with_client
def top(client: Client, gpus: tuple[str, ...], every: float | None, sort: str, words: str) -> int:
    """Show every GPU live, or those that are given.

    p pauses the selected one, r resumes it, v reserves it, / filters, s sorts, ? shows all keys, q
    quits.

    Requires textual: pip install 'gpu-sentry[tui]'. Exit code 3 if no daemon runs.
    """
    if not output.wants_colour(sys.stdout):
        os.environ["NO_COLOR"] = "1"  # for textual
    try:
        from sentinel.cli.tui import Live
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "sentinel top requires textual, which is not installed",
            "Install it: pip install 'gpu-sentry[tui]'. Without it: sentinel status --watch 2s",
        ) from error
    first = client.status()
    options.only(first, gpus)  # an error before the screen
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "sentinel top requires a terminal with cursor control",
            "Without one: sentinel status --watch 2s",
        )
    if not sys.stderr.isatty():  # on which textual draws
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
    Live(client, first, every=every or 1.0, gpus=gpus, sort=sort, words=words).run()
    return int(ExitCode.OK)
