"""Detect that the other end of a silent TCP connection is gone."""

from __future__ import annotations

import socket

#: Seconds of silence until the first probe, and between probes; and how many are lost at the end.
_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 4


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other host is silent for half a minute.

    A request may wait without a limit, and a host that loses its power or network says nothing.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _INTERVAL_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
