"""``sentinel reserve``, ``unreserve``, ``reservations``, ``allocate`` and ``deallocate``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import click

from sentinel.cli.display.event_format import format_clock
from sentinel.cli.display.gpu_table import describe_queued, user_of
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import printable
from sentinel.cli.options import value_completion
from sentinel.cli.options.client_options import (
    duration,
    json_option,
    show,
    wait_option,
    with_client,
)
from sentinel.cli.options.gpu_options import chosen, count_option, gpu_selection, one_gpu
from sentinel.client import Client, ReservationInfo
from sentinel.client.reservations import OnWait
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.units import format_size

#: A waiter sees so many requests before its own.
_MAX_EARLIER = 5

quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="Do not report the place in the queue."
)


def place_reporter(client: Client, *, quiet: bool) -> OnWait | None:
    """Return a function that reports a place in the queue and who is before, unless ``quiet``."""

    def report(one: ReservationInfo) -> None:
        earlier: Sequence[ReservationInfo] = ()
        if one.place > 1:
            with contextlib.suppress(SentinelError):  # the place is worth a line without them
                earlier = [other for other in client.queue() if other.place < one.place]
        lines = [f"sentinel: place {one.place} in the queue: {describe_queued(one)}"]
        lines += [
            f"  before it, at place {other.place}: {describe_queued(other)}"
            for other in earlier[:_MAX_EARLIER]
        ]
        if len(earlier) > _MAX_EARLIER:
            lines.append(f"  and {len(earlier) - _MAX_EARLIER} more: sentinel reservations")
        click.echo("\n".join(map(printable, lines)), err=True)

    return None if quiet else report


@click.command("reserve")
@gpu_selection
@count_option
@duration("--for", "seconds", "Duration; `sentinel unreserve` ends it earlier.", required=True)
@click.option("--reason", metavar="TEXT", default="", help="The purpose, shown to other users.")
@wait_option("Maximum wait for the GPUs and their memory")
@quiet_option
@json_option
@with_client
def reserve(  # noqa: PLR0913, PLR0917 - click's
    client: Client,
    count: int | None,
    gpus: tuple[str, ...],
    seconds: float,
    reason: str,
    wait: float,
    quiet: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001
) -> int:
    """Reserve GPUs; print their UUIDs, one per line, when their memory is free.

    While too few are available, the request waits in a queue, first come, first served. Exit code 1
    if they are not available within --wait; then nothing is reserved.
    """
    on_wait = place_reporter(client, quiet=quiet)
    got = client.reserve(
        chosen(count, gpus), reason=reason, seconds=seconds, wait=wait, on_wait=on_wait
    )
    if as_json:
        print_json({"reservation": got})
        return int(ExitCode.OK)
    click.echo("\n".join(got.gpus))
    end = f"until {format_clock(got.until)}" if got.until else "until it is ended"
    indices = ", ".join(map(str, got.indices))
    click.echo(f"GPU {indices} reserved as {got.id}, {end}", err=True)
    click.echo(f"To end it: sentinel unreserve {got.id}", err=True)
    return int(ExitCode.OK)


@click.command("unreserve")
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=value_completion.reservations)
@click.option("--all-mine", is_flag=True, help="End all reservations of this user.")
@json_option
@with_client
def unreserve(
    client: Client,
    ids: tuple[str, ...],
    all_mine: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001
) -> int:
    """End reservations."""
    if bool(ids) == all_mine:
        raise ConfigError(
            "give the reservations to end",
            "Either their IDs, which `sentinel reservations` lists, or --all-mine.",
        )
    ending = dict.fromkeys(ids) if ids else [one.id for one in client.reservations() if _ours(one)]
    ended = [client.unreserve(id_) for id_ in ending]
    if as_json:
        gpus = list(dict.fromkeys(gpu for outcome in ended for gpu in outcome.gpus))
        print_json({"ids": list(ending), "gpus": gpus})
        return int(ExitCode.OK)
    for outcome in ended:
        if outcome.text:
            click.echo(outcome.text)
    if not ended:
        click.echo("this user has no reservations", err=True)
    return int(ExitCode.OK)


@click.command("reservations")
@json_option
@with_client
def reservations(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the reservations with their holders and ends, and the queue."""
    found, queue = client.reservations(), client.queue()
    if as_json:
        print_json({"reservations": found, "queue": queue})
        return int(ExitCode.OK)
    if not found:
        click.echo("there are no reservations", err=True)
    from sentinel.cli.display.output import print_table

    rows = [_row(one) for one in found]
    if rows:
        print_table(("ID", "GPU", "UNTIL", "BY", "REASON"), rows, flexible=4)
    for one in queue:
        click.echo(f"queue {one.place}: {printable(describe_queued(one))}")
    return int(ExitCode.OK)


def _ours(one: ReservationInfo) -> bool:
    return one.holder.uid == os.getuid()


def _row(one: ReservationInfo) -> tuple[str, ...]:
    by = user_of(one.holder)
    if one.bound and one.holder.pid is not None:
        by = f"{by} ({one.holder.name or 'pid'} {one.holder.pid})".lstrip()
    end = "its process ends" if one.bound else "no end"
    until = end if one.until is None else format_clock(one.until)
    return one.id, ",".join(map(str, one.indices)), until, by, one.reason


@click.command("allocate")
@click.argument("id_", metavar="ID")
@click.argument("size")
@one_gpu("0", "0")
@click.option(
    "--pid",
    metavar="PID",
    type=click.IntRange(1, 2**31 - 1),
    help="The process that may use it, with its children.  [default: the parent process]",
)
@wait_option("Maximum wait for free memory")
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
    """Allocate SIZE of a GPU's memory, such as 40GiB, to a process; print the GPU's UUID.

    The memory is free when the command returns; the process and its children can use it without a
    yield. The allocation ends with `sentinel deallocate ID`, or with that process. Exit code 1 if
    the memory is not available within --wait; then nothing is allocated.
    """
    # Over TCP there is no process, and the allocation lasts until it is ended.
    holder = pid if pid is not None or client.address.host else os.getppid()
    got = client.allocate(id_, size, gpu, wait=wait, pid=holder)
    if as_json:
        print_json({"allocation": got})
        return int(ExitCode.OK)
    click.echo(got.gpu)
    end = f"until process {got.holder.pid} ends" if got.holder.pid else "until it is ended"
    click.echo(f"GPU {got.index}: {format_size(got.size)} allocated as {got.id}, {end}", err=True)
    click.echo(f"To end it: sentinel deallocate {got.id}", err=True)
    return int(ExitCode.OK)


@click.command("deallocate")
@click.argument("id_", metavar="ID", shell_complete=value_completion.allocations)
@json_option
@with_client
def deallocate(client: Client, id_: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """End an allocation."""
    return show(client.deallocate(id_), as_json=as_json)
