"""Options shared by the commands: the address of the daemon, times, GPUs, JSON and reports."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.display.output import Table, fit_report, print_json
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import WholeNumber
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host.paths import SIMULATED, STRICT_VARIABLE
from sentinel.host.regular_file import file_errors
from sentinel.units import parse_duration, parse_duration_or_zero, split_selectors

if TYPE_CHECKING:
    from sentinel.client import Client, Outcome, Status
    from sentinel.client.requester import Requester
    from sentinel.client.transport import Address


_Function = Callable[..., Any]
_HELP = "index or range of them such as 0-3, UUID or unique prefix, PCI address; may be repeated."

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
#: Adds ``strict``: whether a WARN ends with 1.
strict_option = click.option(
    "--strict",
    is_flag=True,
    envvar=STRICT_VARIABLE,
    help=f"End with 1 for a WARN, 3 for N/A.  [also: {STRICT_VARIABLE}=on]",
)


def together(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Return a decorator that adds several options, in this order in the help."""

    def add(function: _Function) -> _Function:
        return functools.reduce(lambda made, option: option(made), reversed(options), function)

    return add


def warn_of_simulated_gpus(chosen_by: str, *, strict: bool = False) -> None:
    """Say so where only the variable chose them: one that was left set must fool no script.

    Args:
        chosen_by: The option that would have chosen them.
        strict: Whether the command accepts GPUs: then it refuses these.

    Raises:
        UsageError: It does.
    """
    if os.environ.get(SIMULATED):
        what = f"{SIMULATED} is set: these are simulated GPUs"
        if strict:
            raise click.UsageError(f"{what}, accepted only with {chosen_by}")
        click.echo(f"sentinel: warning: {what}", err=True)


# --- the daemon ------------------------------------------------------------------------------

#: Adds ``--socket`` and ``--simulated``, which select the daemon and its directories.
address_options = together(
    click.option("--socket", metavar="PATH", help="The daemon's socket ($SENTINEL_SOCKET)."),
    click.option(
        "--simulated",
        is_flag=True,
        help="Use the daemon with simulated GPUs ($SENTINEL_SIM_DIR).",
    ),
)
# Not --tcp: that is a setting of the daemon.
_connection_options = together(
    address_options,
    click.option(
        "--connect",
        "over_tcp",
        metavar="HOST:PORT",
        help="Connect to the daemon over TCP instead of its socket.",
    ),
    click.option("--token", metavar="FILE", help="File with the token for --connect."),
)


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
    def connected(
        *, socket: str | None, simulated: bool, over_tcp: str | None, token: str | None, **rest: Any
    ) -> Any:
        address = _address(socket, over_tcp, token, simulated=simulated)
        return function(client=connect(address), **rest)

    return _connection_options(connected)


def _address(socket: str | None, tcp: str | None, token: str | None, *, simulated: bool) -> Address:
    from sentinel.client.requester import find_address
    from sentinel.host.daemon_lookup import simulated_folder

    if tcp is not None and (socket is not None or simulated):
        raise ConfigError("--connect cannot be combined with --socket or --simulated")
    if token is not None and tcp is None:
        raise ConfigError("--token is only for --connect")
    if tcp is not None:
        return find_address(tcp=tcp, token=token or os.environ.get("SENTINEL_TOKEN_FILE"))
    return find_address(socket, simulated=simulated_folder(chosen=simulated))


# --- options ---------------------------------------------------------------------------------


def _seconds(
    parse: Callable[[str], float],
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Return the callback of an option that parses a duration in seconds."""

    def parsed(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
        if text is None or context.resilient_parsing:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise ConfigError(f"{option.opts[0]}: {error}") from None

    return parsed


_seconds_or_zero = _seconds(parse_duration_or_zero)


def _longest_wait(context: click.Context, option: click.Parameter, text: str | None) -> float:
    """Parse a duration in seconds that may be 0; without one, there is no limit."""
    seconds = _seconds_or_zero(context, option, text)
    return math.inf if seconds is None else seconds


def duration(
    flag: str,
    name: str,
    text: str,
    *,
    alone: str = "",
    parse: Callable[[str], float] = parse_duration,
) -> Callable[[_Function], _Function]:
    """Return an option for a duration in seconds, or None if it is not given.

    Args:
        flag: The flag.
        name: The name of the argument.
        text: The help text.
        alone: The duration of a flag without a value; empty if it needs one.
        parse: Parses its text; raises a ValueError.
    """
    optional: dict[str, Any] = {"is_flag": False, "flag_value": alone} if alone else {}
    return click.option(
        flag,
        name,
        metavar="[TIME]" if alone else "TIME",
        callback=_seconds(parse),
        help=text,
        **optional,
    )


def wait_option(text: str, default: str | None = "30s") -> Callable[[_Function], _Function]:
    """Return the option ``--wait``; its default is no limit if that is None."""
    limit = "  [default: no limit]" if default is None else ""
    return click.option(
        "--wait",
        metavar="TIME",
        default=default,
        show_default=True,
        callback=_longest_wait,
        help=f"{text}; 0 does not wait.{limit}",
    )


# --- output ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What a command prints, and its exit code."""

    #: The object for ``--json``.
    json: Mapping[str, Any]
    #: Otherwise, the lines for standard output, and those for standard error.
    lines: Iterable[str] = ()
    notes: Iterable[str] = ()
    code: ExitCode = ExitCode.OK

    def show(self, *, as_json: bool) -> int:
        """Print it and return the exit code."""
        if as_json:
            print_json(self.json)
            return int(self.code)
        for line in self.lines:
            print(line)
        for note in self.notes:
            print(note, file=sys.stderr)
        return int(self.code)


def prints(function: Callable[..., Printed]) -> _Function:
    """Add ``--json``; print what the command returns."""

    @functools.wraps(function)
    def printed(*, as_json: bool, **options: Any) -> int:
        return function(**options).show(as_json=as_json)

    return json_option(printed)


def asks_daemon(function: Callable[..., Printed]) -> _Function:
    """Add the options of a connection and ``--json``; pass the ``client``, and print the result."""
    return prints(with_client(function))


def listing(table: Table, rows: Sequence[Sequence[str]], none: str, **json: Any) -> Printed:
    """Return what is printed of a list: its rows as a table, or a note that there are none."""
    return Printed(json=json, lines=table.lines(rows) if rows else (), notes=() if rows else [none])


def outcome(*outcomes: Outcome, **names: Sequence[str]) -> Printed:
    """Return what is printed of the outcomes of orders.

    Args:
        outcomes: The outcomes; only the first one is expected without ``names``.
        names: What the orders named, as a field of the JSON object instead of the text.
    """
    gpus = list(dict.fromkeys(gpu for outcome in outcomes for gpu in outcome.gpus))
    texts = [outcome.text for outcome in outcomes if outcome.text]
    return Printed(json={**(names or {"text": "\n".join(texts)}), "gpus": gpus}, lines=texts)


def each(
    order: Callable[[str], Outcome], names: Iterable[str], field: str, none: str = ""
) -> Printed:
    """Give an order for each of several names; print what was done, and what not and why.

    Args:
        order: Gives the order for one name.
        names: The names; the order of a refused one does not stop the rest.
        field: The field of the JSON object with the names for which it was done.
        none: The note if there are no names.

    Raises:
        SentinelError: There is one name, and its order was refused.
    """
    names = list(dict.fromkeys(names))
    done: dict[str, Outcome] = {}
    refused: dict[str, SentinelError] = {}
    for name in names:
        try:
            done[name] = order(name)
        except SentinelError as error:
            if len(names) == 1:
                raise
            refused[name] = error
    printed = outcome(*done.values(), **{field: list(done)})
    return replace(
        printed,
        json={**printed.json, "refused": {name: error.what for name, error in refused.items()}},
        notes=[f"sentinel: {name}: {error}" for name, error in refused.items()]
        if names
        else [none],
        code=next((error.exit_code for error in refused.values()), ExitCode.OK),
    )


# --- GPUs ------------------------------------------------------------------------------------


def selectors(_: click.Context, named: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """Split comma lists, ranges and repeated values into unique selectors.

    Raises:
        ConfigError: A selector is malformed.
    """
    try:
        return split_selectors(given)
    except ValueError as error:
        where = f"{named.opts[0]}: " if isinstance(named, click.Option) else ""
        raise ConfigError(f"{where}{error}") from None


def gpus_flag(name: str = "gpus", kinds: str = _HELP) -> Callable[[_Function], _Function]:
    """Return the option ``--gpus``, a list of selectors that is empty by default."""
    return click.option(
        "--gpus",
        name,
        metavar="GPU,...",
        multiple=True,
        callback=selectors,
        shell_complete=value_completion.gpus,
        help=f"Only these GPUs: {kinds}",
    )


def gpu_selection(function: _Function) -> _Function:
    """Add ``[GPU]...`` and ``--gpus``; pass the selectors of both as ``gpus``."""

    @functools.wraps(function)
    def merged(*, gpus: tuple[str, ...], flagged: tuple[str, ...], **rest: Any) -> Any:
        return function(gpus=tuple(dict.fromkeys((*gpus, *flagged))), **rest)

    argument = click.argument(
        "gpus",
        metavar="[GPU]...",
        nargs=-1,
        callback=selectors,
        shell_complete=value_completion.gpus,
    )
    return argument(gpus_flag("flagged")(merged))


def one_gpu(default: str | None, shown: str) -> Callable[[_Function], _Function]:
    """Return the option ``--gpus`` of a command for one GPU; passes a selector as ``gpu``.

    Args:
        default: The selector if none is given.
        shown: The default for the help text.
    """

    def single(context: click.Context, option: click.Parameter, given: Sequence[str]) -> str | None:
        names = selectors(context, option, given)
        if len(names) > 1 or "all" in {name.lower() for name in names}:
            what = f"--gpus: `{context.command_path}` takes one GPU, not {', '.join(names)}"
            raise ConfigError(what)
        return names[0] if names else default

    return click.option(
        "--gpus",
        "gpu",
        metavar="GPU",
        multiple=True,
        callback=single,
        shell_complete=value_completion.gpus,
        help=f"The GPU: index, UUID or unique prefix, or PCI address.  [default: {shown}]",
    )


def count_option(text: str) -> Callable[[_Function], _Function]:
    """Return the option ``--count``: a number of any GPUs.

    Args:
        text: Its help text.
    """
    return click.option("--count", metavar="N", type=WholeNumber(1, 128), help=text)


def only(status: Status, gpus: Sequence[str]) -> Status:
    """Return the status of the selected GPUs, with their reservations, allocations and sessions.

    Args:
        status: The status of all GPUs.
        gpus: Selectors; an empty sequence selects every GPU.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """
    if not gpus:
        return status
    from sentinel.client.client import Status as Found
    from sentinel.client.requester import decode

    raw = only_json(status.json, gpus)
    return decode(Found, {**raw, "json": raw})


def only_json(status: Mapping[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a status without other GPUs; see :func:`only`.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """
    found = dict(status)
    if not gpus:
        return found
    from sentinel.config.gpu_selection import select_gpus  # slow to import
    from sentinel.protocol.gpu import Gpu

    names = [field.name for field in fields(Gpu)]
    known = tuple(Gpu(**{name: gpu.get(name) for name in names}) for gpu in status["gpus"])
    uuids = {gpu.uuid for gpu in select_gpus(gpus, known)}
    found["gpus"] = [gpu for gpu in status["gpus"] if gpu.get("uuid") in uuids]
    for name in ("reservations", "sessions"):
        found[name] = [row for row in status.get(name, ()) if uuids & {*row.get("gpus", ())}]
    found["allocations"] = [row for row in status.get("allocations", ()) if row.get("gpu") in uuids]
    return found


# --- reports --------------------------------------------------------------------------------


def chosen_form(formats: Mapping[str, bool]) -> str:
    """Return the form of a report that an option names, by default text.

    Raises:
        UsageError: Several are named.
    """
    form, *others = [name for name, given in formats.items() if given] or ["text"]
    if others:
        raise click.UsageError(f"--{form} and --{others[0]} exclude each other")
    return form


def print_report(text: str, output: Path | None, *, painted: bool) -> None:
    """Print a report, or write it to the file of ``--output``.

    Raises:
        ConfigError: The file cannot be written.
    """
    if output is None:
        print(fit_report(text) if painted else text)
        return
    with file_errors(f"--output {output}"):
        output.write_text(f"{text}\n", encoding="utf-8")
