"""``sentinel exec``: a command on GPUs that are reserved for as long as it runs.

The command takes this process's place, so that its PID, its exit code and its signals are its own.
The reservation is bound to that PID: it ends with the command, however that ends, and a daemon that
dies meanwhile is nothing to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import NoReturn

import click

from sentinel.cli.client_options import address_options, simulated_folder, wait_option
from sentinel.cli.daemon.reserve import choice, wanted
from sentinel.client import Client, connect
from sentinel.errors import SentinelError

#: What shells return for a command that is not there, and for one that cannot be run.
NOT_FOUND, NOT_RUNNABLE = 127, 126

#: What the interpreter ignores for itself, and a program must not inherit.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@choice
@click.option("--reason", metavar="TEXT", help="What others are told.  [default: the command]")
@wait_option("How long to wait until there are so many and their memory is free")
@address_options
@click.argument("command", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True)
def command(
    count: int | None,
    named: tuple[str, ...],
    reason: str | None,
    wait: float,
    socket: str | None,
    simulated: bool,  # noqa: FBT001 - click's
    command: tuple[str, ...],
) -> int:
    """Run a command on GPUs that are kept free for it.

    It sees these GPUs and no other: CUDA_VISIBLE_DEVICES names them by UUID. The exit code is the
    command's, or 127 if there is no such command, 126 if it cannot be run, and 1 if the GPUs are
    not to be had within --wait.
    """
    gpus = wanted(count, named)
    path = shutil.which(command[0])
    if path is None:  # known before anybody yields for it
        return _missing(command[0])
    client = connect(socket, simulated=simulated_folder(chosen=simulated))
    told = _summary(command) if reason is None else reason
    got = client.reserve(gpus, reason=told, wait=wait, bound=True)
    try:
        _become(path, command, got.gpus)
    except OSError as error:
        _give_back(client, got.id)
        print(f"sentinel: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    except BaseException:
        _give_back(client, got.id)
        raise


def _summary(command: tuple[str, ...]) -> str:
    """Return a command as a reason: one line, no longer than a reason may be."""
    text = " ".join(" ".join(command).split())
    return "".join(one if one.isprintable() else "?" for one in text)[:200]


def _missing(name: str) -> int:
    """Say why a command cannot be run, and return the exit code for it."""
    if os.path.dirname(name) and os.path.exists(name):  # noqa: PTH110, PTH120 - as which looks
        print(f"sentinel: {name} cannot be run: Permission denied", file=sys.stderr)
        return NOT_RUNNABLE
    print(f"sentinel: there is no command {name}", file=sys.stderr)
    return NOT_FOUND


def _become(path: str, command: tuple[str, ...], gpus: tuple[str, ...]) -> NoReturn:
    """Give this process to the command."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    sys.stdout.flush()
    sys.stderr.flush()
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    os.execve(path, command, environment)  # noqa: S606 - what it is for


def _give_back(client: Client, id_: str) -> None:
    """End a reservation that nobody will use; it would end with this process anyway."""
    try:
        client.unreserve(id_)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
