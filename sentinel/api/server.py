"""The HTTP servers of the API process: connections with their limits, and the background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sentinel.api.access import (
    MAX_HEADER_BYTES,
    AccessMiddleware,
    Peer,
    TokenFile,
    local_level,
    peer_of,
)
from sentinel.api.app import PUBLIC_PATHS, make_app
from sentinel.api.bodies import MEDIA_TYPE, problem_body
from sentinel.api.context import ApiContext
from sentinel.api.metrics_page import ScrapeApp
from sentinel.errors import WireError
from sentinel.host.paths import identity
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import AccessPolicy, ApiHeartbeat, ApiSpec, Level
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
#: Connections of the daemon's user and root. Beyond this, requests get an error; beyond twice this
#: number, connections are closed.
MAX_CONNECTIONS = 512
#: The same for users who may operate, and for all other local users; and for each of them. What one
#: user has beyond the share of a user does not count for the others.
MAX_OPERATORS = 512
MAX_OPERATORS_OF_USER = 128
MAX_READERS = 256
MAX_READERS_OF_USER = 32
#: The same for connections over TCP that have shown a token.
MAX_TCP_CONNECTIONS = 64
#: Connections over TCP that have not shown a token, in total and from one address. Beyond this, the
#: oldest is closed: a client sends its token at once, long before it is the oldest. More than are
#: accepted in one turn of the loop, since a token is read in the next one.
MAX_UNPROVEN = 256
MAX_UNPROVEN_OF_ADDRESS = 128
#: The kind of a connection over TCP that has not shown a token.
UNPROVEN = "unproven"

#: The share of each user in the connections of a kind.
_SHARES = {"operator": MAX_OPERATORS_OF_USER, "reader": MAX_READERS_OF_USER}


class Connection(H11Protocol):
    """uvicorn's connection, with the peer in each request's state, and with timeouts."""

    #: Connections of each kind, beyond which requests get an error.
    limits: ClassVar[Mapping[str, int]] = {
        "owner": MAX_CONNECTIONS,
        "operator": MAX_OPERATORS,
        "reader": MAX_READERS,
        "tcp": MAX_TCP_CONNECTIONS,
    }
    #: Who may do what.
    policy: ClassVar[AccessPolicy] = AccessPolicy()
    #: The kind of this connection, None before it is known.
    kind: str | None = None
    #: The other end.
    peer: Peer
    #: When it was accepted, by the loop's clock.
    since = 0.0
    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the peer's identity, and wait for a request."""
        super().connection_made(transport)
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined] # of asyncio's own loop
        self.peer = peer_of(transport.get_extra_info("socket"))
        self.since = self.loop.time()
        if self.peer.via == "unix":
            level = local_level(self.peer, self.policy)
            operates = "operator" if level >= Level.OPERATE else "reader"
            self.kind = "owner" if level is Level.OWN else operates
        else:
            self.kind = UNPROVEN
            self._close_oldest(self._of_kind(UNPROVEN), MAX_UNPROVEN)
            here = [
                connection
                for connection in self._of_kind(UNPROVEN)
                if connection.peer.remote == self.peer.remote
            ]
            self._close_oldest(here, MAX_UNPROVEN_OF_ADDRESS)
        over = self._excess()
        if over > 1:
            transport.abort()
            return
        self.app_state = {"peer": self.peer, "crowded": over > 0, "prove": self.prove}
        self._start_request_timer()

    def prove(self) -> bool:
        """Count this connection among those with a token; return False if they are too many."""
        if self.kind == UNPROVEN:
            self.kind = "tcp"
        return self._excess() == 0

    def _of_kind(self, kind: str) -> list[Connection]:
        return [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.kind == kind
        ]

    def _excess(self) -> int:
        """Return 0 within the limits, 1 beyond one of them, and 2 beyond twice a limit."""
        if self.kind is None or self.kind not in self.limits:
            return 0
        same, limit = self._of_kind(self.kind), self.limits[self.kind]
        share = _SHARES.get(self.kind, limit)
        of_user = Counter(connection.peer.uid for connection in same)
        total, own = sum(min(number, share) for number in of_user.values()), of_user[self.peer.uid]
        return sum(total > times * limit or own > times * share for times in (1, 2))

    def is_answering(self) -> bool:
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
        """Cancel all timers."""
        self._cancel_request_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Process input; stop the timer when the request is complete."""
        super().handle_events()
        if self.is_answering():
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


_HEARTBEAT_INTERVAL_S = 1.0
#: The time for open responses to end when the supervisor is gone.
_GRACE_S = 1
#: Connections that are accepted in one turn of the loop; others wait in the kernel.
_MAX_ACCEPTS = 64
#: Turns of the loop until an excess connection is closed.
_TURNS_TO_CLOSE = 4
#: File descriptors: for connections, for excess connections, and for everything else.
_DESCRIPTORS = (
    2 * (MAX_CONNECTIONS + MAX_OPERATORS + MAX_READERS + MAX_TCP_CONNECTIONS + MAX_UNPROVEN)
    + 2 * _TURNS_TO_CLOSE * _MAX_ACCEPTS
    + 512
)


def serve(
    spec: ApiSpec,
    channel: MessageStream,
    sockets: list[socket.socket],
    scrape_socket: socket.socket | None = None,
) -> None:
    """Serve clients until the supervisor closes ``channel``.

    Args:
        spec: The specification of this process.
        channel: The channel to the supervisor.
        sockets: The listening sockets of the API.
        scrape_socket: The listening socket for scrapes only, or None without one.

    Raises:
        WireError: The supervisor sent an invalid message.
    """
    _raise_descriptor_limit()
    # Invalid requests are the clients' errors; only errors of this process are logged.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.run(_serve(spec, channel, sockets, scrape_socket))


class _Server(uvicorn.Server):
    """uvicorn's server, without signal handlers: the supervisor ends this process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def _serve(
    spec: ApiSpec,
    channel: MessageStream,
    sockets: list[socket.socket],
    scrape_socket: socket.socket | None,
) -> None:
    errors: list[WireError] = []

    def on_end(error: WireError | None) -> None:
        errors.extend([error] if error else [])
        for server in servers:
            server.should_exit = True

    context = ApiContext(spec, channel, on_end)
    middleware = AccessMiddleware(
        make_app(context), spec.access, spec.tcp, _tokens(context), PUBLIC_PATHS
    )
    Connection.policy = spec.access
    server = _server(middleware)
    servers, jobs = [server], [server.serve(sockets)]
    if scrape_socket is not None:
        servers.append(_server(ScrapeApp(context.metrics)))
        jobs.append(servers[-1].serve([scrape_socket]))
    background = [
        asyncio.create_task(job)
        for job in (
            context.reservation_writer.run(),
            context.session_writer.run(),
            context.change_feed.run(),
            context.history.run(),
            context.verified.run(),
            context.verdicts.run(),
            _send_heartbeats(context, server),
        )
    ]
    notifying = asyncio.create_task(context.notifier.run())
    try:
        await asyncio.gather(*jobs)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await context.history.close()
        await context.verified.store()
        # Last: the supervisor ends this process soon, and a recipient may not answer.
        await context.notifier.drain(_GRACE_S)
        notifying.cancel()
        await asyncio.gather(notifying, return_exceptions=True)
    if errors:
        raise errors[0]


def _server(app: Any) -> _Server:
    """Create a server of an application."""
    return _Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            interface="asgi3",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_MAX_ACCEPTS,
            timeout_keep_alive=round(REQUEST_TIMEOUT_S),
            timeout_graceful_shutdown=_GRACE_S,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
    )


async def _send_heartbeats(context: ApiContext, server: _Server) -> None:
    """Send heartbeats from the server's start on.

    If the socket's file is removed, as by a clean-up of /tmp, no client can reach the daemon any
    more. The daemon ends then: it never occupies a GPU without a reachable control socket.
    """
    await server.has_started.wait()
    path = Path(context.spec.socket)
    original = identity(path)
    while True:
        context.supervisor.send(ApiHeartbeat())
        if original is None or identity(path) != original:
            context.stop_daemon(f"{path} was removed or replaced: clients cannot reach the daemon")
            return
        await asyncio.sleep(_HEARTBEAT_INTERVAL_S)


def _tokens(context: ApiContext) -> list[tuple[TokenFile, Level]]:
    """Open the token files of TCP clients, which exist only with TCP."""
    spec, tokens = context.spec, []
    if spec.tcp is None or spec.token is None:
        return []
    operate = Path(spec.token)
    for path, level in (
        (operate, spec.access.tcp),
        (operate.with_name(f"{operate.name}-read"), Level.READ),
    ):
        try:
            token = TokenFile(path)
        except OSError as error:
            what = f"{path}: cannot be written: {error.strerror}"
            context.report_warning("token", f"{what}; TCP clients have no access by it")
            continue
        tokens.append((token, level))
        if token.was_empty:
            what = f"{path}: was empty; it has a new token"
            context.report_warning("token", f"{what}, which TCP clients need from now on")
    return tokens


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files, as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
