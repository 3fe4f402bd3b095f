"""The probe's way to the supervisor, for all of its threads; no reading waits there for room."""

from __future__ import annotations

import select
import socket

from sentinel.protocol.codec import encode
from sentinel.protocol.probe import ProbeMessage


class Outbox:
    """The way to the supervisor, for all threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, message: ProbeMessage) -> bool:
        """Send ``message`` now or not at all; return whether it went.

        Raises:
            WireError: It is too large.
        """
        try:
            self._channel.send(encode(message), socket.MSG_DONTWAIT)
        except OSError:
            return False  # full, or the supervisor is gone, which the main thread hears of
        return True

    def send_last(self, message: ProbeMessage) -> None:
        """Send ``message``, waiting for room for at most a second."""
        if not self.send(message):
            select.select([], [self._channel], [], 1.0)
            self.send(message)
