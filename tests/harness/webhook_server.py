"""A real HTTP server for webhooks that answers, fails, hangs, resets, redirects or trickles."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebhookServer:
    """A server on a free port of this host; a context manager.

    Args:
        tls: Its certificate, or None for plain HTTP.

    Attributes:
        behaviours: What the next requests get: a status, or ``hang``, ``reset``, ``trickle``,
            ``garbage``, ``silent`` (the connection is closed without an answer), ``announce``
            (103, then 200). 204 when the list is empty.
        received: The requests that were read.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.behaviours: list[int | str] = []
        self.received: list[Received] = []
        self.connections = 0
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://localhost:{self._socket.getsockname()[1]}/hook?team=gpu"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                self._answer(connection)
            except OSError:
                return
            finally:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            method, path, _ = file.readline().decode().split()
            headers = {}
            while line := file.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = file.read(int(headers.get("content-length", "0")))
        behaviour = self.behaviours.pop(0) if self.behaviours else 204
        self.received.append(Received(method, path, headers, body))
        match behaviour:
            case int():
                more = "Location: http://127.0.0.1:1/\r\n" if behaviour in range(300, 400) else ""
                head = f"HTTP/1.1 {behaviour} Some Reason\r\n{more}Content-Length: 0\r\n\r\n"
                connection.sendall(head.encode())
            case "announce":
                connection.sendall(
                    b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200\r\n"
                )
            case "hang":
                self._over.wait()
            case "trickle":
                while not self._over.wait(0.05):
                    connection.sendall(b"H")
            case "garbage":
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            case "reset":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
