"""The HTTP connections of the API process: their limits and timeouts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sentinel.api.access import Peer, local_level, peer_of
from sentinel.api.bodies import MEDIA_TYPE, problem_body
from sentinel.api.turns import Turns
from sentinel.host.keepalive import keep_alive
from sentinel.protocol.commands import AccessPolicy, Level
from sentinel.protocol.problem import Code

#: What one turn of the loop reads of a connection. asyncio's default is 256 KiB, for which h11
#: takes 0.2 s if they are chunks of one byte.
_READ_BYTES = 4 * 1024
#: The time for a complete request, from the connection or the previous response on.
REQUEST_TIMEOUT_S = 5.0
#: The time after which a client that does not read is disconnected.
STALL_TIMEOUT_S = 10.0
#: The same for a connection over TCP that has not shown a token yet.
UNPROVEN_TIMEOUT_S = 2.0

#: Connections over TCP that have not shown a token, in total and from one address. Beyond this, the
#: oldest is closed: a client sends its token at once, long before it is the oldest. More than are
#: accepted in one turn of the loop, since a token is read in the next one.
MAX_UNPROVEN = 256
MAX_UNPROVEN_OF_ADDRESS = 128
#: The kind of a connection over TCP that has not shown a token.
UNPROVEN = "unproven"


@dataclass(frozen=True)
class Limit:
    """How many connections of a kind are served; twice as many are open at most."""

    total: int
    #: Of one user or token. What one has beyond it does not count for the others.
    share: int
    #: Whose connections they are, for errors.
    whose: str


#: The limits by kind. Beyond them requests get an error; beyond twice, connections are closed.
LIMITS = {
    "owner": Limit(512, 512, "the daemon's user and root"),
    "operator": Limit(512, 128, "users who may operate"),
    "reader": Limit(256, 32, "users who may only read"),
    "tcp": Limit(128, 64, "clients with a token"),
}


class Connection(H11Protocol):
    """uvicorn's connection, with the peer in each request's state, and with timeouts."""

    #: Who may do what.
    policy: ClassVar[AccessPolicy] = AccessPolicy()
    #: The kind of this connection, None before it is known.
    kind: str | None = None
    #: The user or the token, None before it is known.
    user: str | None = None
    #: The other end.
    peer: Peer
    #: When it was accepted, by the loop's clock.
    since = 0.0
    #: The turn that the request waits for, or None if it does not wait.
    _turn: asyncio.Future[bool] | None = None
    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the peer's identity, and wait for a request."""
        super().connection_made(transport)
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined] # of asyncio's own loop
        connection = transport.get_extra_info("socket")
        self.peer = peer_of(connection)
        self.since = self.loop.time()
        level = Level.NONE
        if self.peer.via == "unix":
            level = local_level(self.peer, self.policy)
            operates = "operator" if level >= Level.OPERATE else "reader"
            self.kind = "owner" if level is Level.OWN else operates
            self.user = f"uid {self.peer.uid}"
        else:
            keep_alive(connection)
            self.kind = UNPROVEN
            self._close_oldest(self._of_kind(UNPROVEN), MAX_UNPROVEN)
            here = [
                connection
                for connection in self._of_kind(UNPROVEN)
                if connection.peer.remote == self.peer.remote
            ]
            self._close_oldest(here, MAX_UNPROVEN_OF_ADDRESS)
        times, why = self._crowding()
        if times > 1:
            transport.abort()
            return
        self.app_state = {
            "peer": self.peer,
            "user": self.user,
            "level": level,
            "crowded": why,
            "prove": self.prove,
            "take_turn": self.take_turn,
        }
        self._start_request_timer()

    def prove(self, token: str) -> str | None:
        """Count this connection for a token; return why it is one too many, or None."""
        if (self.kind, self.user) == ("tcp", token):
            return None
        self.kind, self.user = "tcp", token
        times, why = self._crowding()
        if times > 1:
            self.transport.abort()
        return why

    async def take_turn(self, turns: Turns, user: str | None, level: Level) -> bool:
        """Wait for a turn of the request; return False if its client has disconnected."""
        self._turn = self.loop.create_future()
        has_turn = await turns.take(user, level, self._turn)
        self._turn = None
        return has_turn

    def _of_kind(self, kind: str) -> list[Connection]:
        return [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.kind == kind
        ]

    def _crowding(self) -> tuple[int, str | None]:
        """Return how many times a limit is exceeded, up to 2, and by what, or 0 and None."""
        limit = LIMITS.get(self.kind or "")
        if limit is None or self.kind is None:
            return 0, None
        of_user = Counter(connection.user for connection in self._of_kind(self.kind))
        own, total = of_user[self.user], sum(min(n, limit.share) for n in of_user.values())
        times = sum(own > n * limit.share or total > n * limit.total for n in (1, 2))
        if own > limit.share:
            why = f"{self.user} has {own} connections, and its share is {limit.share}"
            return times, f"{why} of {limit.total}: close some, or try again in a moment."
        if total > limit.total:
            why = f"{limit.whose} have {total} connections, and {limit.total} are served"
            return times, f"{why}: they can close some, and root can end their processes."
        return 0, None

    def is_answering(self) -> bool:
        """Check whether a request has its turn and no complete response yet."""
        return self.has_request() and self._turn is None

    def has_request(self) -> bool:
        """Check whether a request is complete and its response is not."""
        # Unlike in uvicorn's annotation, it is None before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _close_oldest(self, connections: list[Connection], limit: int) -> None:
        """Close the oldest of too many connections, but not this one, which is the newest.

        Those that do not read their response come first, and those that are answered now last.
        """
        others = [connection for connection in connections if connection is not self]
        others.sort(key=lambda other: (not other.is_stalled(), other.is_answering(), other.since))
        for connection in others[: max(0, len(connections) - limit)]:
            connection.kind = None
            connection.transport.abort()

    def is_stalled(self) -> bool:
        """Check whether the client does not read its response."""
        return self._stall_timer is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers, and give up the turn."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)
        self._cancel_request_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._unset_keepalive_if_required()  # as uvicorn does, but also after an error
        self.resume_writing()
        super().connection_lost(exc)
        # They refer to this connection, which would stay in memory until a full collection.
        self.app_state = {}
        self.scope = self.cycle = None  # type: ignore[assignment]

    def handle_events(self) -> None:
        """Process input; stop the timer when the request is complete."""
        super().handle_events()
        if self.has_request():
            self._cancel_request_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be buffered already."""
        self._start_request_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        timeout_s = UNPROVEN_TIMEOUT_S if self.kind == UNPROVEN else STALL_TIMEOUT_S
        self._stall_timer = self.loop.call_later(timeout_s, self.transport.abort)

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
        timeout_s = UNPROVEN_TIMEOUT_S if self.kind == UNPROVEN else REQUEST_TIMEOUT_S
        self._request_timer = self.loop.call_later(timeout_s, self._close)

    def _close(self) -> None:
        """Close the connection after unsent output, or after a timeout."""
        self.transport.close()
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
