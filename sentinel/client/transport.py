"""HTTP over the daemon's Unix socket or TCP: deadlines, size limits and translated errors.

Each request has its own connection, so that a replaced API process does not matter.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from sentinel.client.http_response import (
    CutShortError,
    InvalidResponseError,
    Response,
    request_bytes,
)
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    ConnectionLostError,
    NoSuchGpuError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from sentinel.host.keepalive import keep_alive
from sentinel.host.procfs import read_stat
from sentinel.units import format_duration

#: The largest accepted response; thousands of GPUs fit.
MAX_RESPONSE_BYTES = 16 * 2**20

#: HTTP's range of success.
_OK, _MULTIPLE_CHOICES = 200, 300

#: pid_t, uid_t, gid_t, as in struct ucred.
_UCRED = struct.Struct("iII")

#: The pause between attempts to connect while the daemon's backlog is full.
_CONNECT_RETRY_S = 0.02
#: The longest time for a TCP connection; the kernel gives up after about two minutes.
_MAX_CONNECT_S = 300.0
#: The longest timeout of a socket: poll() takes 31 bits of milliseconds.
_MAX_TIMEOUT_S = 2_000_000.0
#: The time for the daemon's backlog to have room.
_CONNECT_TIMEOUT_S = 2.0

#: The errors by the code of a problem; all others are a ServiceError.
_ERRORS: dict[str, type[SentinelError]] = {
    "unauthorized": AccessDeniedError,
    "starting": ConnectionLostError,
    **{
        kind.code: kind
        for kind in (AccessDeniedError, ConfigError, ConflictError, NoSuchGpuError, TimedOutError)
    },
}


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a daemon: a socket's path, or a host and port with their token."""

    socket: str = ""
    host: str = ""
    port: int = 0
    token: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else self.socket


class _DeadlineSocket(socket.socket):
    """A socket with one deadline for all operations, however slowly the peer sends."""

    #: Of the monotonic clock.
    deadline = 0.0

    def remaining_s(self) -> float | None:
        """Compute the time until the deadline; None if ``settimeout`` takes no such time.

        Raises:
            TimeoutError: The deadline has passed.
        """
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return None if remaining > _MAX_TIMEOUT_S else remaining

    def postpone(self, timeout: float) -> None:
        """Move the deadline to ``timeout`` seconds from now."""
        self.deadline = time.monotonic() + timeout

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.remaining_s())
        try:
            return super().recv_into(buffer, nbytes, flags)
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:  # of keep_alive(), not of the deadline
                raise ConnectionResetError(*error.args) from error
            raise

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(self.remaining_s())
        super().sendall(data, flags)


@contextlib.contextmanager
def _exchange(
    address: Address,
    timeout: float,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    on_connect: Callable[[socket.socket], None] = lambda _: None,
) -> Iterator[tuple[Response, _DeadlineSocket]]:
    """Connect, send one request, and read the head of the response; the block may read its body.

    Args:
        address: The daemon's address.
        timeout: Seconds from now until the deadline of the socket.
        method: The HTTP method.
        path: The path and query.
        body: The JSON object to send, or None for no body.
        headers: Additional headers.
        on_connect: Called with the socket once it is connected.
    """
    sent = {"Accept": "application/json", "Connection": "close", **(headers or {})}
    if body is not None:
        sent["Content-Type"] = "application/json"
    if address.token is not None:
        sent["Authorization"] = f"Bearer {address.token}"
    data = None if body is None else _encode(body)
    host = f"[{address.host}]" if ":" in address.host else address.host
    host = f"{host}:{address.port}" if host else "localhost"
    with _connect(address, time.monotonic() + timeout) as sock:
        on_connect(sock)
        # A daemon that rejects a request before reading all of it closes; its response is readable.
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(request_bytes(method, path, host, sent, data))
        with cast("BinaryIO", sock.makefile("rb")) as file:
            yield Response(file), sock


def describe(value: object) -> str:
    """Describe an object for people by its kind: Python's own form may have its address."""
    is_empty = isinstance(value, list | tuple | dict) and not value
    if value is None or is_empty or isinstance(value, str | int | float):
        return repr(value)
    name = getattr(value, "__qualname__", None)
    if name is None:
        return f"an object of the class {type(value).__qualname__}"
    return f"the {'class' if isinstance(value, type) else 'function'} {name}"


def _encode(body: Mapping[str, Any]) -> bytes:
    """Encode the body of a request.

    Raises:
        ConfigError: A field cannot be sent.
    """
    fields = []
    for name, value in body.items():
        try:
            fields.append(f"{json.dumps(name)}:{json.dumps(value)}")
        except TypeError:
            what = f"{name}: {describe(value)} cannot be sent"
            raise ConfigError(what, "Give text, a number, or a list of those.") from None
    return f"{{{','.join(fields)}}}".encode()


def _connect(address: Address, deadline: float) -> _DeadlineSocket:
    if not address.host:
        return _connect_unix(address.socket, deadline)
    remaining = min(max(deadline - time.monotonic(), 0.001), _MAX_CONNECT_S)
    with socket.create_connection((address.host, address.port), remaining) as plain:
        sock = _DeadlineSocket(fileno=plain.detach())
    keep_alive(sock)
    sock.deadline = deadline
    return sock


def _connect_unix(path: str, deadline: float) -> _DeadlineSocket:
    """Connect to the socket at ``path``.

    While the backlog is full, connecting to a Unix socket fails at once, unlike with TCP.
    """
    sock = _DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.deadline = deadline
    try:
        while True:
            sock.settimeout(sock.remaining_s())
            try:
                sock.connect(path)
            except BlockingIOError:
                time.sleep(_CONNECT_RETRY_S)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


# --- requests --------------------------------------------------------------------------------


def send(
    address: Address, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
) -> dict[str, Any]:
    """Send a request, and parse the JSON object of the response.

    Args:
        address: The daemon's address.
        method: The HTTP method.
        path: The path and query.
        body: The JSON object to send, or None for no body.
        timeout: Seconds until the response must be complete.

    Raises:
        NotRunningError: No daemon listens at the address.
        AccessDeniedError: This user or this token has no access.
        NoSuchGpuError: A selector matches no GPU.
        ConfigError: The request or a setting in it is invalid.
        ConflictError: The request conflicts with another user's.
        TimedOutError: The command or the response was not complete in time.
        ServiceError: All other errors.
    """
    with (
        _translated_errors(address, timeout),
        _exchange(address, timeout, method, path, body) as (response, _),
    ):
        text = response.read(MAX_RESPONSE_BYTES + 1)
    if len(text) > MAX_RESPONSE_BYTES:
        what = f"the response of the daemon at {address} exceeds {MAX_RESPONSE_BYTES} bytes"
        raise ServiceError(what)
    parsed = _parse(text)
    if not _OK <= response.status < _MULTIPLE_CHOICES:
        raise refusal(address, response.status, parsed)
    if not isinstance(parsed, dict):
        raise ServiceError(f"{address} is not a sentinel daemon: it sent {text[:60]!r}")
    return parsed


def stream_lines(
    address: Address,
    path: str,
    headers: Mapping[str, str],
    timeout: float,
    silence: float,
    on_connect: Callable[[socket.socket], None] = lambda _: None,
) -> Iterator[str]:
    """Yield the lines of a stream, without line ends, until the daemon ends it.

    Args:
        address: The daemon's address.
        path: The path and query.
        headers: Additional headers.
        timeout: Seconds until the response must have started.
        silence: The maximum time between two lines, in seconds.
        on_connect: Called with the socket once it is connected; shutting it down ends the stream.

    Raises:
        SentinelError: As :func:`send`; also if the connection breaks.
    """
    with contextlib.ExitStack() as resources:
        with _translated_errors(address, timeout):
            response, sock = resources.enter_context(
                _exchange(address, timeout, "GET", path, None, headers, on_connect)
            )
            if response.status != _OK:
                body = _parse(response.read(MAX_RESPONSE_BYTES))
                raise refusal(address, response.status, body)
        lines = response.lines(MAX_RESPONSE_BYTES, lambda: sock.postpone(silence))
        while True:
            with _translated_errors(address, silence):
                line = next(lines, None)
            if line is None:
                return
            yield line.decode(errors="replace").rstrip("\r")


def refusal(address: Address, status: int, body: Any) -> SentinelError:
    """Build the error for a failed request.

    Args:
        address: The address of the daemon.
        status: The HTTP status.
        body: The parsed body, which should be a problem (RFC 9457).
    """
    if not isinstance(body, dict) or not isinstance(body.get("title"), str):
        return ServiceError(f"the daemon at {address} answers with HTTP status {status}")
    code = str(body.get("code"))
    error = _ERRORS.get(code, ServiceError)(str(body.get("detail") or body["title"]))
    # The detail is for clients that write HTTP themselves.
    if code == "unauthorized" and address.host:
        what = "needs its token" if address.token is None else "does not accept this token"
        error = AccessDeniedError(
            f"the daemon at {address} {what}",
            "Give a copy of its file `token`, or `token-read`: --token FILE, or"
            " SENTINEL_TOKEN_FILE.",
        )
    error.code = code
    return error


def listener_pid(address: Address, timeout: float) -> int | None:
    """Read the PID of the process that listens at a socket from the kernel, without a request.

    Returns:
        The PID in this PID namespace, or None if it is not visible here, over TCP, or if no process
        accepts a connection within ``timeout`` seconds.
    """
    if address.host:
        return None
    try:
        with _connect_unix(address.socket, time.monotonic() + timeout) as sock:
            size = _UCRED.size
            pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError:
        return None
    return pid or None


def _parse(text: bytes) -> Any:
    """Parse JSON; None if it is invalid."""
    try:
        return json.loads(text)
    except ValueError:
        return None


# --- errors ----------------------------------------------------------------------------------


def _start_command() -> str:
    """Return the command that starts the daemon that commands look for."""
    simulated = os.environ.get("SENTINEL_SIM_DIR") and not os.environ.get("SENTINEL_SOCKET")
    return "`sentinel start --simulate N`" if simulated else "`sentinel start`"


@contextlib.contextmanager
def _translated_errors(address: Address, timeout: float) -> Iterator[None]:
    """Translate errors of the connection into those of :mod:`sentinel.errors`."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        remedy = "Check the address, and that its daemon was started with --tcp."
        if not address.host:
            start = _start_command()
            remedy = f"Start one with {start}, or name its socket: --socket PATH, SENTINEL_SOCKET."
        raise NotRunningError(f"no sentinel daemon runs at {address}", remedy) from error
    except PermissionError as error:
        raise AccessDeniedError(
            f"this user may not use the daemon at {address}",
            "Run the command as the daemon's user, as root, or as a member of the socket's group.",
        ) from error
    except TimeoutError as error:
        raise TimedOutError(
            f"the daemon at {address} did not answer within {format_duration(timeout)}",
            _help_for_silence(address),
        ) from error
    except (InvalidResponseError, CutShortError, ConnectionError) as error:
        invalid = isinstance(error, InvalidResponseError)
        how = "does not use HTTP" if invalid else "closed the connection within its response"
        kind = ServiceError if invalid else ConnectionLostError
        raise kind(f"the daemon at {address} {how}", "See: sentinel status") from error
    except OSError as error:
        if error.errno is None or error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{address} cannot be the path of a socket: {error}") from error
        raise NotRunningError(f"the daemon at {address} cannot be reached: {error}") from error


def _help_for_silence(address: Address) -> str:
    """Say how to find out why a daemon on this host does not answer, and how to end it."""
    pid = listener_pid(address, _CONNECT_TIMEOUT_S)
    return (
        "" if pid is None else f"Its log has the reason: sentinel logs. SIGTERM ends it: kill {pid}"
    )


# --- the end of a daemon ---------------------------------------------------------------------


class _Client(Protocol):
    """The part of a client that is needed here."""

    address: Address

    def health(self) -> bool:
        """Check whether the daemon's state is recent."""


def exit_check(client: _Client, pid: int) -> Callable[[], bool]:
    """Build a check for the end of the daemon with this PID; call it before ending the daemon.

    The end of the process is the best evidence: the daemon closes its socket earlier. But ``pid``
    is the daemon's PID in its own PID namespace, and may be another process here. So the PID is
    used only if the kernel names the same for the socket's listener. Otherwise, and on another
    host, the check waits until no process listens.
    """

    def is_unreachable() -> bool:
        try:
            client.health()
        except NotRunningError:
            return True
        except SentinelError:
            return False
        return False

    return process_check(client, pid) or is_unreachable


def process_check(client: _Client, pid: int) -> Callable[[], bool] | None:
    """Build a check for the end of the daemon's process; None if it is not visible from here."""
    is_visible = listener_pid(client.address, _CONNECT_TIMEOUT_S) == pid
    before = read_stat(pid) if is_visible else None
    if before is None:
        return None
    started = before.started

    def has_exited() -> bool:
        now = read_stat(pid)
        return now is None or not now.alive or now.started != started

    return has_exited
