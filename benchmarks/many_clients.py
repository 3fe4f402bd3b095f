"""A thousand clients that use sentinel's socket at once, repeatedly; see README.md.

They read the status, pause and reserve unknown GPUs, send garbage, and send incomplete requests.
With ``--hostile``, most of them are slow, half-open or malformed, or do not read, and a twentieth
floods; with ``--port``, every second one comes over TCP, without a valid token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
from collections.abc import Sequence
from itertools import cycle

from benchmarks.client_process import run_clients

#: The time limit of one request.
_TIMEOUT_S = 10.0

_BODY = b'{"gpus": ["GPU-none"], "seconds": 1, "reason": "crowd", "wait_s": 0}'


def _request(line: bytes, body: bytes = b"") -> bytes:
    head = b"%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n"
    return head % (line, len(body)) + b"Content-Type: application/json\r\n\r\n" + body


#: The requests: most need an answer, and none may have an effect.
_REQUESTS = (
    _request(b"GET /v1/status"),
    _request(b"GET /v1/gpus/0"),
    _request(b"POST /v1/pause", _BODY),
    _request(b"POST /v1/reservations", _BODY),
    _request(b"GET /v1/status"),
    b"\x16\x03\x01 garbage\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\nHost: local",
)


#: What hostile clients send: pieces, with a pause before each but the first.
_SLOW = tuple(bytes([byte]) for byte in _REQUESTS[0])
_HOSTILE = {
    "slow": _SLOW,
    "silent": (b"",),
    "half a head": (b"GET /v1/status HTTP/1.1\r\nHost: local",),
    "half a body": (_request(b"POST /v1/pause", _BODY)[:-20],),
    "malformed": (b"\x16\x03\x01 garbage\r\n\r\n",),
    "too large": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",),
    "wrong token": (
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n",
    ),
    "never reads": (b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n",),
}
#: One in so many hostile clients floods instead: it sends whole requests without a pause.
_FLOOD_EVERY = 20
#: The pause of a slow client between two bytes, and of the others between two connections.
_BYTE_S, _PAUSE_S = 0.2, 1.0


class Crowd:
    """Clients that send the next request once the last one is answered.

    Args:
        path: The socket.
        port: The TCP port of the same API, for every second client; None without TCP.
    """

    def __init__(self, path: str, port: int | None = None) -> None:
        self._path = path
        self._port = port
        self.answers: dict[str, int] = {}

    async def hostile(self, number: int) -> None:
        """Misbehave in one way, again and again."""
        if number % _FLOOD_EVERY == 0:
            await self.client(number)
        kind, pieces = list(_HOSTILE.items())[number % len(_HOSTILE)]
        port = self._port if number // len(_HOSTILE) % 2 else None
        while True:
            outcome = "kept"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * _TIMEOUT_S):
                    outcome = await self._misbehave(pieces, port, reads=kind != "never reads")
            name = f"{kind}: {outcome}"
            self.answers[name] = self.answers.get(name, 0) + 1
            await asyncio.sleep(_PAUSE_S)

    async def _misbehave(self, pieces: Sequence[bytes], port: int | None, *, reads: bool) -> str:
        """Send some pieces slowly; return the status of the answer, or how the connection ended."""
        try:
            if port is None:
                reader, writer = await asyncio.open_unix_connection(self._path)
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            return type(error).__name__
        try:
            for piece in pieces:
                writer.write(piece)
                if len(pieces) > 1:
                    await asyncio.sleep(_BYTE_S)
            if not reads:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(_TIMEOUT_S)
                return "kept"
            head = await reader.readline()
            return head.split(b" ")[1].decode() if head.startswith(b"HTTP/") else "closed"
        except OSError as error:
            return type(error).__name__
        finally:
            writer.close()

    async def client(self, number: int) -> None:
        """Send one request after the other, without end."""
        requests = cycle(
            _REQUESTS[number % len(_REQUESTS) :] + _REQUESTS[: number % len(_REQUESTS)]
        )
        for request in requests:
            answer = "timeout"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    answer = await self._send(request)
            self.answers[answer] = self.answers.get(answer, 0) + 1

    async def _send(self, request: bytes) -> str:
        """Return the status of the answer, or the kind of failure."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            await asyncio.sleep(0.05)
            return type(error).__name__
        try:
            writer.write(request)
            head = await reader.readline()
            await reader.read()
            return head.split(b" ")[1].decode() if head.startswith(b"HTTP/") else "closed"
        except OSError as error:
            return type(error).__name__
        finally:
            writer.close()


async def _run(crowd: Crowd, clients: int, *, hostile: bool) -> None:
    client = crowd.hostile if hostile else crowd.client
    await run_clients(map(client, range(clients)), lambda: {"answers": crowd.answers})


def main() -> None:
    """Run until the benchmark ends this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_clients", description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--hostile", action="store_true", help="most of them misbehave")
    parser.add_argument("--port", type=int, help="every second hostile one comes over TCP")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd(given.socket, given.port)
    asyncio.run(_run(crowd, given.clients, hostile=given.hostile))


if __name__ == "__main__":
    main()
