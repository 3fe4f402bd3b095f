"""Where a service process begins; light, because the supervisor imports it to name its function."""

from __future__ import annotations

import socket
from typing import Protocol

from sentinel.host.child_setup import setup_child_process
from sentinel.protocol.commands import ServiceSpec


class Handle(Protocol):
    """A file descriptor on its way into a child, as multiprocessing.reduction.DupFd makes it."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


class _Listening(socket.socket):
    """A socket that listens already."""

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing, whatever the web server wants.

        Who called listen() last is whom the kernel names to clients: that stays the supervisor.
        """


def run(
    spec: ServiceSpec,
    channel: socket.socket,
    parent: int,
    listening: Handle,
    tcp: Handle | None,
    metrics: Handle | None = None,
) -> None:
    """Answer clients until the other end of ``channel`` is closed; the target of a spawned process.

    It sends ApiHeartbeat when it accepts requests and then every second, commands, and
    ServiceWarnings. It takes HostView, GpuView, LogRecord, CommandReply and ReloadConfig. The
    sockets that it listens on stay open elsewhere, so that clients wait while it is replaced.

    Args:
        spec: What it serves, and where.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the supervisor.
        listening: The listening socket at ``spec.socket``.
        tcp: The listening socket at ``spec.tcp``, where there is one.
        metrics: A listening socket for scrapes alone, where there is one.

    Raises:
        WireError: The supervisor sent what is no message; the process ends with exit code 1.
    """
    setup_child_process(parent, "sentinel: service, answers clients")
    sockets: list[socket.socket] = [
        _Listening(fileno=handle.detach()) for handle in (listening, tcp) if handle
    ]
    window = _Listening(fileno=metrics.detach()) if metrics else None
    from sentinel.api.server import serve

    serve(spec, channel, sockets, window)
