"""``sentinel reserve``, ``allocate`` and ``exec``: GPUs and memory for a user or a process.

The command of ``exec`` replaces this process, so that its PID, exit code and signals are its own.
Its reservation is bound to that PID: it ends with the command, and the command survives the daemon.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from sentinel.cli.display.gpu_table import (
    describe_queued,
    process_of,
    user_of,
    wish_of,
)
from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import Table, is_interactive, printable
from sentinel.cli.options import command_options as options
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import WholeNumber
from sentinel.client import Client, GpuStatus, ReservationInfo, Status, connect
from sentinel.client.requester import ask_again
from sentinel.client.verbs import OnWait
from sentinel.config.gpu_selection import gpus_of, select_gpus
from sentinel.errors import (
    ConfigError,
    ConflictError,
    NoSuchGpuError,
    SentinelError,
    TimedOutError,
)
from sentinel.host.daemon_lookup import simulated_folder
from sentinel.host.procfs import ancestors_of, read_stat
from sentinel.protocol.api_types import Holder
from sentinel.units import format_duration, format_indices, format_size, parse_lifetime

_Function = Callable[..., Any]

#: A waiter sees so many requests before its own.
_MAX_EARLIER = 5
_COUNT = "This many GPUs, of all or of those that are named, whichever are free."
_RESERVATIONS = Table(("ID", "GPU", "UNTIL", "BY", "REASON"), flexible=4)
_ALLOCATIONS = Table(("ID", "GPU", "SIZE", "BY"), flexible=3, right=(2,))

quiet_option = click.option(
    "--silent", "-q", "quiet", is_flag=True, help="Do not report what the request waits for."
)
#: The exit codes of shells for a missing command, and for one that cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126
#: Signals that the interpreter ignores; a program must not inherit that.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


def place_reporter(client: Client, *, quiet: bool) -> OnWait | None:
    """Return a function that reports for how long and for what a request waits, unless ``quiet``.

    What has not changed is repeated on a terminal only.
    """
    last_place: int | None = None
    began: datetime | None = None

    def report(one: ReservationInfo) -> None:
        nonlocal last_place, began
        began = min(began or one.since, one.since)  # it is that of the grant later
        is_first, is_known = last_place is None, one.place == last_place
        if is_known and not is_interactive(sys.stderr):
            return
        last_place = one.place
        lines = [f"sentinel: {_describe_wait(one, None if is_first else began)}"]
        with contextlib.suppress(SentinelError):  # the place is worth a line without them
            lines += _obstacles(client.status(), one)
        click.echo("\n".join(map(printable, lines)), err=True)

    return None if quiet else report


def _describe_wait(one: ReservationInfo, began: datetime | None) -> str:
    """Describe what a request has so far, and how long it has waited for the rest."""
    waited = ""
    if began is not None:
        seconds = round((datetime.now(UTC) - began).total_seconds())
        waited = f"after {format_duration(max(0, seconds))}, still "
    if one.place:
        where = f"request {one.id}, place {one.place} in the queue"
        return f"{waited}waiting for {wish_of(one)} ({where})"
    gpus = f"GPU {format_indices(one.indices)} reserved as {one.id}"
    whose = "its" if len(one.indices) == 1 else "their"
    return f"{gpus}; {waited}waiting until {whose} memory is free"


def _obstacles(status: Status, one: ReservationInfo) -> Iterator[str]:
    """Yield what a request waits for: foreign processes, reservations, and earlier requests."""

    def is_wanted(indices: Iterable[int]) -> bool:
        return not one.indices or not set(one.indices).isdisjoint(indices)

    for gpu in status.gpus:
        if is_wanted([gpu.index]) and gpu.occupancy != "IDLE":
            used = f" is used by {_first_process(gpu)}" if gpu.processes else f": {gpu.reason}"
            yield f"  GPU {gpu.index}{used}"
    held = [other for other in status.reservations if is_wanted(other.indices) and one.place]
    for other in held[:_MAX_EARLIER]:
        yield f"  {_describe_held(other)}"
    earlier = [other for other in status.queue if other.place < one.place]
    for other in earlier[:_MAX_EARLIER]:
        yield f"  before it, at place {other.place}: {describe_queued(other)}"
    if len(earlier) > _MAX_EARLIER:
        yield f"  and {len(earlier) - _MAX_EARLIER} more: sentinel reserve --list"


def _first_process(gpu: GpuStatus) -> str:
    """Name the first process of a GPU, and how many more there are."""
    process, more = gpu.processes[0], len(gpu.processes) - 1
    whose = f"PID {process.pid}, {process.user}" if process.user else f"PID {process.pid}"
    named = f"{process.name} ({whose})" if process.name else whose
    return f"{named} and {more} more" if more else named


def _describe_held(one: ReservationInfo) -> str:
    """Describe the reservation of another request: its GPUs, user, end and purpose."""
    by = f" by {user_of(one.holder)}" if user_of(one.holder) else ""
    end = f" until {format_clock(one.until)}" if one.until else ""
    if one.bound and (process := process_of(one.holder)):
        end = f" until {process} ends"
    why = f"{one.id}: {one.reason}" if one.reason else one.id
    verb = "is" if len(one.indices) == 1 else "are"
    return f"GPU {format_indices(one.indices)} {verb} reserved{by}{end} ({why})"


def _reserve(
    client: Client,
    count: int | None,
    gpus: tuple[str, ...],
    *,
    wait: float,
    quiet: bool,
    **wish: Any,
) -> ReservationInfo:
    """Reserve GPUs of those that an inherited CUDA_VISIBLE_DEVICES shows.

    Raises:
        ConfigError: No GPUs are named, or the numbers in the variable are not known.
        SentinelError: As :meth:`Client.reserve`.
    """
    if count is None and not gpus:
        raise ConfigError(
            "give the number of GPUs, or their names",
            "Such as --count 2, or --gpus 0,GPU-952937bc, or both.",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    status = None if client.address.host else ask_again(client.status)
    if status is not None and visible is not None:
        from sentinel.cli.daemon.visible import restrict  # slow to import

        count, gpus, ignored = restrict(status, visible, count, gpus)
        if ignored is not None:
            click.echo(f"sentinel: warning: {printable(ignored)}", err=True)
    if status is not None and wait:
        _check_own(status, count, gpus, is_restricted=visible is not None)
    wanted, among = (gpus, None) if count is None else (count, gpus or None)
    on_wait, began = place_reporter(client, quiet=quiet), time.monotonic()
    try:
        return client.reserve(wanted, among=among, wait=wait, on_wait=on_wait, **wish)
    except (ConflictError, TimedOutError) as error:
        if 0 < wait <= time.monotonic() - began:
            what = error.what.rstrip(".")
            error.what = f"gave up after {format_duration(wait)}: {what}"
            error.remedy = "Wait longer: --wait 8h"
        raise


def _check_own(
    status: Status, count: int | None, gpus: tuple[str, ...], *, is_restricted: bool
) -> None:
    """Refuse to wait for GPUs that are reserved until this process has ended.

    The command of an `exec` has the same PID as that. If CUDA_VISIBLE_DEVICES restricts this one,
    an `exec` further up has set it, and waits, too; else this may be a job that is to follow.

    Raises:
        ConflictError: Too few of these GPUs remain without those.
    """
    me = read_stat(os.getpid())
    above = {os.getpid(), *(ancestors_of(me) if me is not None and is_restricted else ())}
    holders = {
        uuid: one.holder.pid
        for one in status.reservations
        if one.bound and one.until is None and one.holder.pid in above
        for uuid in one.gpus
    }
    if not holders:
        return
    try:
        chosen = select_gpus(gpus, gpus_of(status.gpus))
    except NoSuchGpuError:
        return  # the daemon says why
    own = [gpu for gpu in chosen if gpu.uuid in holders]
    if len(chosen) - len(own) < (len(chosen) if count is None else min(count, len(chosen))):
        indices = format_indices(gpu.index for gpu in own)
        verb = "is" if len(own) == 1 else "are"
        pid = holders[own[0].uuid]
        whose, remedy = "this command's own `exec`", "Run the program directly: it has these GPUs."
        if pid != os.getpid():
            whose = "a parent of this command"
            remedy += " For a job that follows it: unset CUDA_VISIBLE_DEVICES."
        raise ConflictError(f"GPU {indices} {verb} reserved by {whose} (PID {pid})", remedy)


def _list_option(nouns: str) -> Callable[[_Function], _Function]:
    return click.option("--list", "as_list", is_flag=True, help=f"List the {nouns}.")


@click.command("reserve")
@options.gpu_selection
@options.count_option(_COUNT)
@options.duration("--for", "seconds", "Duration; --cancel ends it earlier.", parse=parse_lifetime)
@click.option("--reason", metavar="TEXT", default="", help="The purpose, shown to other users.")
@options.wait_option("Maximum wait for the GPUs and their memory")
@_list_option("reservations with their holders and ends, and the queue")
@click.option(
    "--cancel",
    metavar="ID,...",
    multiple=True,
    shell_complete=value_completion.reservations,
    help="End these reservations or requests in the queue; `all`: all of this user.",
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
    if they are not available within --wait; then nothing is reserved. If CUDA_VISIBLE_DEVICES is
    set, only the GPUs that it shows are reserved; with --connect, it does not matter.
    """
    if as_list:
        return _list_reservations(client)
    if cancel:
        return _cancel_reservations(client, cancel)
    if seconds is None:
        raise ConfigError("give the duration of the reservation", "Such as --for 1h.")
    got = _reserve(client, count, gpus, reason=reason, seconds=seconds, wait=wait, quiet=quiet)
    end = f", until {format_clock(got.until)}" if got.until else ""
    indices = ", ".join(map(str, got.indices))
    return options.Printed(
        json={"reservation": got},
        lines=got.gpus,
        notes=[
            f"GPU {indices} reserved as {got.id}{end}",
            f"To end it: sentinel reserve --cancel {got.id}",
        ],
    )


def _cancel_reservations(client: Client, given: Sequence[str]) -> options.Printed:
    names = [part.strip() for text in given for part in text.split(",")]
    if "all" in names:
        known = (*client.queue(), *client.reservations())
        names = [found.id for found in known if found.holder.uid == os.getuid()]
    none = "this user has no reservations or requests"
    return options.each(client.cancel_reservation, names, "ids", none)


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
    type=WholeNumber(1, 2**31 - 1),
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
    end = f", until process {got.holder.pid} ends" if got.holder.pid else ""
    return options.Printed(
        json={"allocation": got},
        lines=[got.gpu],
        notes=[
            f"GPU {got.index}: {format_size(got.size)} allocated as {got.id}{end}",
            f"To end it: sentinel allocate --cancel {got.id}",
        ],
    )


def _list_allocations(client: Client) -> options.Printed:
    found = client.allocations()
    rows = [(got.id, str(got.index), format_size(got.size), _holder(got.holder)) for got in found]
    return options.listing(_ALLOCATIONS, rows, "there are no allocations", allocations=found)


# --- exec ------------------------------------------------------------------------------------


@click.command("exec", context_settings={"allow_interspersed_args": False})
@options.gpus_flag()
@options.count_option(_COUNT)
@click.option(
    "--reason", metavar="TEXT", help="The purpose, shown to other users.  [default: the command]"
)
@options.wait_option("Maximum wait for the GPUs and their memory", default=None)
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

    CUDA_VISIBLE_DEVICES has the UUIDs of these GPUs, so the command sees no others. If it is set
    already, they are chosen among the GPUs that it shows. While too few are available, the request
    waits in a queue, first come, first served. The exit code is the command's, or 127 if there is
    no such command, 126 if it cannot be executed, and 1 if the GPUs are not available within
    --wait.
    """
    path = shutil.which(command[0])
    if path is None:  # before a stressor yields
        _check_list(gpus, command)
        return _missing(command[0])
    client = connect(socket, simulated=simulated_folder(chosen=simulated))
    purpose = _summary(command) if reason is None else reason
    reservation = _reserve(client, count, gpus, reason=purpose, wait=wait, bound=True, quiet=quiet)
    try:
        _replace_process(path, command, reservation.gpus)
    except OSError as error:
        _cancel_unused(client, reservation.id)
        print(f"sentinel: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    except BaseException:
        _cancel_unused(client, reservation.id)
        raise


def _check_list(gpus: tuple[str, ...], command: tuple[str, ...]) -> None:
    """Refuse numbers of GPUs that were taken for the command, since they stand before ``--``.

    Raises:
        ConfigError: There are such.
    """
    words = command[: command.index("--")] if "--" in command else ()
    if words and all(re.fullmatch(r"[\d,-]+", word) for word in words):
        listed = ",".join(word.strip(",") for word in (*gpus, *words))
        raise ConfigError(f"{' '.join(words)!r} stands before `--`: write --gpus {listed}")


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
