"""The process that imports workloads to describe them; plugin code may hang or crash it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.errors import SentinelError
from sentinel.host.processes.child_setup import InheritedFd, setup_child_process
from sentinel.host.processes.unprivileged import become
from sentinel.protocol.codec import encode
from sentinel.protocol.inflight_calls import InflightCalls
from sentinel.protocol.inspection import WorkloadInfo
from sentinel.protocol.stressor import Account
from sentinel.stressor.loader import describe, import_torch, load_workload
from sentinel.stressor.options import bind_options, list_options, summary

#: The name under which the import of torch is announced; that of a workload is its number.
TORCH = "torch"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One workload to describe."""

    number: int
    #: Its name, or its ``module:attribute``.
    place: str
    #: Options to check, as they are given; None checks none, not even whether one is missing.
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class DescribeSpec:
    """What a describing process has to do."""

    wanted: tuple[Wanted, ...]
    #: The user whose stressors are to run them; None is the user of this process.
    account: Account | None = None


def run(spec: DescribeSpec, channel: socket.socket, parent: int, board: InheritedFd) -> None:
    """Describe each workload in a WorkloadInfo; the target of a spawned process.

    Ends by ``os._exit``, so that no exit hook of a plugin can delay it.

    Args:
        spec: The workloads, and the user.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each import is announced before it begins.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: lists workloads")
        if spec.account is not None:
            become(spec.account, parent)
        channel.settimeout(None)
        calls = InflightCalls.attach(board.detach())
        # Nearly all workloads import torch. Its first import from a cold disk takes a while, which
        # must not count against one of them. If it is missing, each workload reports that itself.
        calls.announce(0, TORCH)
        with contextlib.suppress(Exception):
            import_torch()
        for one in spec.wanted:
            calls.announce(0, str(one.number))
            channel.sendall(encode(_describe(one)))
        code = 0
    finally:
        os._exit(code)


def _describe(wanted: Wanted) -> WorkloadInfo:
    """Import one workload, describe it, and check its options."""
    try:
        workload = load_workload(wanted.place)
        options = list_options(workload)
        if wanted.options is not None:
            bind_options(workload, wanted.options)
        return WorkloadInfo(number=wanted.number, summary=summary(workload), options=options)
    except SentinelError as error:
        return WorkloadInfo(number=wanted.number, error=" ".join(str(error).split()))
    except BaseException as error:  # noqa: BLE001 - a plugin's objects may raise anywhere
        return WorkloadInfo(number=wanted.number, error=describe(error))
