"""Follow a daemon's events: by an iterator that any thread may close, by a thread, or by a loop."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self, cast
from urllib.parse import urlencode

from sentinel.client.transport import Address, stream_lines
from sentinel.client.types import EventInfo
from sentinel.errors import SentinelError, ServiceError
from sentinel.protocol.api_types import GpuStatus

#: The maximum silence of a live stream; the daemon sends a comment every 15 s.
MAX_SILENCE_S = 45.0


class EventStream(Iterator[EventInfo]):
    """The events of a daemon; connects at the first event, or with :meth:`open`.

    Args:
        address: The daemon's address.
        since: Start with the kept events after this number; the default is from now on.
        daemon: The daemon that assigned that number; for another daemon, all kept events follow.
        timeout: Seconds until the stream must have started.
        list_gpus: Lists the daemon's GPUs, to complete an event that names its GPU by the UUID or
            by the index only.
    """

    #: Identifies the daemon that numbers the events, once the stream has started.
    daemon: str | None = None
    #: The number of the newest event when the stream started, if known.
    newest: int | None = None

    def __init__(
        self,
        address: Address,
        since: int | None,
        daemon: str | None = None,
        *,
        timeout: float,
        list_gpus: Callable[[], Sequence[GpuStatus]] = tuple,
    ) -> None:
        parameters = {"since": since, "daemon": daemon}
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        path = f"/v1/events?{query}" if query else "/v1/events"
        headers = {"Accept": "text/event-stream"}
        lines = stream_lines(address, path, headers, timeout, MAX_SILENCE_S, self._on_connect)
        self._lines = cast("Generator[str, None, None]", lines)
        self._socket: socket.socket | None = None
        self._started = False
        self._closed = False
        self._list_gpus = list_gpus
        #: UUIDs and indices of GPUs; a UUID or an index without the other is unknown.
        self._indices: dict[str, int | None] = {}
        self._uuids: dict[int, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Return once the daemon has started the stream; no later event is missed.

        Raises:
            SentinelError: As for every verb of a client.
        """
        if not self._started:
            self._started = True
            self._read_comment(next(self._lines, ""))  # the first line is a comment
        return self

    def close(self) -> None:
        """End the stream, also for a thread that waits for its next event."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ValueError):  # another thread runs the generator, and ends it now
            self._lines.close()

    def __next__(self) -> EventInfo:
        """Wait for the next event.

        Raises:
            SentinelError: As for every verb of a client; also if the connection breaks.
        """
        fields: dict[str, str] = {}
        try:
            for line in self._lines:
                self._started = True
                if line.startswith(":"):
                    self._read_comment(line)
                elif line:
                    name, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{value}" if name in fields else value
                elif "data" in fields:
                    return self._complete(_parse_event(fields))
                else:
                    fields = {}
        except SentinelError:
            if not self._closed:
                raise
        raise StopIteration

    def _read_comment(self, comment: str) -> None:
        """Read the daemon's identity from the first comment; later ones only show life."""
        for name, _, value in (word.partition("=") for word in comment.split()):
            if name == "daemon":
                self.daemon = value
            elif name == "newest":
                self.newest = int(value) if value.isdecimal() else None

    def _complete(self, event: EventInfo) -> EventInfo:
        """Add the UUID or the index of an event's GPU if the other one is missing."""
        uuid, index = event.gpu, event.index
        if (uuid is None) == (index is None):
            return event
        if uuid not in self._indices and index not in self._uuids:
            with contextlib.suppress(SentinelError):
                for gpu in self._list_gpus():
                    self._indices[gpu.uuid], self._uuids[gpu.index] = gpu.index, gpu.uuid
        if uuid is None and index is not None:
            uuid = self._uuids.setdefault(index, None)
        elif index is None and uuid is not None:
            index = self._indices.setdefault(uuid, None)
        return replace(event, fields={**event.fields, "gpu": uuid, "index": index})

    def _on_connect(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._closed:  # by another thread in the meantime
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _parse_event(fields: Mapping[str, str]) -> EventInfo:
    try:
        data = json.loads(fields["data"])
        number = int(fields["id"]) if "id" in fields else None
    except ValueError:
        data = number = None
    if not isinstance(data, dict):
        raise ServiceError(f"invalid event from the daemon: {fields['data'][:80]!r}")
    name = fields.get("event") or str(data.get("event", "message"))
    return EventInfo(id=number, name=name, fields=data)


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
