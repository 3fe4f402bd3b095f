"""Who is connected, what that client may do, and access control for all requests."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sentinel.api.bodies import CLOSE, in_format, problem
from sentinel.api.turns import Turns
from sentinel.host.lookups import USER_NAMES
from sentinel.host.procfs import read_stat
from sentinel.host.regular_file import open_regular, read_regular
from sentinel.protocol.commands import AccessPolicy, Caller, Level
from sentinel.protocol.problem import Code

#: Methods that change nothing.
READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: Requests for administrators: they concern all GPUs, or the daemon itself.
_ADMINISTRATION = frozenset(
    {
        ("POST", "/v1/stop"),
        ("POST", "/v1/restart"),
        ("POST", "/v1/reload"),
        ("PATCH", "/v1/settings"),
        ("POST", "/v1/burnin"),
        ("DELETE", "/v1/burnin"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/acknowledge"),
        ("PUT", "/api/gpu/config"),
    }
)
#: The beginning of the path of a session, which administrators end: sessions are settings.
_SESSION = "/v1/sessions/"

#: From Linux's <asm-generic/socket.h>; the socket module does not have it.
_SO_PEERGROUPS = 59
#: pid_t, uid_t, gid_t, as in struct ucred.
_UCRED = struct.Struct("iII")
#: The largest buffer of the standard library's getsockopt: 256 groups of four bytes.
_MAX_GROUPS_BYTES = 1024

#: A token has 43 characters; an administrator may write a longer one.
_MAX_TOKEN_BYTES = 4096

#: The size of a request line with its headers.
MAX_HEADER_BYTES = 16 * 1024
#: The size of a request's body.
MAX_BODY_BYTES = 64 * 1024
#: A larger body is read and discarded, up to this size.
_MAX_DISCARDED_BYTES = 2**20
#: What a client may do at a level below that of its request.
_MAY = {
    Level.NONE: "may not connect",
    Level.READ: "may only look",
    Level.OPERATE: "may operate, but not administer",
}


def needed_level(method: str, path: str) -> Level:
    """Determine the level that a request needs; the supervisor may refuse it nevertheless.

    It refuses, for example, to end the reservation of another user.
    """
    if method in READING:
        return Level.READ
    ends_session = method == "DELETE" and path.startswith(_SESSION)
    administers = ends_session or (method, path) in _ADMINISTRATION
    return Level.ADMINISTER if administers else Level.OPERATE


def local_level(peer: Peer, policy: AccessPolicy) -> Level:
    """Determine what a peer may do over the Unix socket."""
    if peer.uid in {0, os.getuid()}:
        return Level.OWN
    if policy.gid is not None and policy.gid in peer.groups:
        return max(policy.group, policy.users)
    return policy.users


def why_forbidden(peer: Peer, level: Level, needed: Level) -> str:
    """Explain a rejection: what the peer may do, and who grants more with which settings."""
    if peer.via == "tcp":
        # Nothing grants more to the token of readers.
        return (
            f"This token {_MAY[level]}; --access-tcp sets the level of the token in the file"
            " `token`, and of no other."
        )
    grant = "socket-group=GROUP access-group=administer"
    if needed <= Level.OPERATE:  # the highest that --access-users takes
        grant = f"access-users={needed.name.lower()}"
    owner = USER_NAMES.get(os.getuid()) or f"uid {os.getuid()}"
    return (
        f"{peer.caller(level)} {_MAY[level]}. Ask {owner}, who runs this daemon, for"
        f" `sentinel set --save {grant}` and `sentinel restart`."
    )


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end of a connection; ``None`` is unknown, as a PID of another PID namespace."""

    #: The kind of socket: ``unix`` or ``tcp``.
    via: str
    uid: int | None = None
    pid: int | None = None
    #: The start time of the process, read at the connection: the PID may be reused later.
    started: int | None = None
    groups: frozenset[int] = frozenset()
    #: The addresses of this end and of the other one, over TCP.
    address: str | None = None
    remote: str | None = None

    def caller(self, level: Level) -> Caller:
        """Convert the peer into the caller of a command."""
        return Caller(
            via=self.via,
            uid=self.uid,
            user=USER_NAMES.get(self.uid),
            pid=self.pid,
            started=self.started,
            level=level,
        )


def peer_of(connection: socket.socket) -> Peer:
    """Read the identity of the peer at the time of its connection."""
    if connection.family != socket.AF_UNIX:
        remote = None
        with contextlib.suppress(OSError):  # it has disconnected
            remote = str(connection.getpeername()[0])
        return Peer(via="tcp", address=str(connection.getsockname()[0]), remote=remote)
    pid, uid, gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    process = read_stat(pid) if pid else None
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):  # more groups than fit
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS_BYTES)
        groups = struct.unpack(f"{len(data) // 4}I", data)
    return Peer(
        via="unix",
        uid=uid,
        pid=pid or None,
        started=process.started if process else None,
        groups=frozenset({gid, *groups}),
    )


class TokenFile:
    """A file with a bearer token that only its owner can read.

    Args:
        path: The file; it is created with a new token if it does not exist or is empty.

    Attributes:
        was_empty: An empty file was replaced, such as one that lost its content with the power.

    Raises:
        OSError: The file does not exist or is empty, and cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self.was_empty = self._is_empty()
        if self.was_empty or not os.path.lexists(path):
            self._create()

    def _is_empty(self) -> bool:
        """Check for a file without a character; one that cannot be read is not taken for empty."""
        try:
            return not read_regular(self._path, _MAX_TOKEN_BYTES).strip(b"\0 \t\r\n")
        except OSError:
            return False

    def _create(self) -> None:
        """Write the file completely or not at all: one with a token is never written again."""
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self._path)
        finally:
            draft.unlink(missing_ok=True)

    def matches(self, header: str | None) -> bool:
        """Compare an Authorization header with the file's current token.

        Nothing matches a file that other users can read.
        """
        scheme, _, given = (header or "").partition(" ")
        token = self._read()
        if not token or scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(given.strip().encode(), token.encode())

    def _read(self) -> str:
        try:
            file = open_regular(self._path, os.O_RDONLY)
            try:
                found = os.fstat(file)
                if found.st_mode & 0o077 or found.st_uid not in {0, os.getuid()}:
                    return ""
                return os.read(file, _MAX_TOKEN_BYTES).decode("ascii").strip()
            finally:
                os.close(file)
        except (OSError, ValueError):
            return ""


class AccessMiddleware:
    """Passes complete requests with access to an application, and rejects all others.

    Args:
        app: The application, whose state has the formats of its errors.
        tcp: The configured address, ``host:port``; its name is valid in the Host header.
        tokens: The tokens of TCP clients, each with what its holders may do.
        public: The paths that need no token.
        turns: The order of the requests.
    """

    def __init__(
        self,
        app: FastAPI,
        tcp: str | None,
        tokens: Sequence[tuple[TokenFile, Level]],
        public: Collection[str],
        turns: Turns,
    ) -> None:
        self._app = app
        self._name = (tcp or "").rpartition(":")[0].strip("[]").lower()
        self._tokens = tokens
        self._public = public
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        headers = Headers(scope=scope)
        # The body is read before a rejection: many clients read no response while they send.
        received = await _read_body(headers, receive)
        if received is None:  # the client has disconnected, and its request must not be executed
            return
        body, rejection = received
        rejection = _ambiguous(scope, headers) or self._rejection(scope, headers) or rejection
        state = scope["state"]
        if not await state["take_turn"](self._turns, state["user"], state["level"]):
            return
        if rejection is not None:
            formats = self._app.state.error_formats
            await in_format(rejection, scope["path"], formats)(scope, receive, send)
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
        state = scope["state"]
        peer: Peer = state["peer"]
        if state["crowded"] is not None:
            return problem(Code.UNAVAILABLE, state["crowded"])
        if peer.via == "unix":
            return _below(scope)
        host = headers.get("host", "")
        if not self._is_own_name(host, peer):
            why = f"The host name {host!r} is not accepted: use the listening address or localhost."
            return problem(Code.FORBIDDEN, why, headers=CLOSE)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            why = "Pages from other origins have no access."
            return problem(Code.FORBIDDEN, why, headers=CLOSE)
        if scope["path"] in self._public:
            return None
        given = headers.get("authorization")
        found = [(level, token.name) for token, level in self._tokens if token.matches(given)]
        if not found:
            why = "Send the token of this daemon's token file: `Authorization: Bearer TOKEN`."
            challenge = {"www-authenticate": "Bearer"}
            return problem(Code.UNAUTHORIZED, why, headers=challenge | CLOSE)
        state["level"], state["user"] = max(found)
        crowded = state["prove"](state["user"])
        if crowded is not None:
            return problem(Code.UNAVAILABLE, crowded)
        return _below(scope)

    def _is_own_name(self, host: str, peer: Peer) -> bool:
        """Check a Host header: another name that resolves to this address is not accepted."""
        name = _without_port(host).lower()
        if name in {self._name, peer.address} and name:
            return True
        return name == "localhost" and ipaddress.ip_address(peer.address or "::").is_loopback


def _below(scope: Scope) -> Response | None:
    """Reject a request that needs a higher level, or return None."""
    peer, level = scope["state"]["peer"], scope["state"]["level"]
    needed = needed_level(scope["method"], scope["path"])
    if level >= needed:
        return None
    return problem(Code.FORBIDDEN, why_forbidden(peer, level, needed), headers=CLOSE)


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
