"""The entry point of the API process; light, because the supervisor imports it."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import traceback

from sentinel.host.process_setup import API, InheritedFd, explain_exhaustion, setup_child_process
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import ApiSpec, ServiceFailed

#: The maximum length of a reason.
_MAX_REASON_LENGTH = 500


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
        channel: A stream socket (SOCK_STREAM).
        parent: The PID of the supervisor.
        listening: The listening socket at ``spec.socket``.
        tcp: The listening socket at ``spec.tcp``, or None without TCP.
        metrics: The listening socket for scrapes only, or None without one.

    Raises:
        WireError: The supervisor sent an invalid message; the process ends with exit code 1.
    """
    setup_child_process(parent, "sentinel: api, answers clients", API)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Slurm sends them to all processes of a step: the supervisor answers them, and clients
        # follow its end. A handler, since what this process starts must not ignore them.
        signal.signal(number, lambda *_: None)
    sockets: list[socket.socket] = [
        _ListeningSocket(fileno=handle.detach()) for handle in (listening, tcp) if handle
    ]
    stream = MessageStream(channel)
    scrape_socket = _ListeningSocket(fileno=metrics.detach()) if metrics else None
    try:
        from sentinel.api.server import serve

        serve(spec, stream, sockets, scrape_socket)
    except Exception as error:
        refused = explain_exhaustion(error)
        with contextlib.suppress(OSError):  # the supervisor is gone
            stream.send(ServiceFailed(reason=refused or _describe(error)))
        if refused is not None:
            sys.exit(1)  # without a traceback: it is no fault of this process
        raise


def _describe(error: Exception) -> str:
    """Describe an error in one line; its traceback goes to the standard error."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    return text[:_MAX_REASON_LENGTH]
