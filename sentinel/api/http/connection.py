"""A client's connection: its peer, its timeouts and the limits of connections."""

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

#: The time for a complete request, from the connection or the previous response on.
REQUEST_TIMEOUT_S = 5.0
#: The time after which a client that does not read is disconnected.
STALL_TIMEOUT_S = 10.0
#: Connections over the Unix socket. Beyond this, requests get an error; beyond twice this number,
#: connections are closed.
MAX_CONNECTIONS = 512
#: The same over TCP, where clients without access must not use up the Unix socket's connections.
MAX_TCP_CONNECTIONS = 64
#: The size of a request line with its headers.
MAX_HEADER_BYTES = 16 * 1024


class Connection(H11Protocol):
    """uvicorn's connection, with the peer in each request's state, and with timeouts."""

    #: Connections by kind of socket, beyond which requests get an error.
    limits: ClassVar[Mapping[str, int]] = {"unix": MAX_CONNECTIONS, "tcp": MAX_TCP_CONNECTIONS}
    #: The kind of this connection's socket.
    via: str | None = None
    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the peer's identity, and wait for a request."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        self.via = peer.via
        connections = (one for one in self.connections if isinstance(one, Connection))
        count = sum(one.via == self.via for one in connections)
        limit = self.limits[self.via]
        if count > 2 * limit:
            transport.abort()
            return
        self.app_state = {"peer": peer, "crowded": count > limit}
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._cancel_request_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Process input; stop the timer when the request is complete."""
        super().handle_events()
        # Unlike in uvicorn's annotation, it is None before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._cancel_request_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be buffered already."""
        self._start_request_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer of a client that reads again."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Send a problem for invalid or excessive HTTP, then close."""
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

    def _start_request_timer(self) -> None:
        self._cancel_request_timer()
        self._request_timer = self.loop.call_later(REQUEST_TIMEOUT_S, self._close)

    def _close(self) -> None:
        """Close the connection after unsent output, or after a timeout."""
        self.transport.close()
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
