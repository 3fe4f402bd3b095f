"""An iterator over the daemon's events, which any thread may close."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
