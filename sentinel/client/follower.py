"""Follows the events of a daemon: in a thread, which survives the daemon, or in an event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from sentinel.client.event_stream import EventStream
from sentinel.client.types import EventInfo
from sentinel.errors import SentinelError

_log = logging.getLogger("sentinel.monitor")

#: Between two tries to reach a daemon that is away, in seconds: at first, and at most.
_SOON, _LATE = 0.2, 5.0
#: How long a callback that is at work may keep the end, in seconds.
_PATIENCE = 5.0


class Events(Iterator[EventInfo]):
    """Events as they happen, for ``for`` and for ``async for``; ends where the daemon does.

    Args:
        stream: Where they come from.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, from any thread."""
        self._stream.close()

    def __next__(self) -> EventInfo:
        return next(self._stream)

    async def __aiter__(self) -> AsyncIterator[EventInfo]:
        """Yield the events without keeping the event loop from anything."""
        import asyncio

        try:
            await asyncio.to_thread(self._stream.open)
            # A default, since no StopIteration passes through a coroutine.
            while (event := await asyncio.to_thread(next, self._stream, None)) is not None:
                yield event
        finally:
            self._stream.close()  # which ends the thread that waits in it


class Follower:
    """A thread that hears every event, and goes on when the daemon is another one.

    Args:
        events: Opens the stream after the event of a number, or from now on, and is told which
            daemon counted that.
        hear: Called with each event; what it raises is logged.
    """

    def __init__(
        self,
        events: Callable[[int | None, str | None], EventStream],
        hear: Callable[[EventInfo], None],
    ) -> None:
        self._events = events
        self._hear = hear
        #: The last event received, and its daemon: another daemon restarts the count.
        self._last: int | None = None
        self._daemon: str | None = None
        self._ended = threading.Event()
        self._stream: EventStream | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it follows."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Return once no event is missed from here on.

        Raises:
            SentinelError: There is no daemon to follow.
        """
        stream = self._stream = self._events(None, None).open()
        self._last, self._daemon = stream.newest, stream.daemon
        self._thread = threading.Thread(
            target=self._follow, args=(stream,), name="sentinel-monitor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Return once nothing is heard any more; at once where a callback itself asks for it."""
        self._ended.set()
        if self._stream is not None:
            self._stream.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _follow(self, stream: EventStream) -> None:
        pause = _SOON
        while not self._ended.is_set():
            try:
                for event in stream:
                    pause = _SOON
                    if event.id is not None:
                        self._last, self._daemon = event.id, stream.daemon
                    self._tell(event)
                    if self._ended.is_set():
                        return
            except SentinelError as error:
                _log.warning("the events of the daemon are away: %s", error.what)
            if self._ended.wait(pause):
                return
            pause = min(2 * pause, _LATE)
            stream = self._stream = self._events(self._last, self._daemon)
            if self._ended.is_set():  # closed the one before, and not this one
                return

    def _tell(self, event: EventInfo) -> None:
        try:
            self._hear(event)
        except Exception:  # noqa: BLE001 - whatever others wrote
            _log.exception("event %s was not heard", event.name)
