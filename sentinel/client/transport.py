"""One request to the daemon, over its socket or TCP, and one answer: bounded, checked, in words.

Each request has a connection of its own, so a service that was replaced in between is no matter.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    NoSuchGpuError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from sentinel.host.procfs import read_stat
from sentinel.units import format_duration

#: The largest answer that is taken in, in bytes; thousands of GPUs fit.
MAX_ANSWER = 16 * 2**20

#: pid_t, uid_t, gid_t, as in struct ucred.
_UCRED = struct.Struct("iII")

#: How long to wait between tries while the daemon has more connections waiting than it may.
_CROWDED = 0.02

#: What the codes of the daemon's problems mean to a caller; all others are a ServiceError.
_PROBLEMS: dict[str, type[SentinelError]] = {
    "no_such_gpu": NoSuchGpuError,
    "unauthorized": AccessDeniedError,
    "forbidden": AccessDeniedError,
    "invalid": ConfigError,
    "conflict": ConflictError,
    "timeout": TimedOutError,
}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a daemon is: the path of its socket, or else a host and port and the token for it."""

    socket: str = ""
    host: str = ""
    port: int = 0
    token: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else self.socket


class _Bounded(socket.socket):
    """A socket whose every wait ends by one deadline, however slowly the other side talks.

    ``deadline`` is in seconds of the monotonic clock.
    """

    deadline = 0.0

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: There are none.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.left())
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(self.left())
        super().sendall(data, flags)


class _Connection(http.client.HTTPConnection):
    """HTTP to an address, by a deadline."""

    def __init__(self, address: Address, timeout: float) -> None:
        super().__init__(address.host or "localhost", address.port or 80)
        self.address = address
        self.deadline = time.monotonic() + timeout
        self.bounded: _Bounded | None = None
        self.opened: Callable[[socket.socket], None] = lambda _: None

    def connect(self) -> None:
        if self.address.host:
            left = max(self.deadline - time.monotonic(), 0.001)
            with socket.create_connection((self.host, self.port), left) as plain:
                bounded = _Bounded(fileno=plain.detach())
            bounded.deadline = self.deadline
        else:
            bounded = _connect_to(self.address.socket, self.deadline)
        self.sock = self.bounded = bounded
        self.opened(bounded)


def _connect_to(path: str, deadline: float) -> _Bounded:
    """Return a connection to the socket at ``path``.

    Where the daemon has no room for another one yet, a socket says so at once, unlike TCP.
    """
    sock = _Bounded(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.deadline = deadline
    try:
        while True:
            sock.settimeout(sock.left())
            try:
                sock.connect(path)
            except BlockingIOError:
                time.sleep(_CROWDED)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


# --- asking ----------------------------------------------------------------------------------


def ask(
    address: Address, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
) -> dict[str, Any]:
    """Return the JSON object that the daemon answers; ``timeout`` in seconds is for all of it.

    Raises:
        NotRunningError: No daemon listens there.
        AccessDeniedError: This user, or this token, may not.
        NoSuchGpuError: A selector names no GPU.
        ConfigError: The request or a setting in it is not allowed.
        ConflictError: Somebody else has what was asked for.
        TimedOutError: It was not done, or not answered, in time.
        ServiceError: Anything else that went wrong.
    """
    connection = _Connection(address, timeout)
    try:
        with _in_words(address, timeout):
            response = _send(connection, method, path, body, {})
            text = response.read(MAX_ANSWER + 1)
            if response.length and len(text) <= MAX_ANSWER:
                raise http.client.IncompleteRead(text, response.length)
    finally:
        connection.close()
    if len(text) > MAX_ANSWER:
        raise ServiceError(f"the daemon at {address} answers with more than {MAX_ANSWER} bytes")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not 200 <= response.status < 300:  # noqa: PLR2004 - what HTTP calls a success
        raise _problem(address, response.status, answer)
    if not isinstance(answer, dict):
        raise ServiceError(f"what answers at {address} is no sentinel daemon: {text[:60]!r}")
    return answer


def listen(
    address: Address,
    path: str,
    headers: Mapping[str, str],
    timeout: float,
    silence: float,
    opened: Callable[[socket.socket], None] = lambda _: None,
) -> Iterator[str]:
    """Yield the lines of a stream, without their ends, until the daemon ends it.

    Args:
        address: Where the daemon is.
        path: What is asked for.
        headers: Headers to send besides our own.
        timeout: Seconds until it must have begun.
        silence: The most seconds between two lines.
        opened: Called with the socket once it is connected; to shut it down ends the stream.

    Raises:
        SentinelError: As :func:`ask`; also where the daemon goes away.
    """
    connection = _Connection(address, timeout)
    connection.opened = opened
    try:
        with _in_words(address, timeout):
            response = _send(connection, "GET", path, None, headers)
            if response.status != http.client.OK:
                text = response.read(MAX_ANSWER)
                with contextlib.suppress(ValueError):
                    raise _problem(address, response.status, json.loads(text))
                raise _problem(address, response.status, None)
        while True:
            with _in_words(address, silence):
                if connection.bounded is not None:
                    connection.bounded.deadline = time.monotonic() + silence
                line = response.readline(MAX_ANSWER)
            if not line:
                return
            yield line.decode(errors="replace").rstrip("\r\n")
    finally:
        connection.close()


def listener(address: Address, timeout: float) -> int | None:
    """Return the PID of who listens at an address, as the kernel knows it; nothing is sent.

    It is the number in our own PID namespace; ``None`` where there is none, over TCP, and where
    nobody takes a connection within ``timeout`` seconds.
    """
    if address.host:
        return None
    try:
        with _connect_to(address.socket, time.monotonic() + timeout) as sock:
            size = _UCRED.size
            pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError:
        return None
    return pid or None


def _send(
    connection: _Connection,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    """Send a request and return the beginning of the answer."""
    sent = {"Accept": "application/json", "Connection": "close", **headers}
    if body is not None:
        sent["Content-Type"] = "application/json"
    if connection.address.token is not None:
        sent["Authorization"] = f"Bearer {connection.address.token}"
    data = None if body is None else json.dumps(body).encode()
    connection.connect()
    # A daemon that refuses before it has read everything closes, and its answer can still be read.
    with contextlib.suppress(BrokenPipeError):
        connection.request(method, path, data, sent)
    return connection.getresponse()


# --- errors ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_words(address: Address, timeout: float) -> Iterator[None]:
    """Turn what can go wrong on the way into our own errors."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise NotRunningError(
            f"no sentinel daemon runs at {address}",
            "Start one with `sentinel start`, or say where it is: --socket PATH, SENTINEL_SOCKET.",
        ) from error
    except PermissionError as error:
        raise AccessDeniedError(
            f"this user may not use the daemon at {address}",
            "Ask as the user that runs it, as root, or as a member of its group.",
        ) from error
    except TimeoutError as error:
        raise TimedOutError(
            f"the daemon at {address} did not answer within {format_duration(timeout)}"
        ) from error
    except (http.client.HTTPException, ConnectionError, http.client.IncompleteRead) as error:
        gone = isinstance(error, ConnectionError | http.client.IncompleteRead)
        how = "went away in the middle of its answer" if gone else "does not answer with HTTP"
        raise ServiceError(f"the daemon at {address} {how}", "See: sentinel status") from error
    except OSError as error:
        if error.errno is None or error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{address} cannot be the path of a socket: {error}") from error
        raise NotRunningError(f"the daemon at {address} cannot be reached: {error}") from error


def _problem(address: Address, status: int, body: Any) -> SentinelError:
    """Return the error for an answer that is no success."""
    if not isinstance(body, dict) or not isinstance(body.get("title"), str):
        return ServiceError(f"the daemon at {address} answers with HTTP status {status}")
    what = body.get("detail") or body["title"]
    kind = _PROBLEMS.get(str(body.get("code")), ServiceError)
    return kind(str(what))


#: How long the daemon may take to have room for a connection, in seconds.
_ROOM_WITHIN = 2.0


class _Asked(Protocol):
    """As much of a client as is needed here."""

    address: Address

    def health(self) -> bool:
        """Return whether the daemon is well."""


def departure(client: _Asked, pid: int) -> Callable[[], bool]:
    """Return what says whether the daemon, which is this process, has gone; call it before.

    Its process tells best: it listens on its socket for longer than it answers. But what a daemon
    says of itself is its number in its own PID namespace, and here a stranger may have that one. So
    it counts only if the kernel has the same for who listens on the socket. Otherwise, and on
    another host, nobody listening any more has to do.
    """
    known = listener(client.address, _ROOM_WITHIN) == pid
    before = read_stat(pid) if known else None
    if before is not None:
        started = before.started

        def gone() -> bool:
            now = read_stat(pid)
            return now is None or not now.alive or now.started != started

        return gone

    def silent() -> bool:
        try:
            client.health()
        except NotRunningError:
            return True
        except SentinelError:
            return False
        return False

    return silent
