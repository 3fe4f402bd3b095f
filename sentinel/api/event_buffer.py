"""The last events, encoded once, for clients that follow them at their own speed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sentinel.protocol.views import LogRecord

#: Bounds of the kept events: how far a client may fall behind.
MAX_EVENTS = 1000
MAX_BYTES = 4 * 2**20
#: Time without an event after which a comment shows that the connection lives.
HEARTBEAT_S = 15.0
#: Clients that may follow at once.
MAX_SUBSCRIBERS = 64
#: The approximate size of one write to a client.
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """An event of the log, with its JSON text for streams and the history."""

    number: int
    fields: Mapping[str, Any]
    text: str

    @classmethod
    def of(cls, record: LogRecord) -> Self:
        """Encode the event of a log record."""
        return cls(number=record.number, fields=record.event, text=json.dumps(record.event))

    @property
    def name(self) -> str:
        """The event's name on one line, by which clients filter."""
        name = str(self.fields.get("event", "message"))
        return name.replace("\n", " ").replace("\r", " ")


class EventBuffer:
    """The last events by number, encoded as server-sent events.

    Args:
        daemon: Identifies the daemon that numbers the events; each daemon starts again at 1.
    """

    def __init__(self, daemon: str = "") -> None:
        self._daemon = daemon
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._broadcast = Broadcast()
        self._has_new = False
        #: Current followers; their admission counts them, before they start to follow.
        self.subscribers = 0

    def add(self, event: LoggedEvent) -> None:
        """Keep an event, and drop the oldest ones beyond the bounds."""
        text = f"id: {event.number}\nevent: {event.name}\ndata: {event.text}\n\n".encode()
        self._events.append((event.number, text))
        self._bytes += len(text)
        self._has_new = True
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
            _, oldest = self._events.popleft()
            self._bytes -= len(oldest)

    def announce(self) -> None:
        """Wake all followers if there are new events."""
        if self._has_new:
            self._has_new = False
            self._broadcast.wake()

    def end(self) -> None:
        """End all streams."""
        self._broadcast.end()

    async def follow(self, since: int | None, daemon: str | None = None) -> AsyncIterator[bytes]:
        """Yield events as server-sent events, until :meth:`end`.

        An event ``lost`` counts events that are not kept any more.

        Args:
            since: Start after this number; the default is the newest.
            daemon: The daemon that assigned that number; for another one, start with all events.
        """
        last = self.newest if since is None else since
        if daemon is not None and daemon != self._daemon:
            last = 0
        newest = "" if self.newest is None else f" newest={self.newest}"
        yield f": these are the events of sentinel; daemon={self._daemon}{newest}\n\n".encode()
        while not self._broadcast.ended:
            chunk, last = self.after(last)
            if chunk:
                yield chunk
            elif not await self._wait_for_event(last):
                yield b":\n\n"

    @property
    def newest(self) -> int | None:
        """The number of the newest event."""
        return self._events[-1][0] if self._events else None

    async def _wait_for_event(self, last: int | None) -> bool:
        """Wait up to HEARTBEAT_S; return whether there is an event after ``last``, or the end."""
        await self._broadcast.wait(HEARTBEAT_S)
        return self._broadcast.ended or self.newest != last

    def after(self, last: int | None) -> tuple[bytes, int | None]:
        """Encode the next events after number ``last``; return also the number of their last."""
        if not self._events or self.newest == last:
            return b"", last
        if last is None or self._events[-1][0] < last:  # none yet; or a new daemon's numbers
            last = self._events[0][0] - 1
        new: list[tuple[int, bytes]] = []
        for event in reversed(self._events):
            if event[0] <= last:
                break
            new.append(event)
        chunk = b""
        for number, text in reversed(new):
            if number > last + 1:
                chunk += _lost(number - 1 - last)
            chunk += text
            last = number
            if len(chunk) > _CHUNK_BYTES:
                break
        return chunk, last


def _lost(count: int) -> bytes:
    """Encode the event that counts missing events."""
    body = json.dumps({"schema_version": 1, "count": count})
    return f"event: lost\ndata: {body}\n\n".encode()


class Broadcast:
    """Wakes all current waiters."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        #: There is nothing more to wait for.
        self.ended = False

    def end(self) -> None:
        """Wake all waiters for the last time."""
        self.ended = True
        self.wake()

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
