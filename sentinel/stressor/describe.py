"""The process that imports workloads to describe them; plugin code may hang or crash it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from sentinel.errors import SentinelError
from sentinel.host.child_setup import InheritedFd, setup_child_process
from sentinel.protocol.codec import encode
from sentinel.protocol.inflight_calls import InflightCalls
from sentinel.protocol.inspection import WorkloadInfo
from sentinel.stressor.loader import describe, import_torch, load_workload
from sentinel.stressor.options import list_options, summary

#: The name under which the import of torch is announced; that of a workload is its number.
TORCH = "torch"


def run(
    places: Sequence[tuple[int, str]], channel: socket.socket, parent: int, board: InheritedFd
) -> None:
    """Describe each workload in a WorkloadInfo; the target of a spawned process.

    Ends by ``os._exit``, so that no exit hook of a plugin can delay it.

    Args:
        places: The number and the ``module:attribute`` of each workload.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each import is announced before it begins.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: lists workloads")
        channel.settimeout(None)
        calls = InflightCalls.attach(board.detach())
        # Nearly all workloads import torch. Its first import from a cold disk takes a while, which
        # must not count against one of them. If it is missing, each workload reports that itself.
        calls.announce(0, TORCH)
        with contextlib.suppress(Exception):
            import_torch()
        for number, place in places:
            calls.announce(0, str(number))
            channel.sendall(encode(_describe(number, place)))
        code = 0
    finally:
        os._exit(code)


def _describe(number: int, place: str) -> WorkloadInfo:
    """Import one workload and describe it."""
    try:
        workload = load_workload(place)
        options = list_options(workload)
        return WorkloadInfo(number=number, summary=summary(workload), options=options)
    except SentinelError as error:
        return WorkloadInfo(number=number, error=" ".join(str(error).split()))
    except BaseException as error:  # noqa: BLE001 - a plugin's objects may raise anywhere
        return WorkloadInfo(number=number, error=describe(error))
