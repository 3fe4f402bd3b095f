"""A fake daemon that only answers requests, for tests of the programs that start one.

Usage: fake_daemon.py MODE, where MODE is one of: answer, fail (exits with code 4 and a message),
fail-late (exits with code 5 and a message after its claim), hang (claims and never answers), crash
(SIGKILL).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.host.paths import places
from sentinel.supervisor.daemonize import redirect_output
from sentinel.supervisor.single_instance import claim


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send_json(200 if self.path == "/v1/health" else 404, {"schema_version": 1})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/v1/stop":
            self._send_json(
                200, {"cwd": str(Path.cwd()), "argv": sys.argv, "env": dict(os.environ)}
            )
            self.server.finished = True  # type: ignore[attr-defined]

    def _send_json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


def main(mode: str) -> int:
    if mode == "fail":
        print("sentinel: no such GPU: 9\nThere are: 0, 1", file=sys.stderr)
        return 4
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    paths = places(os.environ, os.getuid())
    try:
        claimed = claim(paths)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
        return int(error.exit_code)
    print("printed before")
    redirect_output(paths)
    print("printed by the daemon", flush=True)
    if mode == "fail-late":
        print("sentinel: there is no driver", file=sys.stderr)
        claimed.release()
        return 5
    if mode == "hang":
        signal.pause()
    server = HTTPServer(("", 0), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = claimed.socket
    server.finished = False  # type: ignore[attr-defined]
    while not server.finished:  # type: ignore[attr-defined]
        server.handle_request()
    claimed.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
