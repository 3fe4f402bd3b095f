"""``sentinel history``: who used which GPU when, how the GPUs did, and what happened on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from sentinel.cli.client_options import json_option, with_client
from sentinel.cli.json_output import print_json, to_json
from sentinel.client import Client, PastEvent, PastReading, PastUse
from sentinel.errors import ConfigError, ExitCode, NoSuchGpuError
from sentinel.units import format_brief, parse_duration

_USES = ("GPU", "FROM", "UNTIL", "FOR", "WHO")
_READINGS = ("GPU", "TEMP MIN", "MEAN", "MAX", "POWER MIN", "MEAN", "MAX", "OTHERS", "OURS", "READ")


def _since(context: click.Context, _: click.Parameter, text: str) -> str:
    """Return what the daemon takes: a time before now, or a moment with its offset.

    Raises:
        ConfigError: It is neither.
    """
    if context.resilient_parsing:
        return text
    try:
        parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text.strip()).astimezone().isoformat()
        except (ValueError, OverflowError):
            what = f"--since: {text!r} is neither a time nor a moment"
            raise ConfigError(what, "Write one such as 2h, 7d or '2026-11-20 19:40'.") from None
    return text


@click.command("history")
@click.option("--gpu", metavar="GPU", help="Only this one; one that is gone by its UUID.")
@click.option(
    "--since",
    metavar="TIME",
    default="1d",
    show_default=True,
    callback=_since,
    help="How far back, such as 2h; or from when on, such as '2026-11-20 19:40', in local time.",
)
@click.option("--events", is_flag=True, help="List the events instead, the last 1000 at most.")
@json_option
@with_client
def command(
    client: Client,
    gpu: str | None,
    since: str,
    events: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001 - click's
) -> int:
    """Show who used which GPU when, and how each did, as far back as is kept.

    Of each GPU below: the least, mean and greatest temperature and power, the share of the time in
    which others used it and in which a stressor worked on it, and for how long it was read. An
    empty cell is not known. For sentinel's own times, WHO is sentinel.
    """
    if events:
        _show_events(client.recorded_events(gpu, since, limit=1000), as_json=as_json)
        return int(ExitCode.OK)
    uses = client.usage(gpu, since)
    readings = list(_readings(client, gpu, since))
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


def _readings(
    client: Client, gpu: str | None, since: str
) -> Iterator[tuple[int | None, str, PastReading]]:
    """Yield the index and UUID of each GPU with the one reading that stands for the whole time."""
    for index, uuid in _gpus(client, gpu):
        for reading in client.history(uuid, since, points=1):
            yield index, uuid, reading


def _gpus(client: Client, gpu: str | None) -> list[tuple[int | None, str]]:
    if gpu is None:
        return [(one.index, one.uuid) for one in client.status().gpus]
    try:
        one = client.gpu(gpu)
    except NoSuchGpuError:  # one that is gone; the history knows whether it was
        return [(None, gpu)]
    return [(one.index, one.uuid)]


# --- output ----------------------------------------------------------------------------------


def _show(uses: Sequence[PastUse], readings: Sequence[tuple[int | None, str, PastReading]]) -> None:
    from sentinel.cli.output import print_table

    if not uses:
        click.echo("Nobody used a GPU in this time, as far as is known.")
    else:
        print_table(_USES, [_use(use) for use in uses], flexible=4, right=(0, 3))
    if readings:
        click.echo()
        rows = [_reading(index, uuid, one) for index, uuid, one in readings]
        print_table(_READINGS, rows, flexible=0, right=range(len(_READINGS)))


def _use(use: PastUse) -> tuple[str, ...]:
    return (
        str(use.index),
        _clock(use.began),
        "now" if use.going_on else _clock(use.until),
        format_brief(use.seconds),
        _who(use),
    )


def _who(use: PastUse) -> str:
    if use.ours:
        return f"sentinel {use.pid}"
    if use.pid is None:
        return "somebody who is not listed"
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


def _clock(moment: datetime) -> str:
    """Return a moment as a clock here shows it, with its day where that is not today."""
    here = moment.astimezone()
    today = here.date() == datetime.now().astimezone().date()
    return f"{here:%H:%M:%S}" if today else f"{here:%m-%d %H:%M:%S}"


def _show_events(events: Sequence[PastEvent], *, as_json: bool) -> None:
    if as_json:
        print_json({"events": events})
        return
    from sentinel.cli.daemon.logs import readable

    for line in readable(map(_line, events)):
        click.echo(line)


def _line(event: PastEvent) -> str:
    """Return an event as its line of the log."""
    beside = {"event": event.name, "time": event.at.isoformat()}
    about = {} if event.gpu is None else {"gpu": event.gpu, "index": event.index}
    return json.dumps({**event.fields, **beside, **about})
