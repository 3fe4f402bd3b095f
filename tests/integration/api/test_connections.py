"""Connections of the API in this process: clients that stall or leave, and who is answered next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from sentinel.api import connections
from sentinel.api.access import AccessMiddleware, Peer
from sentinel.api.turns import LoopTurns, Turns
from sentinel.protocol.commands import Level
from tests.harness.timing import TIMEOUT_S

STATUS = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"
#: Two users who may only read, and the daemon's own.
READERS, OWNER = (65534, 65533), os.getuid()


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not met():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)


def all_of(connection: socket.socket) -> bytes:
    """Read everything until the connection is closed."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data


@contextlib.asynccontextmanager
async def serving(
    path: Path, talk: Callable[..., Awaitable[None]]
) -> AsyncIterator[uvicorn.Server]:
    """Serve an application in this process, with the connections of the API."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    config = uvicorn.Config(talk, http=connections.Connection, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    await until(lambda: server.started)
    yield server
    server.should_exit = server.force_exit = True
    await task


def test_a_client_that_does_not_read_its_response_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALL_TIMEOUT_S", 0.2)

    async def talk(_: object, __: object, send: Callable[..., Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left in reversed(range(100)):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": left > 0})

    async def stall() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            async with serving(tmp_path / "socket", talk) as server:
                client.connect(str(tmp_path / "socket"))
                client.sendall(STATUS + b"\r\n")
                await until(lambda: bool(server.server_state.connections))
                await until(lambda: not server.server_state.connections)
            return all_of(client)

    data = asyncio.run(stall())
    assert data.startswith(b"HTTP/1.1 200")
    assert len(data) < 2**20


@pytest.mark.parametrize("sent", [b"", b"no request\r\n\r\n"])
def test_a_client_that_does_not_read_before_the_close_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "STALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.2)

    async def talk(_: object, __: object, ___: object) -> None: ...

    async def leave() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            async with serving(tmp_path / "socket", talk) as server:
                client.connect(str(tmp_path / "socket"))
                await until(lambda: bool(server.server_state.connections))
                (connection,) = server.server_state.connections
                assert isinstance(connection, connections.Connection)
                connection.transport.set_write_buffer_limits(high=2**24)
                connection.transport.write(b"x" * 2**22)  # more than the socket buffers hold
                client.sendall(sent)
                await until(lambda: not server.server_state.connections)

    asyncio.run(leave())


class Application:
    """Notes the user of each request, and answers it."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(error_formats={})
        self.users: list[int] = []

    async def __call__(self, scope: Any, _: object, send: Callable[..., Awaitable[None]]) -> None:
        """Answer a request."""
        self.users.append(int(scope["state"]["user"].removeprefix("uid ")))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def behind(self, turns: Turns) -> AccessMiddleware:
        """Build the application as the API process does."""
        app: Any = self
        return AccessMiddleware(app, None, [], frozenset(), turns)


@pytest.fixture
def uids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide the list of the users of the next connections, in their order."""
    uids: list[int] = []

    def peer_of(_: object) -> Peer:
        return Peer(via="unix", uid=uids.pop(0))

    monkeypatch.setattr(connections, "peer_of", peer_of)
    return uids


@contextlib.contextmanager
def clients(path: Path, number: int) -> Iterator[list[socket.socket]]:
    """Connect some clients."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(number)]
        for client in opened:
            client.connect(str(path))
        yield opened


def test_two_readers_that_pipeline_delay_neither_root_nor_each_other(
    tmp_path: Path, uids: list[int]
) -> None:
    """The order shows it: all have sent their requests before the first one is answered."""
    share, each, path = connections.LIMITS["reader"].share, 5, tmp_path / "socket"
    application = Application()

    async def pipeline() -> None:
        async with serving(path, application.behind(LoopTurns())) as server:
            uids.extend([READERS[0]] * share + [READERS[1]] * share + [OWNER])
            with clients(path, 2 * share + 1) as opened:
                await until(lambda: len(server.server_state.connections) == 2 * share + 1)
                for client in opened:
                    client.sendall((STATUS + b"\r\n") * (1 if client is opened[-1] else each))
                await until(lambda: len(application.users) == 2 * share * each + 1)

    asyncio.run(pipeline())
    users = application.users
    assert users.index(OWNER) < 5
    users.remove(OWNER)
    for number in range(5, len(users)):
        counts = [users[:number].count(reader) for reader in READERS]
        assert abs(counts[0] - counts[1]) <= 5, number


def has_request(connection: object) -> bool:
    return isinstance(connection, connections.Connection) and connection.has_request()


def test_a_request_whose_client_leaves_while_it_waits_is_not_executed(
    tmp_path: Path, uids: list[int]
) -> None:
    application, turns, path = Application(), Turns(), tmp_path / "socket"

    async def leave() -> None:
        async with serving(path, application.behind(turns)) as server:
            assert await turns.take(None, Level.OWN, asyncio.get_running_loop().create_future())
            uids.extend([OWNER, READERS[0]])
            with clients(path, 2) as (leaves, stays):
                for client in (leaves, stays):
                    client.sendall(STATUS + b"\r\n")
                await until(lambda: sum(map(has_request, server.server_state.connections)) == 2)
                leaves.close()
                await until(lambda: len(server.server_state.connections) == 1)
                turns.end()
                await until(lambda: bool(application.users))

    asyncio.run(leave())
    assert application.users == [READERS[0]]


def test_a_closed_connection_leaves_memory_without_a_collection(
    tmp_path: Path, uids: list[int]
) -> None:
    application, path = Application(), tmp_path / "socket"

    async def close() -> None:
        async with serving(path, application.behind(LoopTurns())) as server:
            uids.append(OWNER)
            with clients(path, 1) as (client,):
                client.sendall(STATUS + b"\r\n")
                await until(lambda: bool(application.users))
                closed = [weakref.ref(one) for one in server.server_state.connections]
            assert len(closed) == 1
            await until(lambda: closed[0]() is None)

    gc.disable()
    try:
        asyncio.run(close())
    finally:
        gc.enable()
