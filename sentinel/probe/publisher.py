"""Send the probe's messages to the supervisor from any thread, without waiting for room."""

from __future__ import annotations

import select
import socket
from dataclasses import replace

from sentinel.errors import WireError
from sentinel.protocol.channel import send_now
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import ProbeMessage


class Publisher:
    """Sends messages to the supervisor, from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, message: ProbeMessage) -> bool:
        """Send ``message`` now or drop it; return whether it was sent.

        Raises:
            WireError: It is too large.
        """
        return send_now(self._channel, message)

    def send_reading(self, reading: Reading) -> bool:
        """Send ``reading``, or only the number of its processes if it is too large."""
        try:
            return self.send(reading)
        except WireError:  # names and ancestors without end
            count = reading.omitted_processes + len(reading.processes or ())
            return self.send(replace(reading, processes=(), omitted_processes=count))

    def send_last(self, message: ProbeMessage) -> None:
        """Send ``message``, waiting for room for up to a second."""
        if not self.send(message):
            select.select([], [self._channel], [], 1.0)
            self.send(message)
