"""A thousand clients that use sentinel's socket at once, repeatedly; see README.md.

They read the status, pause and reserve unknown GPUs, send garbage, and send incomplete requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import time
from itertools import cycle

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


class Crowd:
    """Clients that send the next request once the last one is answered.

    Args:
        path: The socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.answers: dict[str, int] = {}

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


async def _run(path: str, clients: int) -> None:
    crowd = Crowd(path)
    tasks = [asyncio.create_task(crowd.client(number)) for number in range(clients)]
    began = time.monotonic()
    print(json.dumps({"ready": True}), flush=True)
    while True:
        await asyncio.sleep(1.0)
        print(json.dumps({"s": time.monotonic() - began, "answers": crowd.answers}), flush=True)
        for task in tasks:
            if task.done():
                task.result()  # an error of the benchmark ends it


def main() -> None:
    """Run until the benchmark ends this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_clients", description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--clients", type=int, default=1000)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(given.socket, given.clients))


if __name__ == "__main__":
    main()
