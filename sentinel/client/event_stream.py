"""Events as they happen: an iterator that any thread may close."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Generator, Iterator, Mapping
from typing import Self, cast
from urllib.parse import urlencode

from sentinel.client.transport import Address, listen
from sentinel.client.types import EventInfo
from sentinel.errors import SentinelError, ServiceError

#: The daemon says something at least every 15 s on a stream; this long without is its end.
SILENCE = 45.0


class EventStream(Iterator[EventInfo]):
    """The events of a daemon; nothing is sent before the first is asked for, or :meth:`open`.

    Args:
        address: Where the daemon is.
        since: After the event of this number, as far as they are kept; from now on without.
        daemon: Whose number that is; all that are kept where it is not this daemon's.
        timeout: Seconds until the stream must have begun.

    Attributes:
        daemon: Tells the daemon that counts the events from others, once the stream has begun.
        newest: The number of its last event then, if it is known.
    """

    daemon: str | None = None
    newest: int | None = None

    def __init__(
        self,
        address: Address,
        since: int | None,
        daemon: str | None = None,
        *,
        timeout: float,
    ) -> None:
        asked = {"since": since, "daemon": daemon}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        path = f"/v1/events?{query}" if query else "/v1/events"
        headers = {"Accept": "text/event-stream"}
        lines = listen(address, path, headers, timeout, SILENCE, self._opened)
        self._lines = cast("Generator[str, None, None]", lines)
        self._socket: socket.socket | None = None
        self._begun = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Return once the daemon has begun the stream: from here on no event is missed.

        Raises:
            SentinelError: As every verb of a client.
        """
        if not self._begun:
            self._begun = True
            self._meet(next(self._lines, ""))  # its first line is a comment
        return self

    def close(self) -> None:
        """End it; who waits for the next event in another thread hears that there is none."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ValueError):  # another thread is in it, and ends it now
            self._lines.close()

    def __next__(self) -> EventInfo:
        """Return the next event.

        Raises:
            SentinelError: As every verb of a client; also where the daemon went away.
        """
        given: dict[str, str] = {}
        try:
            for line in self._lines:
                self._begun = True
                if line.startswith(":"):
                    self._meet(line)
                elif line:
                    name, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    given[name] = f"{given[name]}\n{value}" if name in given else value
                elif "data" in given:
                    return _event(given)
                else:
                    given = {}
        except SentinelError:
            if not self._closed:
                raise
        raise StopIteration

    def _meet(self, comment: str) -> None:
        """Take from the first comment who counts the events; others only show that it lives."""
        for name, _, value in (word.partition("=") for word in comment.split()):
            if name == "daemon":
                self.daemon = value
            elif name == "newest":
                self.newest = int(value) if value.isdecimal() else None

    def _opened(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._closed:  # by another thread, just before
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _event(given: Mapping[str, str]) -> EventInfo:
    try:
        fields = json.loads(given["data"])
        number = int(given["id"]) if "id" in given else None
    except ValueError:
        fields = number = None
    if not isinstance(fields, dict):
        raise ServiceError(f"the daemon's event makes no sense: {given['data'][:80]!r}")
    name = given.get("event") or str(fields.get("event", "message"))
    return EventInfo(id=number, name=name, fields=fields)
