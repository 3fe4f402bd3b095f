"""``sentinel history``: show past uses, readings and events of the GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import color_option, print_json, to_json
from sentinel.cli.options.command_options import gpu_selection, json_option, with_client
from sentinel.client import Client, PastEvent, PastReading, PastUse
from sentinel.errors import ConfigError, ExitCode, NoSuchGpuError
from sentinel.units import format_brief, parse_duration

#: The number of events that are listed.
_MAX_EVENTS = 1000

_USES = ("GPU", "FROM", "UNTIL", "FOR", "USER")
_READINGS = (
    "GPU",
    "TEMP MIN",
    "MEAN",
    "MAX",
    "POWER MIN",
    "MEAN",
    "MAX",
    "FOREIGN",
    "OURS",
    "READ",
)


def _since(context: click.Context, _: click.Parameter, text: str) -> str:
    """Convert to the form of the API: a duration before now, or a time with an offset.

    Raises:
        ConfigError: The text is neither.
    """
    if context.resilient_parsing:
        return text
    try:
        parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text.strip()).astimezone().isoformat()
        except (ValueError, OverflowError):
            what = f"--since: {text!r} is neither a duration nor a time"
            raise ConfigError(what, "Write one such as 2h, 7d or '2026-11-20 19:40'.") from None
    return text


@click.command("history")
@gpu_selection
@click.option(
    "--since",
    metavar="TIME",
    default="1d",
    show_default=True,
    callback=_since,
    help="Start: a duration before now, such as 2h, or a local time, such as '2026-11-20 19:40'.",
)
@click.option("--events", is_flag=True, help="List the events instead, at most the last 1000.")
@color_option
@json_option
@with_client
def command(
    client: Client,
    gpus: tuple[str, ...],
    since: str,
    events: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001 - click's
) -> int:
    """Show past uses of the GPUs, by default all, and their readings.

    The readings of each GPU are its minimum, mean and maximum temperature and power, the shares of
    the time in which foreign processes and stressors used it, and the time with readings. An empty
    cell is unknown. USER is sentinel for its stressors. A removed GPU is named by its UUID.
    """
    wanted: tuple[str | None, ...] = (None,) if not gpus or "all" in gpus else gpus
    if events:
        _show_events(_events(client, wanted, since), as_json=as_json)
        return int(ExitCode.OK)
    uses = _uses(client, wanted, since)
    readings = [one for gpu in wanted for one in _readings(client, gpu, since)]
    if as_json:
        print_json(
            {
                "usage": uses,
                "gpus": [
                    {"index": index, "gpu": uuid, **to_json(reading)}
                    for index, uuid, reading in readings
                ],
            }
        )
        return int(ExitCode.OK)
    _show(uses, readings)
    return int(ExitCode.OK)


def _events(client: Client, gpus: Sequence[str | None], since: str) -> Sequence[PastEvent]:
    """Return the last events of these GPUs, oldest first; of all and of the daemon for None."""
    found = [client.recorded_events(gpu, since, limit=_MAX_EVENTS) for gpu in gpus]
    merged = sorted((event for events in found for event in events), key=lambda one: one.at)
    return merged[-_MAX_EVENTS:]


def _uses(client: Client, gpus: Sequence[str | None], since: str) -> Sequence[PastUse]:
    """Return the uses of these GPUs, oldest first; of all for None."""
    found = [client.usage(gpu, since) for gpu in gpus]
    return sorted((us for uses in found for us in uses), key=lambda one: one.began)


def _readings(
    client: Client, gpu: str | None, since: str
) -> Iterator[tuple[int | None, str, PastReading]]:
    """Yield the index and UUID of each GPU with one reading for the whole time."""
    for index, uuid in _gpus(client, gpu):
        for reading in client.history(uuid, since, points=1):
            yield index, uuid, reading


def _gpus(client: Client, gpu: str | None) -> list[tuple[int | None, str]]:
    if gpu is None:
        return [(one.index, one.uuid) for one in client.status().gpus]
    try:
        one = client.gpu(gpu)
    except NoSuchGpuError:  # a removed GPU may be in the history
        return [(None, gpu)]
    return [(one.index, one.uuid)]


# --- output ----------------------------------------------------------------------------------


def _show(uses: Sequence[PastUse], readings: Sequence[tuple[int | None, str, PastReading]]) -> None:
    from sentinel.cli.display.output import print_table

    if not uses:
        click.echo("No use of a GPU is recorded in this time.")
    else:
        print_table(_USES, [_use(use) for use in uses], flexible=4, right=(0, 3))
    if readings:
        click.echo()
        rows = [_reading(index, uuid, one) for index, uuid, one in readings]
        print_table(_READINGS, rows, flexible=0, right=range(len(_READINGS)))


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


def _show_events(events: Sequence[PastEvent], *, as_json: bool) -> None:
    if as_json:
        print_json({"events": events})
        return
    from sentinel.cli.display.log_lines import readable

    for line in readable(map(_line, events)):
        print(line)


def _line(event: PastEvent) -> str:
    """Convert an event to its line in the log."""
    header = {"event": event.name, "time": event.at.isoformat()}
    about = {} if event.gpu is None else {"gpu": event.gpu, "index": event.index}
    return json.dumps({**event.fields, **header, **about})
