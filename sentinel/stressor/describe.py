"""The process that imports workloads to say what they are; plugin code may hang or crash it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from sentinel.errors import SentinelError
from sentinel.host.child_setup import setup_child_process
from sentinel.protocol.codec import encode
from sentinel.protocol.inspection import Described, Importing
from sentinel.stressor.loader import describe, load_workload
from sentinel.stressor.options import list_options, summary


def run(places: Sequence[tuple[int, str]], channel: socket.socket, parent: int) -> None:
    """Say of each workload what it is; the target of a spawned process, which never returns.

    Ends by ``os._exit``, as no exit hook of a plugin may hold that up.

    Args:
        places: The number and the ``module:attribute`` of each.
        channel: A socket of whole messages (SOCK_SEQPACKET); each import is announced by an
            Importing, and a Described follows it.
        parent: The PID of the process that listens.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: lists workloads")
        channel.settimeout(None)
        # Nearly all of them import it, and the first import from a cold disk takes a while, which
        # is not to be blamed on one of them. Where it is missing, each says so itself.
        with contextlib.suppress(Exception):
            import torch  # noqa: F401 - only a child may
        for number, place in places:
            channel.sendall(encode(Importing(number=number)))
            channel.sendall(encode(_described(number, place)))
        code = 0
    finally:
        os._exit(code)


def _described(number: int, place: str) -> Described:
    """Import one workload and return what it says of itself."""
    try:
        workload = load_workload(place)
        return Described(number=number, summary=summary(workload), options=list_options(workload))
    except SentinelError as error:
        return Described(number=number, error=" ".join(str(error).split()))
    except BaseException as error:  # noqa: BLE001 - a plugin's objects may raise wherever they are asked
        return Described(number=number, error=describe(error))
