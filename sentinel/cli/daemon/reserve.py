"""``sentinel reserve`` and ``allocate``: make, list and cancel them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from sentinel.cli.display.gpu_table import describe_queued, user_of
from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import print_json, printable
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import (
    chosen,
    count_option,
    duration,
    gpu_selection,
    json_option,
    one_gpu,
    show,
    wait_option,
    with_client,
)
from sentinel.client import Client, ReservationInfo
from sentinel.client.verbs import OnWait
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.protocol.api_types import Holder
from sentinel.units import format_size

_Function = Callable[..., Any]

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
            lines.append(f"  and {len(earlier) - _MAX_EARLIER} more: sentinel reserve --list")
        click.echo("\n".join(map(printable, lines)), err=True)

    return None if quiet else report


def _list_option(nouns: str) -> Callable[[_Function], _Function]:
    return click.option("--list", "as_list", is_flag=True, help=f"List the {nouns}.")


@click.command("reserve")
@gpu_selection
@count_option
@duration("--for", "seconds", "Duration; --cancel ends it earlier.")
@click.option("--reason", metavar="TEXT", default="", help="The purpose, shown to other users.")
@wait_option("Maximum wait for the GPUs and their memory")
@_list_option("reservations with their holders and ends, and the queue")
@click.option(
    "--cancel",
    metavar="ID,...",
    multiple=True,
    shell_complete=value_completion.reservations,
    help="End these reservations, or take these requests out of the queue; `all` ends all of this"
    " user.",
)
@quiet_option
@json_option
@with_client
def reserve(  # noqa: PLR0913, PLR0917 - click's
    client: Client,
    count: int | None,
    gpus: tuple[str, ...],
    seconds: float | None,
    reason: str,
    wait: float,
    as_list: bool,  # noqa: FBT001 - click's
    cancel: tuple[str, ...],
    quiet: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> int:
    """Reserve GPUs; print their UUIDs, one per line, when their memory is free.

    While too few are available, the request waits in a queue, first come, first served. Exit code 1
    if they are not available within --wait; then nothing is reserved.
    """
    if as_list:
        return _list_reservations(client, as_json=as_json)
    if cancel:
        return _cancel_reservations(client, cancel, as_json=as_json)
    if seconds is None:
        raise ConfigError("give the duration of the reservation", "Such as --for 1h.")
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
    click.echo(f"To end it: sentinel reserve --cancel {got.id}", err=True)
    return int(ExitCode.OK)


def _cancel_reservations(client: Client, given: Sequence[str], *, as_json: bool) -> int:
    names = [part.strip() for text in given for part in text.split(",")]
    if "all" in names:
        names = [found.id for found in client.reservations() if found.holder.uid == os.getuid()]
    ended = {name: client.cancel_reservation(name) for name in names}
    if as_json:
        gpus = list(dict.fromkeys(gpu for outcome in ended.values() for gpu in outcome.gpus))
        print_json({"ids": list(ended), "gpus": gpus})
        return int(ExitCode.OK)
    for outcome in ended.values():
        if outcome.text:
            click.echo(outcome.text)
    if not ended:
        click.echo("this user has no reservations", err=True)
    return int(ExitCode.OK)


def _list_reservations(client: Client, *, as_json: bool) -> int:
    found, queue = client.reservations(), client.queue()
    if as_json:
        print_json({"reservations": found, "queue": queue})
        return int(ExitCode.OK)
    if not found:
        click.echo("there are no reservations", err=True)
    from sentinel.cli.display.output import print_table

    rows = [_reservation_row(reservation) for reservation in found]
    if rows:
        print_table(("ID", "GPU", "UNTIL", "BY", "REASON"), rows, flexible=4)
    for request in queue:
        click.echo(f"queue {request.place}: {printable(describe_queued(request))}")
    return int(ExitCode.OK)


def _reservation_row(found: ReservationInfo) -> tuple[str, ...]:
    end = "its process ends" if found.bound else "no end"
    until = end if found.until is None else format_clock(found.until)
    by = _holder(found.holder) if found.bound else user_of(found.holder)
    return found.id, ",".join(map(str, found.indices)), until, by, found.reason


def _holder(holder: Holder) -> str:
    """Name the user and the process of a holder."""
    if holder.pid is None:
        return user_of(holder)
    return f"{user_of(holder)} ({holder.name or 'pid'} {holder.pid})".lstrip()


@click.command("allocate")
@click.argument("id_", metavar="[ID]", required=False)
@click.argument("size", metavar="[SIZE]", required=False)
@one_gpu("0", "0")
@click.option(
    "--pid",
    metavar="PID",
    type=click.IntRange(1, 2**31 - 1),
    help="The process that may use it, with its children.  [default: the parent process]",
)
@wait_option("Maximum wait for free memory")
@_list_option("allocations with their holders")
@click.option(
    "--cancel", metavar="ID", shell_complete=value_completion.allocations, help="End an allocation."
)
@json_option
@with_client
def allocate(  # noqa: PLR0913, PLR0917 - click's
    client: Client,
    id_: str | None,
    size: str | None,
    gpu: str,
    pid: int | None,
    wait: float,
    as_list: bool,  # noqa: FBT001 - click's
    cancel: str | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Allocate SIZE of a GPU's memory, such as 40GiB, to a process; print the GPU's UUID.

    The memory is free when the command returns; the process and its children can use it without a
    yield. The allocation ends with --cancel ID, or with that process. Exit code 1 if the memory is
    not available within --wait; then nothing is allocated.
    """
    if as_list:
        return _list_allocations(client, as_json=as_json)
    if cancel is not None:
        return show(client.cancel_allocation(cancel), as_json=as_json)
    if id_ is None or size is None:
        raise ConfigError("give an id and a size", "Such as: sentinel allocate llm 40GiB")
    # Over TCP there is no process, and the allocation lasts until it is ended.
    holder = pid if pid is not None or client.address.host else os.getppid()
    got = client.allocate(id_, size, gpu, wait=wait, pid=holder)
    if as_json:
        print_json({"allocation": got})
        return int(ExitCode.OK)
    click.echo(got.gpu)
    end = f"until process {got.holder.pid} ends" if got.holder.pid else "until it is ended"
    click.echo(f"GPU {got.index}: {format_size(got.size)} allocated as {got.id}, {end}", err=True)
    click.echo(f"To end it: sentinel allocate --cancel {got.id}", err=True)
    return int(ExitCode.OK)


def _list_allocations(client: Client, *, as_json: bool) -> int:
    found = client.allocations()
    if as_json:
        print_json({"allocations": found})
    elif not found:
        click.echo("there are no allocations", err=True)
    else:
        from sentinel.cli.display.output import print_table

        rows = [
            (got.id, str(got.index), format_size(got.size), _holder(got.holder)) for got in found
        ]
        print_table(("ID", "GPU", "SIZE", "BY"), rows, flexible=3, right=(2,))
    return int(ExitCode.OK)
