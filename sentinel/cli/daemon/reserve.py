"""``sentinel reserve``, ``unreserve``, ``reservations``: GPUs that are kept free for somebody."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from sentinel.cli.client_options import (
    duration,
    json_option,
    selectors,
    show,
    wait_option,
    with_client,
)
from sentinel.cli.json_output import print_json
from sentinel.client import Client, Holder, ReservationInfo
from sentinel.errors import ConfigError, ExitCode
from sentinel.units import format_size


def choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``count`` and ``named``: how many GPUs, or which."""
    for option in (
        click.option(
            "--gpu",
            "named",
            metavar="GPU,...",
            multiple=True,
            callback=selectors,
            help="These: index, UUID or its beginning, PCI address. May be given several times.",
        ),
        click.option(
            "--gpus", "count", metavar="N", type=click.IntRange(1, 128), help="So many, the best."
        ),
    ):
        function = option(function)
    return function


def wanted(count: int | None, named: tuple[str, ...]) -> int | tuple[str, ...]:
    """Return how many GPUs, or which: one of both.

    Raises:
        ConfigError: Neither was said, or both.
    """
    if (count is None) == (not named):
        raise ConfigError(
            "say how many GPUs, or which", "Either --gpus 2, or --gpu 0,GPU-952937bc."
        )
    return named if count is None else count


@click.command("reserve")
@choice
@duration("--for", "seconds", "For how long, or until `sentinel unreserve`.", required=True)
@click.option("--reason", metavar="TEXT", default="", help="What others are told.")
@wait_option("How long to wait until there are so many and their memory is free")
@json_option
@with_client
def reserve(
    client: Client,
    count: int | None,
    named: tuple[str, ...],
    seconds: float,
    reason: str,
    wait: float,
    as_json: bool,  # noqa: FBT001 - click's
) -> int:
    """Have GPUs kept free for you; print their UUIDs, a line each, once their memory is free.

    Exit code 1 if they are not to be had within --wait; nothing is reserved then.
    """
    got = client.reserve(wanted(count, named), reason=reason, seconds=seconds, wait=wait)
    if as_json:
        print_json({"reservation": got})
        return int(ExitCode.OK)
    click.echo("\n".join(got.gpus))
    end = f"until {_clock(got.until)}" if got.until else "until it is given back"
    indices = ", ".join(map(str, got.indices))
    click.echo(f"GPU {indices} reserved as {got.id}, {end}", err=True)
    click.echo(f"To give back: sentinel unreserve {got.id}", err=True)
    return int(ExitCode.OK)


@click.command("unreserve")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all-mine", is_flag=True, help="All reservations of this user.")
@json_option
@with_client
def unreserve(
    client: Client,
    ids: tuple[str, ...],
    all_mine: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001
) -> int:
    """Give back what `reserve` reserved."""
    if bool(ids) == all_mine:
        raise ConfigError(
            "say which reservations end",
            "Either their names, which `sentinel reservations` lists, or --all-mine.",
        )
    chosen = dict.fromkeys(ids) if ids else [one.id for one in client.reservations() if _ours(one)]
    ended = [client.unreserve(id_) for id_ in chosen]
    if as_json:
        gpus = list(dict.fromkeys(gpu for outcome in ended for gpu in outcome.gpus))
        print_json({"ids": list(chosen), "gpus": gpus})
    for outcome in ended:
        if outcome.text:
            click.echo(outcome.text, err=as_json)
    if not ended:
        click.echo("this user has reserved nothing", err=True)
    return int(ExitCode.OK)


@click.command("reservations")
@json_option
@with_client
def reservations(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List what is reserved, for whom and until when."""
    found = client.reservations()
    if as_json:
        print_json({"reservations": found})
        return int(ExitCode.OK)
    if not found:
        click.echo("nothing is reserved", err=True)
        return int(ExitCode.OK)
    from sentinel.cli.output import print_table

    rows = [_row(one) for one in found]
    print_table(("ID", "GPU", "UNTIL", "BY", "REASON"), rows, flexible=4)
    return int(ExitCode.OK)


def _ours(one: ReservationInfo) -> bool:
    return one.holder.uid == os.getuid()


def _row(one: ReservationInfo) -> tuple[str, ...]:
    by = _person(one.holder)
    if one.bound and one.holder.pid is not None:
        by = f"{by} ({one.holder.name or 'pid'} {one.holder.pid})".lstrip()
    end = "its process ends" if one.bound else "given back"
    until = end if one.until is None else _clock(one.until)
    return one.id, ",".join(map(str, one.indices)), until, by, one.reason


def _person(holder: Holder) -> str:
    """Return the name of the user who holds something, as this host knows it."""
    if holder.uid is None:
        return ""
    try:
        return pwd.getpwuid(holder.uid).pw_name
    except KeyError:
        return f"uid {holder.uid}"


def _clock(moment: datetime) -> str:
    """Return a moment as people here say it, with its day where that is another."""
    local = moment.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M}"


@click.command("allocate")
@click.argument("id_", metavar="ID")
@click.argument("size")
@click.option("--gpu", metavar="GPU", default="0", show_default=True, help="Of this GPU.")
@click.option(
    "--pid",
    metavar="PID",
    type=click.IntRange(1, 2**31 - 1),
    help="For this process and its children.  [default: the one that runs this command]",
)
@wait_option("How long to wait until the memory is free")
@json_option
@with_client
def allocate(
    client: Client,
    id_: str,
    size: str,
    gpu: str,
    pid: int | None,
    wait: float,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Have SIZE of a GPU's memory, such as 40GiB, kept for a process; print the GPU's UUID.

    It is free when this returns, and the process and its children may take it without a yield. It
    is kept until `sentinel deallocate ID`, or until that process ends: a shell, a script. Exit code
    1 if it is not to be had, or not free within --wait; nothing is kept then.
    """
    # Over TCP there is no process: it lasts until it is given back.
    holder = pid if pid is not None or client.address.host else os.getppid()
    got = client.allocate(id_, size, gpu, wait=wait, pid=holder)
    if as_json:
        print_json({"allocation": got})
        return int(ExitCode.OK)
    click.echo(got.gpu)
    end = f"until process {got.holder.pid} ends" if got.holder.pid else "until it is given back"
    click.echo(f"GPU {got.index}: {format_size(got.size)} kept as {got.id}, {end}", err=True)
    click.echo(f"To give back: sentinel deallocate {got.id}", err=True)
    return int(ExitCode.OK)


@click.command("deallocate")
@click.argument("id_", metavar="ID")
@json_option
@with_client
def deallocate(client: Client, id_: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Give back what `allocate` had kept."""
    return show(client.deallocate(id_), as_json=as_json)
