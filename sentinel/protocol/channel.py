"""Send messages between the supervisor and its children, without ever waiting for a reader."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from sentinel.errors import WireError
from sentinel.protocol.codec import encode

#: The largest message of a stream, in bytes. The view of 128 GPUs with 128 allocations has 5 MB.
MAX_MESSAGE_BYTES = 16 * 2**20
#: More than the kernel keeps for one socket, so that one read takes all that is waiting.
_CHUNK_BYTES = 256 * 1024
#: The size of the length before each message, in bytes.
_PREFIX_BYTES = 4


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


class MessageStream:
    """Messages with their length before them, over a stream socket that becomes non-blocking.

    At most one message is partly sent and one partly received, so both buffers are bounded by
    MAX_MESSAGE_BYTES. A message that was begun is always completed before the next one.

    Args:
        channel: One end of a ``SOCK_STREAM`` pair.

    Attributes:
        ended: The other end is closed.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self.ended = False
        self._unsent = memoryview(b"")
        self._received = bytearray()

    @property
    def blocked(self) -> bool:
        """Whether a message is partly sent; :meth:`flush` goes on."""
        return bool(self._unsent)

    def send(self, message: object) -> bool:
        """Send a message or begin it; return False if an earlier one still has to be completed.

        Raises:
            ConnectionError: The other end is closed.
            WireError: The message is too large.
        """
        if not self.flush():
            return False
        data = encode(message, MAX_MESSAGE_BYTES)
        self._unsent = memoryview(len(data).to_bytes(_PREFIX_BYTES) + data)
        self.flush()
        return True

    def flush(self) -> bool:
        """Send the rest of a message as far as there is room; return whether nothing is left.

        Raises:
            ConnectionError: The other end is closed.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[self.channel.send(self._unsent) :]
        except BlockingIOError:
            return False
        except ConnectionError:
            self._unsent = memoryview(b"")
            raise
        return True

    def receive(self) -> list[bytes]:
        """Receive what is waiting; return the messages that are complete by now.

        Raises:
            WireError: A message is too large.
        """
        try:
            data = self.channel.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            # Raised once if the other process exits with unread messages; its own come after it.
            return self.receive()
        except ConnectionError:
            data = b""
        self.ended = not data
        self._received += data
        return list(self._take_complete())

    def _take_complete(self) -> Iterator[bytes]:
        while len(self._received) >= _PREFIX_BYTES:
            size = int.from_bytes(self._received[:_PREFIX_BYTES])
            if size > MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {size} bytes is larger than {MAX_MESSAGE_BYTES}")
            end = _PREFIX_BYTES + size
            if len(self._received) < end:
                return
            yield bytes(self._received[_PREFIX_BYTES:end])
            del self._received[:end]
