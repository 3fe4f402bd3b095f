"""``sentinel history`` and ``logs``: past uses, readings and events of the GPUs, and the log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from sentinel.cli.display import output
from sentinel.cli.display.log_lines import format_clock, is_shown, readable
from sentinel.cli.display.log_reader import every, follow, last_lines
from sentinel.cli.options import command_options as options
from sentinel.cli.options.command_classes import WholeNumber
from sentinel.client import Client, PastEvent, PastReading, PastUse, connect
from sentinel.errors import ConfigError, NoSuchGpuError, NotRunningError, SentinelError
from sentinel.host.daemon_lookup import Location, last_location, locate, simulated_folder
from sentinel.host.paths import stderr_file
from sentinel.protocol.history_types import GpuHours, UserHours
from sentinel.units import format_brief, parse_duration

#: The number of events that are listed.
_MAX_EVENTS = 1000

_USES = output.Table(("GPU", "FROM", "UNTIL", "FOR", "USER"), flexible=4, right=(0, 3))
_HOURS = output.Table(("USER", "HOURS", "UNUSED"), flexible=0, right=(1, 2))
_READINGS = output.Table(
    (
        *("GPU", "TEMP MIN", "MEAN", "MAX", "POWER MIN", "MEAN", "MAX"),
        *("FOREIGN", "OURS", "READ"),
    ),
    flexible=0,
    right=range(10),
)
#: How many lines of the standard error of a daemon that has ended are shown.
_STDERR_LINES = 20


def _since(context: click.Context, _: click.Parameter, text: str) -> str:
    """Convert to the form of the API: a duration before now, or a time with an offset.

    Raises:
        ConfigError: The text is neither, or a time in the future.
    """
    if context.resilient_parsing:
        return text
    try:
        parse_duration(text)
    except ValueError as error:
        try:
            start = datetime.fromisoformat(text.strip()).astimezone()
        except (ValueError, OverflowError):
            remedy = "Or write a time such as '2026-11-20 19:40'."
            raise ConfigError(f"--since: {error}", remedy) from None
        if start > datetime.now(UTC):
            raise ConfigError(f"--since: {text!r} is in the future") from None
        return start.isoformat()
    return text


@click.command("history")
@options.gpu_selection
@click.option(
    "--since",
    metavar="TIME",
    default="1d",
    show_default=True,
    callback=_since,
    help="Start: a duration before now, such as 2h, or a local time, such as '2026-11-20 19:40'.",
)
@click.option("--events", is_flag=True, help="List the events instead, at most the last 1000.")
@output.color_option
@options.asks_daemon
def history(client: Client, gpus: tuple[str, ...], since: str, events: bool) -> options.Printed:
    """Show past uses of the GPUs (by default all), GPU hours by user, and readings.

    HOURS counts the time of a user's processes on GPUs; UNUSED is its part without load. The table
    is sorted by UNUSED. For each GPU follow minimum, mean and maximum of temperature and power, the
    shares of time with foreign processes and with stressors, and the time with readings. An empty
    cell is unknown. USER is sentinel for its stressors. A removed GPU is named by its UUID.
    """
    wanted: tuple[str | None, ...] = (None,)
    if gpus and "all" not in gpus:
        wanted = _each_once(client, gpus)
    if events:
        limit = _MAX_EVENTS
        past = (
            event for gpu in wanted for event in client.recorded_events(gpu, since, limit=limit)
        )
        found = sorted(past, key=lambda event: event.at)[-limit:]
        return options.Printed(json={"events": found}, lines=readable(map(_event_line, found)))
    uses = sorted(
        (use for gpu in wanted for use in client.usage(gpu, since)), key=lambda u: u.began
    )
    hours = [client.gpu_hours(gpu, since) for gpu in wanted]
    readings = [reading for gpu in wanted for reading in _readings(client, gpu, since)]
    plain = [{"index": index, "gpu": uuid, **output.to_json(one)} for index, uuid, one in readings]
    return options.Printed(
        json={"usage": uses, "hours": _sum_up(hours), "gpus": plain},
        lines=_lines(uses, _sum_up(hours), readings),
    )


def _each_once(client: Client, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return one selector of each GPU, since a GPU has several."""
    if len(gpus) == 1:
        return gpus
    by_gpu: dict[str, str] = {}
    for gpu in gpus:
        uuid = gpu
        with contextlib.suppress(NoSuchGpuError):  # a removed GPU may be in the history
            uuid = client.gpu(gpu).uuid
        by_gpu.setdefault(uuid, gpu)
    return tuple(by_gpu.values())


def _sum_up(parts: Sequence[GpuHours]) -> GpuHours:
    """Add the hours of several GPUs."""
    rows: dict[str | None, UserHours] = {}
    for row in (row for part in parts for row in part.users):
        known = rows.get(row.user, UserHours(user=row.user, allocated_s=0.0, unused_s=0.0))
        rows[row.user] = UserHours(
            user=row.user,
            allocated_s=known.allocated_s + row.allocated_s,
            unused_s=known.unused_s + row.unused_s,
        )
    return GpuHours(
        users=tuple(sorted(rows.values(), key=lambda row: (-row.unused_s, -row.allocated_s))),
        idle_s=sum(part.idle_s for part in parts),
        stressors_s=sum(part.stressors_s for part in parts),
    )


def _readings(
    client: Client, gpu: str | None, since: str
) -> Iterator[tuple[int | None, str, PastReading]]:
    """Yield the index and UUID of each GPU with one reading for the whole time."""
    gpus: Iterable[tuple[int | None, str]]
    if gpu is None:
        gpus = [(known.index, known.uuid) for known in client.status().gpus]
    else:
        try:
            found = client.gpu(gpu)
            gpus = [(found.index, found.uuid)]
        except NoSuchGpuError:  # a removed GPU may be in the history
            gpus = [(None, gpu)]
    for index, uuid in gpus:
        for reading in client.history(uuid, since, points=1):
            yield index, uuid, reading


# --- output ----------------------------------------------------------------------------------


def _lines(
    uses: Sequence[PastUse],
    hours: GpuHours,
    readings: Sequence[tuple[int | None, str, PastReading]],
) -> Iterator[str]:
    """Yield the tables of uses and of hours, and that of readings if there are any."""
    if uses:
        yield from _USES.lines(map(_use, uses))
    else:
        yield "No use of a GPU is recorded in this time."
    yield ""
    yield from _HOURS.lines(_hours(hours))
    if readings:
        yield ""
        yield from _READINGS.lines(_reading(*reading) for reading in readings)


def _hours(hours: GpuHours) -> Iterator[tuple[str, str, str]]:
    for row in hours.users:
        yield row.user or "unknown", f"{row.allocated_s / 3600:.2f}", f"{row.unused_s / 3600:.2f}"
    yield "(stressors)", f"{hours.stressors_s / 3600:.2f}", ""
    yield "(idle)", f"{hours.idle_s / 3600:.2f}", ""


def _use(use: PastUse) -> tuple[str, ...]:
    return (
        str(use.index),
        format_clock(use.began),
        "now" if use.going_on else format_clock(use.until),
        format_brief(use.seconds),
        _user(use),
    )


def _user(use: PastUse) -> str:
    if use.ours:
        return f"sentinel {use.pid}"
    if use.pid is None:
        return "a process that is not listed"
    return f"{use.user or ''} {use.pid} {use.who or ''}".strip()


def _reading(index: int | None, uuid: str, reading: PastReading) -> tuple[str, ...]:
    temperatures = (reading.temperature_min_c, reading.temperature_c, reading.temperature_max_c)
    powers = (reading.power_min_w, reading.power_w, reading.power_max_w)
    return (
        uuid[:12] if index is None else str(index),
        *("" if value is None else f"{value:.0f}C" for value in temperatures),
        *("" if value is None else f"{value:.0f}W" for value in powers),
        *("" if share is None else f"{share:.0%}" for share in (reading.busy, reading.ours)),
        format_brief(reading.seconds),
    )


def _event_line(event: PastEvent) -> str:
    """Convert an event to its line in the log."""
    header = {"event": event.name, "time": event.at.isoformat()}
    about = {} if event.gpu is None else {"gpu": event.gpu, "index": event.index}
    return json.dumps({**event.fields, **header, **about})


# --- logs ------------------------------------------------------------------------------------


@click.command("logs")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the log.")
@click.option(
    "-n",
    "--lines",
    "count",
    metavar="N",
    type=WholeNumber(0, 1_000_000),
    default=50,
    show_default=True,
    help="Number of lines to show first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON lines of the log.")
@output.color_option
@options.address_options
def logs(following: bool, count: int, as_json: bool, socket: str | None, simulated: bool) -> None:
    """Show the end of the daemon's log, also after its end or a start that failed.

    Without a running daemon, the command shows the log of the last daemon, whatever directory that
    used. A daemon in a unit of systemd logs to the journal, which is read by journalctl. Exit code
    3 if there is no log.
    """
    folder = simulated_folder(chosen=simulated)
    named = socket is not None or simulated
    where = locate(socket, folder) if named else last_location()
    path, match, runs = _log(where)
    lines: Iterable[str]
    if match is not None:
        from sentinel.cli.display.journal import journal_lines

        lines = journal_lines(match, count, following=following, hidden=as_json)
    else:
        wanted = every if as_json else is_shown  # of the lines that are counted
        lines = follow(path, count, wanted=wanted) if following else last_lines(path, count, wanted)
    for line in filter(_is_event, lines) if as_json else readable(lines):
        print(line, flush=True)
    if not runs and not as_json:
        for line in _after_the_end(where, path if match is None else None):
            click.echo(line, err=True)


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
            yield from map(output.printable, last_lines(stderr_file(path), _STDERR_LINES))
    kept = "the journal" if path is None else str(path)
    yield f"sentinel: no daemon runs at {where.socket}; this was the log of the last, in {kept}"


def _is_event(line: str) -> bool:
    """Check for a line of JSON: the journal has other output, too."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False
