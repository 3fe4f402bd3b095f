"""Send a message of a child to the supervisor, over the socket between them, without waiting."""

from __future__ import annotations

import socket

from sentinel.protocol.codec import encode


def send_now(channel: socket.socket, message: object) -> bool:
    """Send a message if the channel has room now; return whether it was sent.

    It is not if the channel is full or the supervisor is gone, which ends the child elsewhere.

    Args:
        channel: The child's end of a ``SOCK_SEQPACKET`` pair.
        message: A dataclass of :mod:`sentinel.protocol`.

    Raises:
        WireError: The message is too large for one datagram.
    """
    try:
        channel.send(encode(message), socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True
