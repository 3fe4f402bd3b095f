"""What the commands that talk to a daemon share: where it is, which GPUs, how long, and JSON."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.client import Client, Outcome, connect
from sentinel.errors import ConfigError, ExitCode
from sentinel.units import parse_duration

#: The version of the objects that --json prints.
SHOWN = 1

_Function = Callable[..., Any]


def place(function: _Function) -> _Function:
    """Give a command ``socket`` and ``simulated``: where the daemon is, or its folders are."""
    for option in (
        click.option(
            "--simulated",
            is_flag=True,
            help="The daemon of the simulated GPUs ($SENTINEL_SIM_DIR).",
        ),
        click.option("--socket", metavar="PATH", help="The daemon's socket ($SENTINEL_SOCKET)."),
    ):
        function = option(function)
    return function


def talks(function: _Function) -> _Function:
    """Give a command ``client``, for the daemon that its options name."""

    @functools.wraps(function)
    def connected(
        *, socket: str | None, simulated: bool, connect: str | None, token: str | None, **rest: Any
    ) -> Any:
        return function(client=_connect(socket, connect, token, simulated=simulated), **rest)

    # Not --tcp, which is a setting of the daemon, and `restart` has both.
    for option in (
        click.option("--token", metavar="FILE", help="The file with the token for --connect."),
        click.option(
            "--connect",
            metavar="HOST:PORT",
            help="Talk to the daemon there, instead of over its socket.",
        ),
    ):
        connected = option(connected)
    return place(connected)


def _connect(socket: str | None, tcp: str | None, token: str | None, *, simulated: bool) -> Client:
    if tcp is not None and (socket is not None or simulated):
        raise ConfigError("--connect: a daemon is reached over TCP or over its socket, not both")
    if token is not None and tcp is None:
        raise ConfigError("--token: only a connection by --connect takes one")
    if tcp is not None:
        return connect(tcp=tcp, token=token or os.environ.get("SENTINEL_TOKEN_FILE"))
    return connect(socket, simulated=simulated_folder(chosen=simulated))


def simulated_folder(*, chosen: bool) -> Path | None:
    """Return the folder of the simulated GPUs, where those are meant."""
    if not chosen:
        return None
    from sentinel.host.simulation import default_folder

    return default_folder()


# --- options ---------------------------------------------------------------------------------


def _seconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds that an option names."""
    if text is None or context.resilient_parsing:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option.opts[0]}: {error}") from None


def _seconds_or_none(context: click.Context, option: click.Parameter, text: str) -> float:
    """Return the seconds that an option names, which may be 0."""
    if text.strip() in {"0", "0s"}:
        return 0.0
    return _seconds(context, option, text) or 0.0


def duration(
    flag: str, name: str, text: str, *, required: bool = False
) -> Callable[[_Function], _Function]:
    """Return an option that is a time, in seconds where it is given."""
    return click.option(flag, name, metavar="TIME", callback=_seconds, help=text, required=required)


def waits(text: str, default: str = "30s") -> Callable[[_Function], _Function]:
    """Return the option ``--wait``, in seconds."""
    return click.option(
        "--wait",
        metavar="TIME",
        default=default,
        show_default=True,
        callback=_seconds_or_none,
        help=f"{text}; 0 does not wait.",
    )


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def selectors(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """Return each GPU that was named once, from comma lists and repeats.

    Raises:
        ConfigError: One of the names is empty.
    """
    names = [part.strip() for text in given for part in text.split(",")]
    if not all(names):
        raise ConfigError(f"{','.join(given)!r} has an empty name in it; write a list such as 0,1")
    return tuple(dict.fromkeys(names))


#: Gives a command ``gpus``: those that were named, none for all.
gpus = click.argument("gpus", metavar="[GPU]...", nargs=-1, callback=selectors)


# --- output ----------------------------------------------------------------------------------


def show(outcome: Outcome, *, as_json: bool) -> int:
    """Print what came of an order and return the exit code."""
    if as_json:
        printed({"text": outcome.text, "gpus": list(outcome.gpus)})
    elif outcome.text:
        click.echo(outcome.text)
    return int(ExitCode.OK)


def printed(fields: Mapping[str, Any]) -> None:
    """Print one JSON object that says its version."""
    click.echo(json.dumps({"schema_version": SHOWN, **fields}))
