"""``sentinel reserve``, ``allocate`` and ``exec``: GPUs and memory for a user or a process.

The command of ``exec`` replaces this process, so that its PID, exit code and signals are its own.
Its reservation is bound to that PID: it ends with the command, and the command survives the daemon.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import click

from sentinel.cli.display.gpu_table import (
    describe_queued,
    describe_reserved,
    process_of,
    user_of,
    who,
)
from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import Table, printable
from sentinel.cli.options import command_options as options
from sentinel.cli.options import value_completion
from sentinel.client import Client, ReservationInfo, connect
from sentinel.client.verbs import OnWait
from sentinel.errors import ConfigError, SentinelError
from sentinel.host.daemon_lookup import simulated_folder
from sentinel.protocol.api_types import Holder
from sentinel.units import format_size

_Function = Callable[..., Any]

#: A waiter sees so many requests before its own.
_MAX_EARLIER = 5
_RESERVATIONS = Table(("ID", "GPU", "UNTIL", "BY", "REASON"), flexible=4)
_ALLOCATIONS = Table(("ID", "GPU", "SIZE", "BY"), flexible=3, right=(2,))

quiet_option = click.option(
    "--silent", "-q", "quiet", is_flag=True, help="Do not report the place in the queue."
)


def place_reporter(client: Client, *, quiet: bool) -> OnWait | None:
    """Return a function that reports a place in the queue and who is before, unless ``quiet``."""

    def report(one: ReservationInfo) -> None:
        earlier: Sequence[ReservationInfo] = ()
        held: Sequence[ReservationInfo] = ()
        with contextlib.suppress(SentinelError):  # the place is worth a line without them
            held = client.reservations()
            if one.place > 1:
                earlier = [other for other in client.queue() if other.place < one.place]
        lines = [f"sentinel: place {one.place} in the queue: {describe_queued(one)}"]
        lines += [
            f"  before it: {describe_reserved(other)}{who(other.holder)}"
            for other in held
            if not one.indices or set(one.indices) & set(other.indices)
        ][:_MAX_EARLIER]
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
@options.gpu_selection
@options.count_option
@options.duration("--for", "seconds", "Duration; --cancel ends it earlier.")
@click.option("--reason", metavar="TEXT", default="", help="The purpose, shown to other users.")
@options.wait_option("Maximum wait for the GPUs and their memory")
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
@options.asks_daemon
def reserve(
    client: Client,
    count: int | None,
    gpus: tuple[str, ...],
    seconds: float | None,
    reason: str,
    wait: float,
    as_list: bool,
    cancel: tuple[str, ...],
    quiet: bool,
) -> options.Printed:
    """Reserve GPUs; print their UUIDs, one per line, when their memory is free.

    While too few are available, the request waits in a queue, first come, first served. Exit code 1
    if they are not available within --wait; then nothing is reserved.
    """
    if as_list:
        return _list_reservations(client)
    if cancel:
        return _cancel_reservations(client, cancel)
    if seconds is None:
        raise ConfigError("give the duration of the reservation", "Such as --for 1h.")
    on_wait = place_reporter(client, quiet=quiet)
    got = client.reserve(
        options.chosen(count, gpus), reason=reason, seconds=seconds, wait=wait, on_wait=on_wait
    )
    end = f"until {format_clock(got.until)}" if got.until else "until it is ended"
    indices = ", ".join(map(str, got.indices))
    return options.Printed(
        json={"reservation": got},
        lines=got.gpus,
        notes=[
            f"GPU {indices} reserved as {got.id}, {end}",
            f"To end it: sentinel reserve --cancel {got.id}",
        ],
    )


def _cancel_reservations(client: Client, given: Sequence[str]) -> options.Printed:
    names = [part.strip() for text in given for part in text.split(",")]
    if "all" in names:
        known = (*client.queue(), *client.reservations())
        names = [found.id for found in known if found.holder.uid == os.getuid()]
    printed = options.each(client.cancel_reservation, names, "ids")
    notes = ["this user has no reservations or requests"]
    return printed if names else replace(printed, notes=notes)


def _list_reservations(client: Client) -> options.Printed:
    found, queue = client.reservations(), client.queue()
    lines = _RESERVATIONS.lines(map(_reservation_row, found)) if found else []
    lines += [f"queue {request.place}: {printable(describe_queued(request))}" for request in queue]
    notes = [] if found else ["there are no reservations"]
    return options.Printed(json={"reservations": found, "queue": queue}, lines=lines, notes=notes)


def _reservation_row(found: ReservationInfo) -> tuple[str, ...]:
    end = "its process ends" if found.bound else "no end"
    until = end if found.until is None else format_clock(found.until)
    by = _holder(found.holder) if found.bound else user_of(found.holder)
    return found.id, ",".join(map(str, found.indices)), until, by, found.reason


def _holder(holder: Holder) -> str:
    """Name the user and the process of a holder."""
    process = process_of(holder)
    return f"{user_of(holder)} ({process})".lstrip() if process else user_of(holder)


@click.command("allocate")
@click.argument("id_", metavar="[ID]", required=False)
@click.argument("size", metavar="[SIZE]", required=False)
@options.one_gpu("0", "0")
@click.option(
    "--pid",
    metavar="PID",
    type=click.IntRange(1, 2**31 - 1),
    help="The process that may use it, with its children.  [default: the parent process]",
)
@options.wait_option("Maximum wait for free memory")
@_list_option("allocations with their holders")
@click.option(
    "--cancel", metavar="ID", shell_complete=value_completion.allocations, help="End an allocation."
)
@options.asks_daemon
def allocate(
    client: Client,
    id_: str | None,
    size: str | None,
    gpu: str,
    pid: int | None,
    wait: float,
    as_list: bool,
    cancel: str | None,
) -> options.Printed:
    """Allocate SIZE of a GPU's memory, such as 40GiB, to a process; print the GPU's UUID.

    The memory is free when the command returns; the process and its children can use it without a
    yield. The allocation ends with --cancel ID, or with that process. Exit code 1 if the memory is
    not available within --wait; then nothing is allocated.
    """
    if as_list:
        return _list_allocations(client)
    if cancel is not None:
        return options.outcome(client.cancel_allocation(cancel))
    if id_ is None or size is None:
        raise ConfigError("give an id and a size", "Such as: sentinel allocate llm 40GiB")
    # Over TCP there is no process, and the allocation lasts until it is ended.
    holder = pid if pid is not None or client.address.host else os.getppid()
    got = client.allocate(id_, size, gpu, wait=wait, pid=holder)
    end = f"until process {got.holder.pid} ends" if got.holder.pid else "until it is ended"
    return options.Printed(
        json={"allocation": got},
        lines=[got.gpu],
        notes=[
            f"GPU {got.index}: {format_size(got.size)} allocated as {got.id}, {end}",
            f"To end it: sentinel allocate --cancel {got.id}",
        ],
    )


def _list_allocations(client: Client) -> options.Printed:
    found = client.allocations()
    rows = [(got.id, str(got.index), format_size(got.size), _holder(got.holder)) for got in found]
    return options.Printed(
        json={"allocations": found},
        lines=_ALLOCATIONS.lines(rows) if rows else (),
        notes=[] if rows else ["there are no allocations"],
    )


# --- exec ------------------------------------------------------------------------------------

#: The exit codes of shells for a missing command, and for one that cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126
#: Signals that the interpreter ignores; a program must not inherit that.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@options.gpus_flag()
@options.count_option
@click.option(
    "--reason", metavar="TEXT", help="The purpose, shown to other users.  [default: the command]"
)
@options.wait_option("Maximum wait for the GPUs and their memory")
@quiet_option
@options.address_options
@click.argument("command", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True)
def exec_(
    count: int | None,
    gpus: tuple[str, ...],
    reason: str | None,
    wait: float,
    quiet: bool,
    socket: str | None,
    simulated: bool,
    command: tuple[str, ...],
) -> int:
    """Run a command on reserved GPUs.

    CUDA_VISIBLE_DEVICES has the UUIDs of these GPUs, so the command sees no others. While too few
    GPUs are available, it waits in a queue, first come, first served. The exit code
    is the command's, or 127 if there is no such command, 126 if it cannot be executed, and 1 if the
    GPUs are not available within --wait.
    """
    wanted = options.chosen(count, gpus)
    path = shutil.which(command[0])
    if path is None:  # before a stressor yields
        return _missing(command[0])
    client = connect(socket, simulated=simulated_folder(chosen=simulated))
    purpose = _summary(command) if reason is None else reason
    reservation = client.reserve(
        wanted, reason=purpose, wait=wait, bound=True, on_wait=place_reporter(client, quiet=quiet)
    )
    try:
        _replace_process(path, command, reservation.gpus)
    except OSError as error:
        _cancel_unused(client, reservation.id)
        print(f"sentinel: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    except BaseException:
        _cancel_unused(client, reservation.id)
        raise


def _summary(command: tuple[str, ...]) -> str:
    """Format a command as a reason: one printable line of at most 200 characters."""
    text = " ".join(" ".join(command).split())
    return "".join(char if char.isprintable() else "?" for char in text)[:200]


def _missing(name: str) -> int:
    """Report why a command cannot be executed, and return its exit code."""
    if os.path.dirname(name) and os.path.exists(name):  # noqa: PTH110, PTH120 - as which looks
        print(f"sentinel: {name} cannot be executed: Permission denied", file=sys.stderr)
        return NOT_EXECUTABLE
    print(f"sentinel: there is no command {name}", file=sys.stderr)
    return NOT_FOUND


def _replace_process(path: str, command: tuple[str, ...], gpus: tuple[str, ...]) -> NoReturn:
    """Replace this process by the command."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    sys.stdout.flush()
    sys.stderr.flush()
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    os.execve(path, command, environment)  # noqa: S606 - the purpose of exec


def _cancel_unused(client: Client, id_: str) -> None:
    """End the unused reservation early; it would end with this process anyway."""
    try:
        client.cancel_reservation(id_)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
