"""``sentinel session``: settings of some GPUs under a name, laid over the daemon's."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sentinel.cli.display.gpu_table import user_of
from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import print_json
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.command_options import duration, gpus_flag, json_option, with_client
from sentinel.cli.options.setting_options import single_gpu_flags
from sentinel.client import Client, SessionInfo
from sentinel.errors import ConfigError, ExitCode


@click.group("session")
def command() -> None:
    """Give some GPUs settings of their own under a name, and end that by its name."""


@command.command("start", cls=GroupedOptions)
@click.argument("name")
@gpus_flag()
@duration("--for", "seconds", "End after this time; the default is `sentinel session stop`.")
@json_option
@with_client
@single_gpu_flags
def start(
    client: Client,
    name: str,
    gpus: tuple[str, ...],
    seconds: float | None,
    as_json: bool,  # noqa: FBT001 - click's
    given: Mapping[str, str],
) -> int:
    """Give the GPUs of --gpus these settings.

    All others stay the daemon's. A GPU is in one session at most, and of those that the daemon has.
    The session outlives the daemon, and resumes no paused GPU. Exit code 1 if another
    session has the name or a GPU.
    """
    if not gpus:
        raise ConfigError("give the GPUs of the session", "Such as --gpus 0,1, or --gpus all.")
    got = client.start_session(name, gpus, given, seconds=seconds)
    if as_json:
        print_json({"session": got})
        return int(ExitCode.OK)
    click.echo(_describe(got))
    click.echo(f"To end it: sentinel session stop {got.name}", err=True)
    return int(ExitCode.OK)


@command.command("list")
@json_option
@with_client
def list_(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the sessions with their GPUs, settings and ends."""
    found = client.sessions()
    if as_json:
        print_json({"sessions": found})
        return int(ExitCode.OK)
    if not found:
        click.echo("there are no sessions", err=True)
        return int(ExitCode.OK)
    from sentinel.cli.display.output import print_table

    print_table(
        ("NAME", "GPU", "UNTIL", "BY", "SETTINGS"), [_row(one) for one in found], flexible=4
    )
    return int(ExitCode.OK)


@command.command("stop")
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=value_completion.sessions
)
@json_option
@with_client
def stop(client: Client, names: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001 - click's
    """End sessions: their GPUs have the daemon's settings again."""
    ended = [client.stop_session(name) for name in dict.fromkeys(names)]
    if as_json:
        gpus = list(dict.fromkeys(gpu for outcome in ended for gpu in outcome.gpus))
        print_json({"names": list(dict.fromkeys(names)), "gpus": gpus})
        return int(ExitCode.OK)
    for outcome in ended:
        click.echo(outcome.text)
    return int(ExitCode.OK)


def _describe(one: SessionInfo) -> str:
    end = "until it is ended" if one.until is None else f"until {format_clock(one.until)}"
    indices = ", ".join(map(str, one.indices))
    return f"session {one.name} has GPU {indices}, {end}: {_settings(one)}"


def _row(one: SessionInfo) -> tuple[str, ...]:
    until = "no end" if one.until is None else format_clock(one.until)
    by = user_of(one.holder)
    suspended = "" if one.suspended is None else f"suspended, {one.suspended}: "
    return one.name, ",".join(map(str, one.indices)), until, by, f"{suspended}{_settings(one)}"


def _settings(one: SessionInfo) -> str:
    pairs = [f"{key}={text}" for key, text in one.settings.items()]
    return " ".join(pairs) or "the daemon's settings"
