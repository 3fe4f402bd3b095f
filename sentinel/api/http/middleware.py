"""Lets requests in: from whom, to which name, and how large; the others hear why not."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from sentinel.api.http.auth import Peer, Secret
from sentinel.api.http.errors import problem
from sentinel.api.web import OPEN
from sentinel.protocol.api_types import Code

#: The most bytes that the body of a request may have.
MOST_BODY = 64 * 1024
#: A body that is larger than that, but not than this, is read and thrown away.
_MOST_READ = 2**20

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]

#: A response that leaves a request unread ends the connection.
_CLOSE = {"connection": "close"}


class AccessMiddleware:
    """An application around another one, which gets whole requests of those who may ask.

    Args:
        app: Gets what is let in.
        group: Whose members may use the Unix socket, besides our own user and root.
        tcp: The address that was asked for, ``host:port``; its name may be used in Host.
        secret: What clients over TCP must know; without it none is let in.
    """

    def __init__(
        self, app: _App, group: int | None, tcp: str | None, secret: Secret | None
    ) -> None:
        self._app = app
        self._group = group
        self._name = (tcp or "").rpartition(":")[0].strip("[]").lower()
        self._secret = secret

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Hand on a request, or answer it."""
        headers = Headers(scope=scope)
        # Read before it is refused: many a client does not look for an answer while it sends.
        whole = await _whole(headers, receive)
        if whole is None:  # it has gone, and what it began to ask for is not carried out
            return
        body, refused = whole
        refused = self._refusal(scope, headers) or refused
        if refused is not None:
            await refused(scope, receive, send)
            return
        given = False

        async def once_and_on() -> _Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, once_and_on, send)

    def _refusal(self, scope: _Message, headers: Headers) -> Response | None:
        """Return why a request is not let in, or ``None``."""
        peer: Peer = scope["state"]["peer"]
        if scope["state"]["crowded"]:
            why = "There are too many connections; try it again in a moment."
            return problem(Code.UNAVAILABLE, why, headers=_CLOSE)
        if peer.via == "unix":
            if peer.uid in {0, os.getuid()} or self._group in peer.groups:
                return None
            why = f"User {peer.uid} may not use this socket; its owner and its group may."
            return problem(Code.FORBIDDEN, why, headers=_CLOSE)
        host = headers.get("host", "")
        if not self._ours(host, peer):
            why = f"This is not called {host!r}: use the address that it listens on, or localhost."
            return problem(Code.FORBIDDEN, why, headers=_CLOSE)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return problem(Code.FORBIDDEN, "Pages from elsewhere may not ask.", headers=_CLOSE)
        if scope["path"] in OPEN:  # the page itself, which has no secret in it, and asks for one
            return None
        if self._secret is None or not self._secret.matches(headers.get("authorization")):
            why = "Send the token of this daemon's token file: `Authorization: Bearer TOKEN`."
            challenge = {"www-authenticate": "Bearer"}
            return problem(Code.UNAUTHORIZED, why, headers=challenge | _CLOSE)
        return None

    def _ours(self, host: str, peer: Peer) -> bool:
        """Return whether a Host header names us: a page's own name that resolves to us does not."""
        name = _without_port(host).lower()
        if name in {self._name, peer.address} and name:
            return True
        return name == "localhost" and ipaddress.ip_address(peer.address or "::").is_loopback


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]")


async def _whole(headers: Headers, receive: _Receive) -> tuple[bytes, Response | None] | None:
    """Return the body of a request, and why it is not taken if so; ``None`` where it never came."""
    why = f"The body of a request may have {MOST_BODY} bytes."
    too_large = problem(Code.TOO_LARGE, why, headers=_CLOSE)
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > _MOST_READ:
        return b"", too_large
    body, size = b"", 0
    while size <= _MOST_READ:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        body = body + piece if size <= MOST_BODY else b""
        if not message.get("more_body", False):
            break
    return body, (too_large if size > MOST_BODY else None)
