"""One running service: the desk, the server around it, and the word that it serves."""

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

from sentinel.api.app import make_app
from sentinel.api.context import ApiContext
from sentinel.api.http.auth import Secret, group_of
from sentinel.api.http.connection import (
    MOST_CONNECTIONS,
    MOST_HEADERS,
    MOST_OVER_TCP,
    REQUEST_WITHIN,
    Connection,
)
from sentinel.api.http.middleware import AccessMiddleware
from sentinel.api.metrics.scrape_endpoint import MOST_SCRAPERS, ScrapeApp
from sentinel.errors import WireError
from sentinel.host.paths import identity
from sentinel.protocol.commands import ApiHeartbeat, ServiceSpec

#: How often the supervisor hears that clients are answered, in seconds.
_SAYS_EVERY = 1.0
#: How long responses may take that are under way when the supervisor is gone, in seconds.
_FINISH_WITHIN = 1
#: Connections that are taken from a socket in one turn of the loop; others wait in the kernel.
_AT_ONCE = 64
#: A connection too many is closed so many turns after it was taken.
_TURNS = 4
#: File descriptors: for the connections, for those too many, and for all else.
_DESCRIPTORS = 2 * (MOST_CONNECTIONS + MOST_OVER_TCP + MOST_SCRAPERS) + 2 * _TURNS * _AT_ONCE + 512


def serve(
    spec: ServiceSpec,
    channel: socket.socket,
    sockets: list[socket.socket],
    window: socket.socket | None = None,
) -> None:
    """Answer clients of these listening sockets until the other end of ``channel`` is closed.

    Args:
        spec: What is served, and where.
        channel: The channel to the supervisor.
        sockets: They listen for clients of the API.
        window: Listens for scrapes alone, where there is one.

    Raises:
        WireError: The supervisor sent what is no message.
    """
    _make_room()
    # A client's nonsense is the client's business; that of ours goes to standard error.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.run(_serve(spec, channel, sockets, window))


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals as they are: the supervisor says when to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Scrape(Connection):
    """The connection of who comes for the metrics alone."""

    most = {"tcp": MOST_SCRAPERS}  # noqa: RUF012 - it is never changed


async def _serve(
    spec: ServiceSpec,
    channel: socket.socket,
    sockets: list[socket.socket],
    window: socket.socket | None,
) -> None:
    wrong: list[WireError] = []

    def ended(error: WireError | None) -> None:
        wrong.extend([error] if error else [])
        for one in servers:
            one.should_exit = True

    context = ApiContext(spec, channel, ended)
    middleware = AccessMiddleware(
        make_app(context), group_of(spec.socket), spec.tcp, _secret(context)
    )
    server = _server(middleware, Connection)
    servers, jobs = [server], [server.serve(sockets)]
    if window is not None:
        servers.append(_server(ScrapeApp(context.metrics), _Scrape))
        jobs.append(servers[-1].serve([window]))
    keeping = (
        context.records.keep(),
        context.watch.keep(),
        context.history.keep(),
        _say(context, server),
    )
    background = [asyncio.create_task(job) for job in keeping]
    try:
        await asyncio.gather(*jobs)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await context.history.close()
    if wrong:
        raise wrong[0]


def _server(app: Any, connection: type[Connection]) -> _Server:
    """Return a server of an application that has connections of this kind."""
    return _Server(
        uvicorn.Config(
            app,
            http=connection,
            ws="none",
            interface="asgi3",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_AT_ONCE,
            timeout_keep_alive=round(REQUEST_WITHIN),
            timeout_graceful_shutdown=_FINISH_WITHIN,
            h11_max_incomplete_event_size=MOST_HEADERS,
        )
    )


async def _say(context: ApiContext, server: _Server) -> None:
    """Tell the supervisor that clients are answered, as soon as they are and ever after.

    Unless nobody can find us any more, as after a clean-up of /tmp: GPUs that nobody could ask for
    are not held.
    """
    await server.begun.wait()
    place = Path(context.spec.socket)
    ours = identity(place)
    while True:
        context.channel.send(ApiHeartbeat())
        if ours is None or identity(place) != ours:
            context.give_up(f"{context.spec.socket} was removed or replaced: no client finds us")
            return
        await asyncio.sleep(_SAYS_EVERY)


def _secret(context: ApiContext) -> Secret | None:
    """Return what clients over TCP must know, where there is TCP and a file for it."""
    if context.spec.tcp is None or context.spec.token is None:
        return None
    try:
        return Secret(Path(context.spec.token))
    except OSError as error:
        what = f"{context.spec.token}: cannot be written: {error.strerror}"
        context.report_warning("token", f"{what}; no client is let in over TCP")
        return None


def _make_room() -> None:
    """Allow ourselves enough file descriptors, as far as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
