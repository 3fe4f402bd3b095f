"""``sentinel exec``: run a command on GPUs that are reserved while it runs.

The command replaces this process, so that its PID, exit code and signals are its own. The
reservation is bound to that PID: it ends with the command, and the command survives the daemon.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import NoReturn

import click

from sentinel.cli.daemon.reserve import place_reporter, quiet_option
from sentinel.cli.options.command_options import (
    address_options,
    chosen,
    count_option,
    gpus_flag,
    simulated_folder,
    wait_option,
)
from sentinel.client import Client, connect
from sentinel.errors import SentinelError

#: The exit codes of shells for a missing command, and for one that cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126

#: Signals that the interpreter ignores; a program must not inherit that.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@gpus_flag()
@count_option
@click.option(
    "--reason", metavar="TEXT", help="The purpose, shown to other users.  [default: the command]"
)
@wait_option("Maximum wait for the GPUs and their memory")
@quiet_option
@address_options
@click.argument("command", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True)
def command(  # noqa: PLR0913, PLR0917 - click's
    count: int | None,
    gpus: tuple[str, ...],
    reason: str | None,
    wait: float,
    quiet: bool,  # noqa: FBT001 - click's
    socket: str | None,
    simulated: bool,  # noqa: FBT001
    command: tuple[str, ...],
) -> int:
    """Run a command on reserved GPUs.

    CUDA_VISIBLE_DEVICES has the UUIDs of these GPUs, so the command sees no others. While too few
    GPUs are available, it waits in a queue, first come, first served. The exit code
    is the command's, or 127 if there is no such command, 126 if it cannot be executed, and 1 if the
    GPUs are not available within --wait.
    """
    wanted = chosen(count, gpus)
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
        _cancel_reservation(client, reservation.id)
        print(f"sentinel: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    except BaseException:
        _cancel_reservation(client, reservation.id)
        raise


def _summary(command: tuple[str, ...]) -> str:
    """Format a command as a reason: one printable line of at most 200 characters."""
    text = " ".join(" ".join(command).split())
    return "".join(one if one.isprintable() else "?" for one in text)[:200]


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


def _cancel_reservation(client: Client, id_: str) -> None:
    """End the unused reservation early; it would end with this process anyway."""
    try:
        client.cancel_reservation(id_)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
