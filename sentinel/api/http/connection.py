"""One client's connection: who it is, and how long it may take for what it owes us."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sentinel.api.http.auth import peer_of
from sentinel.api.http.errors import MEDIA_TYPE, problem_body
from sentinel.protocol.api_types import Code

#: A request must be complete so many seconds after the connection or the response before it.
REQUEST_WITHIN = 5.0
#: A client that takes nothing of what is written to it for so many seconds is let go.
STALLED_AFTER = 10.0
#: Who comes when there are so many is told so; who comes when there are twice as many is let go.
MOST_CONNECTIONS = 512
#: The same over TCP, counted apart: anybody may come there, and take no place on the Unix socket.
MOST_OVER_TCP = 64
#: The most bytes that a request line and its headers may have.
MOST_HEADERS = 16 * 1024


class Connection(H11Protocol):
    """uvicorn's connection, with the peer in each request's state, and with bounds in time.

    Attributes:
        most: Who comes by a socket of this kind when so many are there is told so.
        via: The kind of socket that it came by, ``unix`` or ``tcp``.
    """

    most: ClassVar[Mapping[str, int]] = {"unix": MOST_CONNECTIONS, "tcp": MOST_OVER_TCP}
    via: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who it is, and begin to wait for a request."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        self.via = peer.via
        alike = (one for one in self.connections if isinstance(one, Connection))
        count = sum(one.via == self.via for one in alike)
        most = self.most[self.via]
        if count > 2 * most:
            transport.abort()
            return
        self.app_state = {"peer": peer, "crowded": count > most}
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._cancel()
        if self._closing is not None:
            self._closing.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Go on with what came; a request that is complete is waited for no more."""
        super().handle_events()
        # uvicorn says that there always is one; there is none before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._cancel()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, which may be here already."""
        self._expect()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give a client that does not read some time."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_AFTER, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Say in the shape of all errors that this is no HTTP, or too much of it; then close."""
        error: Any = sys.exception()
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self._close()
            return
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        large = status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        body = problem_body(Code.TOO_LARGE if large else Code.INVALID, f"{error or msg}.", status)
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._close()

    def _expect(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(REQUEST_WITHIN, self._close)

    def _close(self) -> None:
        """Close the connection, which waits for what is not read yet, but not for ever."""
        self.transport.close()
        if self._closing is None:
            self._closing = self.loop.call_later(STALLED_AFTER, self.transport.abort)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
