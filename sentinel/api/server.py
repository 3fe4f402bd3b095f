"""The HTTP servers of the API process, and its background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from sentinel.api.access import MAX_HEADER_BYTES, AccessMiddleware, TokenFile
from sentinel.api.app import PUBLIC_PATHS, make_app
from sentinel.api.connections import LIMITS, MAX_UNPROVEN, REQUEST_TIMEOUT_S, Connection
from sentinel.api.context import ApiContext
from sentinel.api.metrics_page import ScrapeApp
from sentinel.api.turns import LoopTurns
from sentinel.errors import WireError
from sentinel.host.paths import identity
from sentinel.protocol.codec import MessageStream
from sentinel.protocol.commands import ApiHeartbeat, ApiSpec, Level

_HEARTBEAT_INTERVAL_S = 1.0
#: How long before the next views a heartbeat is sent: an idle supervisor gathers its messages and
#: the readings of a poll in one tick.
_HEARTBEAT_LEAD_S = 0.02
#: The time for open responses to end when the supervisor is gone.
_GRACE_S = 1
#: The time for what the last views have to be written, within that of the whole end.
_LAST_WRITE_S = 0.5
#: Connections that are accepted in one turn of the loop; others wait in the kernel.
_MAX_ACCEPTS = 64
#: Turns of the loop until an excess connection is closed.
_TURNS_TO_CLOSE = 4
#: File descriptors: for connections, for excess connections, and for everything else.
_DESCRIPTORS = (
    2 * (sum(limit.total for limit in LIMITS.values()) + MAX_UNPROVEN)
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
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End the server."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for the end; the headers have the time of a second, and uvicorn wakes ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1.0)

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
            server.end()

    context = ApiContext(spec, channel, on_end)
    turns = LoopTurns()
    middleware = AccessMiddleware(
        make_app(context), spec.tcp, _tokens(context), PUBLIC_PATHS, turns
    )
    Connection.policy = spec.access
    server = _server(middleware)
    servers, jobs = [server], [server.serve(sockets)]
    if scrape_socket is not None:
        servers.append(_server(ScrapeApp(context.metrics, turns)))
        jobs.append(servers[-1].serve([scrape_socket]))
    background = [
        asyncio.create_task(job)
        for job in (
            *(writer.run() for writer in context.writers),
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
        # What the last views have is written by the tasks, such as a fault just before a stop; all
        # at once, since the supervisor ends this process soon. The work is stored before the task
        # that also does so is cancelled: what was written would be added once more.
        last = [writer.finish(_LAST_WRITE_S) for writer in context.writers]
        await asyncio.gather(*last, context.verified.store())
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await context.history.close()
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
        await asyncio.sleep(heartbeat_pause(context.views.age_s))


def heartbeat_pause(age_s: float) -> float:
    """Compute the pause until the next heartbeat, which ends just before views of a second.

    Args:
        age_s: The time since the last views.

    Returns:
        Seconds, from half of the interval to three halves.
    """
    pause = (_HEARTBEAT_INTERVAL_S - _HEARTBEAT_LEAD_S - age_s) % _HEARTBEAT_INTERVAL_S
    return pause if pause >= _HEARTBEAT_INTERVAL_S / 2 else pause + _HEARTBEAT_INTERVAL_S


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
