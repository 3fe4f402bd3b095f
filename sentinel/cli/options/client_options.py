"""Options shared by the client commands: the daemon's address, times and JSON output."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.display.json_output import print_json
from sentinel.errors import ConfigError, ExitCode
from sentinel.host.files.paths import SIMULATED
from sentinel.units import parse_duration

if TYPE_CHECKING:  # slow to import
    from sentinel.client import Client, Outcome
    from sentinel.client.requester import Requester
    from sentinel.client.transport import Address

_Function = Callable[..., Any]


def address_options(function: _Function) -> _Function:
    """Add ``--socket`` and ``--simulated``, which select the daemon and its directories."""
    for option in (
        click.option(
            "--simulated",
            is_flag=True,
            help="Use the daemon with simulated GPUs ($SENTINEL_SIM_DIR).",
        ),
        click.option("--socket", metavar="PATH", help="The daemon's socket ($SENTINEL_SOCKET)."),
    ):
        function = option(function)
    return function


def with_client(function: _Function) -> _Function:
    """Add the options of a connection; pass the ``client``."""

    def connect(address: Address) -> Client:
        from sentinel.client.client import Client

        return Client(address)

    return _with_connection(function, connect)


def with_requester(function: _Function) -> _Function:
    """Add the options of a connection; pass a ``client`` that is quickly imported: no verbs."""

    def connect(address: Address) -> Requester:
        from sentinel.client.requester import Requester

        return Requester(address)

    return _with_connection(function, connect)


def _with_connection(function: _Function, connect: Callable[[Address], Any]) -> _Function:
    @functools.wraps(function)
    @functools.wraps(function)
    def connected(
        *, socket: str | None, simulated: bool, over_tcp: str | None, token: str | None, **rest: Any
    ) -> Any:
        address = _address(socket, over_tcp, token, simulated=simulated)
        return function(client=connect(address), **rest)

    # Not --tcp: that is a setting of the daemon, and `restart` has both.
    for option in (
        click.option("--token", metavar="FILE", help="File with the token for --connect."),
        click.option(
            "--connect",
            "over_tcp",
            metavar="HOST:PORT",
            help="Connect to the daemon over TCP instead of its socket.",
        ),
    ):
        connected = option(connected)
    return address_options(connected)


def _address(socket: str | None, tcp: str | None, token: str | None, *, simulated: bool) -> Address:
    from sentinel.client.requester import find_address

    if tcp is not None and (socket is not None or simulated):
        raise ConfigError("--connect cannot be combined with --socket or --simulated")
    if token is not None and tcp is None:
        raise ConfigError("--token is only for --connect")
    if tcp is not None:
        return find_address(tcp=tcp, token=token or os.environ.get("SENTINEL_TOKEN_FILE"))
    return find_address(socket, simulated=simulated_folder(chosen=simulated))


def simulated_folder(*, chosen: bool) -> Path | None:
    """Return the directory of the simulated GPUs if chosen, also by its variable, or None."""
    if not chosen and not os.environ.get(SIMULATED):
        return None
    from sentinel.host.daemons.daemon_lookup import find_simulation

    return find_simulation()


# --- options ---------------------------------------------------------------------------------


def _seconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse a duration in seconds."""
    if text is None or context.resilient_parsing:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option.opts[0]}: {error}") from None


def _seconds_or_none(context: click.Context, option: click.Parameter, text: str) -> float:
    """Parse a duration in seconds that may be 0."""
    if text.strip() in {"0", "0s"}:
        return 0.0
    return _seconds(context, option, text) or 0.0


def duration(
    flag: str, name: str, text: str, *, required: bool = False
) -> Callable[[_Function], _Function]:
    """Return an option for a duration in seconds, or None if it is not given."""
    return click.option(flag, name, metavar="TIME", callback=_seconds, help=text, required=required)


def wait_option(text: str, default: str = "30s") -> Callable[[_Function], _Function]:
    """Return the option ``--wait``."""
    return click.option(
        "--wait",
        metavar="TIME",
        default=default,
        show_default=True,
        callback=_seconds_or_none,
        help=f"{text}; 0 does not wait.",
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


# --- output ----------------------------------------------------------------------------------


def show(outcome: Outcome, *, as_json: bool) -> int:
    """Print the outcome of a command and return the exit code."""
    if as_json:
        print_json({"text": outcome.text, "gpus": outcome.gpus})
    elif outcome.text:
        click.echo(outcome.text)
    return int(ExitCode.OK)
