"""The entry point of the API process; light, because the supervisor imports it."""

from __future__ import annotations

import socket

from sentinel.host.child_setup import InheritedFd, setup_child_process
from sentinel.protocol.commands import ApiSpec


class _ListeningSocket(socket.socket):
    """A socket that listens already."""

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing.

        SO_PEERCRED gives clients the process that called listen() last; that must remain the
        supervisor.
        """


def run(
    spec: ApiSpec,
    channel: socket.socket,
    parent: int,
    listening: InheritedFd,
    tcp: InheritedFd | None,
    metrics: InheritedFd | None = None,
) -> None:
    """Serve clients until the supervisor closes ``channel``; the target of a spawned process.

    The process sends ApiHeartbeat when it accepts requests and then every second, commands, and
    ServiceWarnings. It receives HostView, GpuView, LogRecord, CommandReply and ReloadConfig. The
    listening sockets stay open in the supervisor, so that clients wait while it is replaced.

    Args:
        spec: The specification of this process.
        channel: A socket that preserves message boundaries (SOCK_SEQPACKET).
        parent: The PID of the supervisor.
        listening: The listening socket at ``spec.socket``.
        tcp: The listening socket at ``spec.tcp``, or None without TCP.
        metrics: The listening socket for scrapes only, or None without one.

    Raises:
        WireError: The supervisor sent an invalid message; the process ends with exit code 1.
    """
    setup_child_process(parent, "sentinel: api, answers clients")
    sockets: list[socket.socket] = [
        _ListeningSocket(fileno=handle.detach()) for handle in (listening, tcp) if handle
    ]
    scrape_socket = _ListeningSocket(fileno=metrics.detach()) if metrics else None
    from sentinel.api.server import serve

    serve(spec, channel, sockets, scrape_socket)
