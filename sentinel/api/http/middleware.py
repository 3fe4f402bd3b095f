"""Access control for all requests: peer, host name, origin, token and body size."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sentinel.api.http.auth import Peer, TokenFile
from sentinel.api.http.errors import CLOSE, problem, too_many_connections
from sentinel.api.http.levels import local_level, needed_level, why_forbidden
from sentinel.api.http.page import PUBLIC_PATHS
from sentinel.protocol.caller import Level
from sentinel.protocol.commands import AccessPolicy
from sentinel.protocol.problem import Code

#: The size of a request line with its headers.
MAX_HEADER_BYTES = 16 * 1024
#: The size of a request's body.
MAX_BODY_BYTES = 64 * 1024
#: A larger body is read and discarded, up to this size.
_MAX_DISCARDED_BYTES = 2**20


class AccessMiddleware:
    """Passes complete requests with access to an application, and rejects all others.

    Args:
        app: The application.
        policy: Who may do what.
        tcp: The configured address, ``host:port``; its name is valid in the Host header.
        tokens: The tokens of TCP clients, each with what its holders may do.
    """

    def __init__(
        self,
        app: ASGIApp,
        policy: AccessPolicy,
        tcp: str | None,
        tokens: Sequence[tuple[TokenFile, Level]],
    ) -> None:
        self._app = app
        self._policy = policy
        self._name = (tcp or "").rpartition(":")[0].strip("[]").lower()
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        headers = Headers(scope=scope)
        # The body is read before a rejection: many clients read no response while they send.
        received = await _read_body(headers, receive)
        if received is None:  # the client has disconnected, and its request must not be executed
            return
        body, rejection = received
        rejection = _ambiguous(scope, headers) or self._rejection(scope, headers) or rejection
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        body_sent = False

        async def replay() -> Message:
            nonlocal body_sent
            if body_sent:
                return await receive()
            body_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    def _rejection(self, scope: Scope, headers: Headers) -> Response | None:
        """Build the response to a request without access, or None if it has access."""
        peer: Peer = scope["state"]["peer"]
        if scope["state"]["crowded"]:
            return too_many_connections()
        if peer.via == "unix":
            return self._below(scope, peer, local_level(peer, self._policy))
        host = headers.get("host", "")
        if not self._is_own_name(host, peer):
            why = f"The host name {host!r} is not accepted: use the listening address or localhost."
            return problem(Code.FORBIDDEN, why, headers=CLOSE)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            why = "Pages from other origins have no access."
            return problem(Code.FORBIDDEN, why, headers=CLOSE)
        if scope["path"] in PUBLIC_PATHS:
            return None
        given = headers.get("authorization")
        levels = [level for token, level in self._tokens if token.matches(given)]
        if not levels:
            why = "Send the token of this daemon's token file: `Authorization: Bearer TOKEN`."
            challenge = {"www-authenticate": "Bearer"}
            return problem(Code.UNAUTHORIZED, why, headers=challenge | CLOSE)
        if not scope["state"]["prove"]():
            return too_many_connections()
        return self._below(scope, peer, max(levels))

    def _below(self, scope: Scope, peer: Peer, level: Level) -> Response | None:
        """Store the level of a request's peer; reject a request that needs a higher one."""
        scope["state"]["level"] = level
        needed = needed_level(scope["method"], scope["path"])
        if level >= needed:
            return None
        return problem(Code.FORBIDDEN, why_forbidden(peer, level, needed), headers=CLOSE)

    def _is_own_name(self, host: str, peer: Peer) -> bool:
        """Check a Host header: another name that resolves to this address is not accepted."""
        name = _without_port(host).lower()
        if name in {self._name, peer.address} and name:
            return True
        return name == "localhost" and ipaddress.ip_address(peer.address or "::").is_loopback


def _ambiguous(scope: Scope, headers: Headers) -> Response | None:
    """Reject what programs between client and daemon may read in another way, and too much of it.

    h11 reads a body with both headers as chunked (RFC 9112, section 6.1, allows a rejection), and
    limits only what it has to wait for.
    """
    if "content-length" in headers and "transfer-encoding" in headers:
        why = "A request has Content-Length or Transfer-Encoding, not both."
        return problem(Code.INVALID, why, status=HTTPStatus.BAD_REQUEST, headers=CLOSE)
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(text) + len(": \r\n") for name, text in headers.raw)
    if size > MAX_HEADER_BYTES:
        why = f"The request line and the headers may have {MAX_HEADER_BYTES} bytes."
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return problem(Code.TOO_LARGE, why, status=status, headers=CLOSE)
    return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]")


async def _read_body(headers: Headers, receive: Receive) -> tuple[bytes, Response | None] | None:
    """Read the body of a request.

    Returns:
        The body and, if it is too large, a rejection; or None if the client has disconnected.
    """
    why = f"The body of a request may have {MAX_BODY_BYTES} bytes."
    too_large = problem(Code.TOO_LARGE, why, headers=CLOSE)
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > _MAX_DISCARDED_BYTES:
        return b"", too_large
    body, size = b"", 0
    while size <= _MAX_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        body = body + chunk if size <= MAX_BODY_BYTES else b""
        if not message.get("more_body", False):
            break
    return body, (too_large if size > MAX_BODY_BYTES else None)
