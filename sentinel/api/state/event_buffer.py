"""The last events, for clients that follow them, each at a pace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator

from sentinel.protocol.views import LogRecord

#: How many events are kept, and how many bytes of them: that is what a client may fall behind.
MOST_EVENTS = 1000
MOST_BYTES = 4 * 2**20
#: A comment is sent after so many seconds without an event, which shows that somebody is there.
HEARTBEAT = 15.0
#: How many clients may follow at once.
MOST_SUBSCRIBERS = 64
#: Events are written to a client in pieces of about so many bytes.
_PIECE = 64 * 1024


class EventBuffer:
    """The last events, by number, ready to be sent.

    Args:
        daemon: Tells the daemon that counts them from all others, which count anew.

    Attributes:
        subscribers: How many follow; who lets them counts them, before they begin.
    """

    def __init__(self, daemon: str = "") -> None:
        self._daemon = daemon
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._broadcast = Broadcast()
        self._new = False
        self._ended = False
        self.subscribers = 0

    def add(self, said: LogRecord) -> None:
        """Keep an event, and forget the oldest where there are too many."""
        line = said.line.strip()
        text = f"id: {said.number}\nevent: {_name(line)}\ndata: {line}\n\n".encode()
        self._events.append((said.number, text))
        self._bytes += len(text)
        self._new = True
        while len(self._events) > MOST_EVENTS or self._bytes > MOST_BYTES:
            _, oldest = self._events.popleft()
            self._bytes -= len(oldest)

    def announce(self) -> None:
        """Wake those who follow, if there is something new for them."""
        if self._new:
            self._new = False
            self._broadcast.wake()

    def end(self) -> None:
        """Let everybody's stream end."""
        self._ended = True
        self._broadcast.wake()

    async def follow(self, since: int | None, daemon: str | None = None) -> AsyncIterator[bytes]:
        """Yield the events after number ``since`` in the format of server-sent events, for ever.

        Without ``since``, those from now on. Where some are not there any more, an event ``lost``
        says how many. Where the number is another ``daemon``'s, none of ours was heard yet.
        """
        last = self.newest if since is None else since
        if daemon is not None and daemon != self._daemon:
            last = 0
        newest = "" if self.newest is None else f" newest={self.newest}"
        yield f": these are the events of sentinel; daemon={self._daemon}{newest}\n\n".encode()
        while not self._ended:
            piece, last = self.after(last)
            if piece:
                yield piece
            elif not await self._news(last):
                yield b":\n\n"

    @property
    def newest(self) -> int | None:
        """The number of the last event."""
        return self._events[-1][0] if self._events else None

    async def _news(self, last: int | None) -> bool:
        """Return whether there was an event within HEARTBEAT."""
        await self._broadcast.wait(HEARTBEAT)
        return self._ended or self.newest != last

    def after(self, last: int | None) -> tuple[bytes, int | None]:
        """Return what is to be sent after number ``last``, and the number of its last event."""
        if not self._events or self.newest == last:
            return b"", last
        if last is None or self._events[-1][0] < last:  # none yet; or a new daemon counts anew
            last = self._events[0][0] - 1
        new: list[tuple[int, bytes]] = []
        for event in reversed(self._events):
            if event[0] <= last:
                break
            new.append(event)
        piece = b""
        for number, text in reversed(new):
            if number > last + 1:
                piece += _lost(number - 1 - last)
            piece += text
            last = number
            if len(piece) > _PIECE:
                break
        return piece, last


def _lost(count: int) -> bytes:
    """Return the event that says how many others are not there any more."""
    body = json.dumps({"schema_version": 1, "count": count})
    return f"event: lost\ndata: {body}\n\n".encode()


def _name(line: str) -> str:
    """Return the name of an event, by which clients choose what they listen to."""
    try:
        name = json.loads(line)["event"]
    except (ValueError, TypeError, KeyError):
        return "message"
    return str(name).replace("\n", " ").replace("\r", " ")


class Broadcast:
    """Wake all current waiters."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        """Wake all current waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next :meth:`wake`, at most ``timeout_s`` seconds."""
        event = self._next
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await event.wait()
