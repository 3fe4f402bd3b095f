"""Follow a daemon's events in a thread, across restarts of the daemon, or in an event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from sentinel.client.event_stream import EventStream
from sentinel.client.types import EventInfo
from sentinel.errors import SentinelError

_log = logging.getLogger("sentinel.monitor")

#: The first and the longest pause between attempts to reach the daemon.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
#: The time for a running callback to return when the thread is stopped.
_STOP_TIMEOUT_S = 5.0


class Events(Iterator[EventInfo]):
    """Events for ``for`` and ``async for``, until the daemon ends.

    Args:
        stream: The stream of the events.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream, from any thread."""
        self._stream.close()

    def __next__(self) -> EventInfo:
        return next(self._stream)

    async def __aiter__(self) -> AsyncIterator[EventInfo]:
        """Yield the events without blocking the event loop."""
        import asyncio

        try:
            await asyncio.to_thread(self._stream.open)
            # With a default, since a coroutine cannot raise StopIteration.
            while (event := await asyncio.to_thread(next, self._stream, None)) is not None:
                yield event
        finally:
            self._stream.close()  # ends the thread that waits in it


class Follower:
    """A thread that receives every event, also those of a restarted daemon.

    Args:
        events: Opens the stream after an event's number and the daemon that assigned it.
        on_event: Called with each event; exceptions are logged.
    """

    def __init__(
        self,
        events: Callable[[int | None, str | None], EventStream],
        on_event: Callable[[EventInfo], None],
    ) -> None:
        self._events = events
        self._on_event = on_event
        #: The last event's number, and the daemon that assigned it.
        self._last: int | None = None
        self._daemon: str | None = None
        self._stopping = threading.Event()
        self._stream: EventStream | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; no later event is missed.

        Raises:
            SentinelError: The daemon cannot be reached.
        """
        stream = self._stream = self._events(None, None).open()
        self._last, self._daemon = stream.newest, stream.daemon
        self._thread = threading.Thread(
            target=self._follow, args=(stream,), name="sentinel-monitor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for it unless a callback calls this."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def _follow(self, stream: EventStream) -> None:
        pause = _MIN_PAUSE_S
        while not self._stopping.is_set():
            try:
                for event in stream:
                    pause = _MIN_PAUSE_S
                    if event.id is not None:
                        self._last, self._daemon = event.id, stream.daemon
                    self._deliver(event)
                    if self._stopping.is_set():
                        return
            except SentinelError as error:
                _log.warning("the daemon's events are interrupted: %s", error.what)
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, _MAX_PAUSE_S)
            stream = self._stream = self._events(self._last, self._daemon)
            if self._stopping.is_set():  # stop() closed the previous stream
                return

    def _deliver(self, event: EventInfo) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - a callback is foreign code
            _log.exception("event %s was not processed", event.name)
