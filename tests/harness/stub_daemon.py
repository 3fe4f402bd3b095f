"""A stub of the daemon: canned replies over real HTTP on a real Unix socket."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.harness.timing import TIMEOUT_S

GPU = {
    "gpu": "952937bc",
    "uuid": "GPU-952937bc-67d8-5168-8d5a-083882c8d660",
    "index": 0,
    "name": "Simulated GPU",
    "pci_bus_id": "00000000:01:00.0",
    "memory_total": 16 * 2**30,
    "occupancy": "IDLE",
    "stressor": "RUNNING",
    "admin": "ENABLED",
    "rule": "running",
    "reason": "running",
    "findings": 0,
    "since_s": 754.0,
    "read_s": 0.2,
    "processes": [],
    "pid": 4711,
    "memory_used": 14 * 2**30,
    "held": 14 * 2**30,
    "utilization": 1.0,
    "temperature_c": 64,
    "power_w": 698.4,
    "workload": "gemm",
    "flops_per_s": 656.2e12,
    "handover": {"ago_s": 180.0, "evidence": "memory", "exit": 0.193, "memory_back": 0.196},
}
DAEMON = {
    "pid": 4242,
    "version": "0.1.0",
    "phase": "occupying",
    "since": "2026-11-21T20:00:00Z",
    "driver": "580.65.06",
    "simulated": False,
    "workload": "gemm",
    "socket": "/run/sentinel/sentinel.sock",
    "log": None,
    "age_s": 0.1,
    "ending": None,
}
RESERVATION = {
    "schema_version": 1,
    "id": "1a2b3c4d",
    "gpus": [GPU["uuid"]],
    "indices": [0],
    "count": 1,
    "place": 0,
    "reason": "demo",
    "since": "2026-11-21T20:00:00Z",
    "until": "2026-11-21T22:00:00Z",
    "bound": False,
    "holder": {"uid": 1000, "user": "ana", "pid": 77, "name": "bash"},
}
#: The path under which a request for a new reservation is recorded.
NEW_ID = "/v1/reservations/*"
STATUS = {"daemon": DAEMON, "gpus": [GPU], "reservations": []}


@dataclass
class Reply:
    """One reply: an object, or raw bytes after which the connection is not used any more."""

    body: Mapping[str, Any] | bytes = field(default_factory=dict)
    status: int = 200
    content_type: str = "application/json"


def problem(code: str, detail: str, status: int = 400) -> Reply:
    """Build an error in the format of the daemon."""
    body = {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code}
    return Reply(body, status, "application/problem+json")


@dataclass
class StubDaemon:
    """The replies of a stub, and the requests that it received."""

    socket: Path
    #: The descriptor of the listening socket.
    listening: int = -1
    #: By method and path.
    replies: dict[str, Reply] = field(default_factory=dict)
    #: What is answered first, by method and path, each once.
    first: dict[str, list[Reply]] = field(default_factory=dict)
    #: Method and path, and the JSON body.
    requests: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def commands(self) -> list[tuple[str, Any]]:
        """The requests without the looks at the status, one of which precedes a long wait."""
        return [
            request
            for request in self.requests
            if request[0] not in {"GET /v1/status", "GET /v1/settings"}
        ]

    headers: list[Mapping[str, str]] = field(default_factory=list)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def stub_daemon(socket: Path, status: Mapping[str, Any] = STATUS) -> Iterator[StubDaemon]:
    """Serve canned replies on a socket until the block ends; the first is this status."""
    daemon = StubDaemon(socket)
    daemon.replies["GET /v1/status"] = Reply(status)
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "a client"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            # The client chooses the id of a reservation.
            path = re.sub("^/v1/reservations/[0-9a-f]{8}$", NEW_ID, self.path)
            what = f"{self.command} {path if self.command == 'PUT' else self.path}"
            daemon.requests.append((what, body))
            daemon.headers.append(dict(self.headers))
            once = daemon.first.get(what)
            reply = (once.pop(0) if once else daemon.replies.get(what)) or problem(
                "not_found", f"no resource at {self.path}", 404
            )
            if isinstance(reply.body, bytes):
                self.wfile.write(reply.body)
                self.wfile.flush()
                if reply.status == 0:  # it hangs
                    stopped.wait(TIMEOUT_S)
                return
            data = json.dumps({"schema_version": 1, **reply.body}).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the server's names

    with _Server(str(socket), Handler) as server:
        daemon.listening = server.fileno()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield daemon
        finally:
            stopped.set()
            server.shutdown()
            thread.join()
