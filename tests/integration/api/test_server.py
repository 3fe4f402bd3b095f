"""Slow, broken, numerous or unauthorised clients occupy only a connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.api.access import peer_of
from sentinel.api.connections import LIMITS, MAX_UNPROVEN, MAX_UNPROVEN_OF_ADDRESS
from sentinel.api.event_streams import SUBSCRIBERS
from sentinel.client.transport import Address, listener_pid, stream_lines
from sentinel.host.procfs import read_stat
from sentinel.protocol.commands import Caller, Level, ResumeGpus
from tests.harness.api_harness import ApiServer, UnixConnection, ask, check_problem, over_tcp
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

POST = b"POST /v1/stop HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BLANKS = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
STATUS = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("service"), tcp=True, spawned=True) as api:
        yield api


def connect(api: ApiServer) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            connection.connect(api.path)
        except BlockingIOError:  # more than the backlog
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return connection


def all_of(connection: socket.socket) -> bytes:
    """Read everything until the API process closes the connection."""
    data = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:  # the connection was closed with unread data
            return data
        if not piece:
            return data
        data += piece


# --- slow and broken ones --------------------------------------------------------------------


@pytest.mark.long
def test_connections_without_a_complete_request_in_time_are_closed(api: ApiServer) -> None:
    began = time.monotonic()
    silent, half, loris = connect(api), connect(api), connect(api)
    half.sendall(STATUS)
    body = connect(api)
    body.sendall(b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    idle = connect(api)
    idle.sendall(STATUS + b"\r\n")
    assert idle.recv(15) == b"HTTP/1.1 200 OK"
    loris.settimeout(0.25)
    closed = False
    while not closed:
        try:
            loris.sendall(b"X")
            closed = loris.recv(1) == b""
        except TimeoutError:
            assert ask(api, "GET", "/v1/health").status == 200
        except (BrokenPipeError, ConnectionResetError):
            closed = True
    assert time.monotonic() - began > 4
    for connection in (silent, half, body, idle):
        all_of(connection)
        connection.close()
    loris.close()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid"),
        (b"GET /v1/status\r\n\r\n", 400, "invalid"),
        (b"GET /v1/status HTTP/1.1\r\n\r\n", 400, "invalid"),
        (STATUS + b"X-Long: " + b"x" * 20_000, 431, "too_large"),
        (b"GET /" + b"x" * 20_000, 431, "too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 17_000 + b"\r\n\r\n", 431, "too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid"),
        (
            POST + b"Content-Length: 5\r\n" + CHUNKED + b"2\r\n{}\r\n0\r\n\r\n",
            *(400, "invalid"),
        ),
        (POST + CHUNKED + b"zz\r\n", 400, "invalid"),
        (POST + b"Content-Length: 99999999\r\n\r\n", 413, "too_large"),
        (POST + CHUNKED + BLANKS + BLANKS + b"1\r\n \r\n0\r\n\r\n", 413, "too_large"),
    ],
)
def test_a_malformed_or_too_large_request_is_refused_and_its_connection_closed(
    api: ApiServer, sent: bytes, status: int, code: str
) -> None:
    with connect(api) as connection:
        connection.sendall(sent)
        reply = all_of(connection)
    assert reply.startswith(f"HTTP/1.1 {status} ".encode()), reply
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == code
    assert json.loads(body)["status"] == status


def test_a_client_that_disconnects_during_a_request_leaks_nothing(api: ApiServer) -> None:
    for sent in (b"", b"GET", STATUS, STATUS + b"\r\n", b"POST /v1/stop HTTP/1.1\r\nHo"):
        with connect(api) as connection:
            connection.sendall(sent)
    assert ask(api, "GET", "/v1/health").status == 200


@pytest.mark.parametrize("path", ["pause", "stop", "restart", "reservations"])
@pytest.mark.parametrize("sent", [b"", b'{"gpus": [', b"{}"])
def test_an_incomplete_request_of_a_disconnected_client_is_not_applied(
    api: ApiServer, path: str, sent: bytes
) -> None:
    api.reset()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with connect(api) as connection:
        connection.sendall(head.encode() + b"Content-Length: 15\r\n\r\n" + sent)
    # A later request to the same loop: the earlier one was processed before.
    assert ask(api, "POST", "/v1/resume").status == 200
    assert [type(order) for order in api.commands] == [ResumeGpus]


@pytest.mark.long
def test_descriptors_that_come_with_a_request_are_closed_and_block_nothing(api: ApiServer) -> None:
    assert ask(api, "GET", "/v1/health").status == 200
    folder = Path(f"/proc/{api.child.pid}/fd")
    before = len(list(folder.iterdir()))
    request = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
    reader, writer = os.pipe()
    with connect(api) as connection, connection.makefile("rb") as answers:
        for _ in range(1000):
            socket.send_fds(connection, [request], [reader, writer] * 8)
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            head = http.client.parse_headers(answers)
            assert answers.read(int(head["content-length"]))
        assert len(list(folder.iterdir())) <= before + 1  # this connection
    os.set_blocking(reader, False)
    os.close(writer)
    assert os.read(reader, 1) == b""  # the end: no other process can write
    os.close(reader)


def test_pipelined_requests_are_answered_in_order(api: ApiServer) -> None:
    request = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"
    with connect(api) as connection:
        connection.sendall((request + b"\r\n") * 9 + request + b"Connection: close\r\n\r\n")
        assert all_of(connection).count(b"HTTP/1.1 200 OK") == 10


@pytest.mark.long
def test_a_thousand_concurrent_clients_are_all_answered(api: ApiServer) -> None:
    async def client() -> int:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        # With a full backlog, asyncio assumes a connection too early, so the socket connects here.
        while connection.connect_ex(api.path) == errno.EAGAIN:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        writer.write(STATUS + b"Connection: close\r\n\r\n")
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return int(data.split(b" ", 2)[1])

    async def all_at_once() -> list[int]:
        return await asyncio.gather(*(client() for _ in range(1000)))

    count = Counter(asyncio.run(all_at_once()))
    assert count.keys() <= {200, 503}
    assert count[200] >= 512
    assert ask(api, "GET", "/v1/health").status == 200


def test_connections_above_the_limit_are_refused_until_others_close(api: ApiServer) -> None:
    many: list[socket.socket] = []
    try:
        many.extend(connect(api) for _ in range(600))
        many[-1].sendall(STATUS + b"\r\n")
        reply = all_of(many[-1])
        assert b" 503 " in reply.partition(b"\r\n")[0]
        assert b'"unavailable"' in reply
        many[0].sendall(STATUS + b"Connection: close\r\n\r\n")
        assert all_of(many[0]).startswith(b"HTTP/1.1 200")
    finally:
        for connection in many:
            connection.close()
    assert ask(api, "GET", "/v1/health").status == 200


@pytest.mark.parametrize("path", ["/v1/health", "/v1/events", "/api/gpu/status/all"])
def test_a_connection_that_was_answered_503_is_closed(tmp_path: Path, path: str) -> None:
    api = ApiServer(tmp_path)
    api.supervisor.sends_no_views = True
    with api, contextlib.ExitStack() as stack:
        for _ in range(SUBSCRIBERS.total + 1):
            one = stack.enter_context(connect(api))
            one.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(15) == b"HTTP/1.1 200 OK"
        with connect(api) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 2)
            reply = all_of(connection)
    assert reply.count(b"HTTP/1.1 503 ") == 1
    assert b"connection: close" in reply.partition(b"\r\n\r\n")[0].lower()


@contextlib.contextmanager
def flood(port: int, first_bytes: bytes) -> Iterator[None]:
    """Keep more connections open than are allowed, as fast as they are closed."""
    end = threading.Event()

    def keep_open() -> None:
        kept: deque[socket.socket] = deque()
        while not end.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
                kept.append(one)
                one.sendall(first_bytes)
            if len(kept) > 200:
                kept.popleft().close()
        for one in kept:
            one.close()

    threads = [threading.Thread(target=keep_open) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def patient_status(api: ApiServer) -> int:
    """Ask with the token, and once more if the connection was closed.

    A limit closes the oldest connection without a token, which may be this one before its first
    bytes are read. That was seen once, on a busy host; the cause is likely, not proved.
    """
    with contextlib.suppress(ConnectionResetError):
        return over_tcp(api).status
    return over_tcp(api).status


@pytest.mark.long
@pytest.mark.parametrize(
    "first_bytes",
    [b"", b"GET /v1/status HTTP/1.1\r\n", b"POST /v1/pause HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"],
    ids=["silent", "half a head", "half a body"],
)
def test_a_client_with_the_token_gets_in_while_others_flood(
    api: ApiServer, first_bytes: bytes
) -> None:
    with flood(api.port, first_bytes):
        answers = [patient_status(api) for _ in range(20)]
        files = len(list(Path(f"/proc/{api.child.pid}/fd").iterdir()))
    assert answers == [200] * 20
    assert files < MAX_UNPROVEN + 100
    assert ask(api, "GET", "/v1/health").status == 200


@pytest.mark.long
def test_clients_that_read_no_response_keep_no_holder_of_the_token_out(api: ApiServer) -> None:
    page = b"GET / HTTP/1.1\r\nHost: 127.0.0.%d\r\n\r\n"
    stalled = []
    for nth in range(300):
        source = 2 + nth % 3
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.bind((f"127.0.0.{source}", 0))
        one.connect(("127.0.0.1", api.port))
        with contextlib.suppress(OSError):  # closed for a newer one
            one.sendall(page % 1 * 200)
        stalled.append(one)
    try:
        assert [over_tcp(api).status for _ in range(5)] == [200] * 5
    finally:
        for one in stalled:
            one.close()


def test_the_oldest_connections_without_a_token_are_closed_first(api: ApiServer) -> None:
    where = ("127.0.0.1", api.port)
    strangers = [
        socket.create_connection(where, TIMEOUT_S) for _ in range(MAX_UNPROVEN_OF_ADDRESS + 1)
    ]
    try:
        assert all_of(strangers[0]) == b""
        strangers[1].sendall(STATUS + b"Connection: close\r\n\r\n")
        assert all_of(strangers[1]).startswith(b"HTTP/1.1 401")
    finally:
        for stranger in strangers:
            stranger.close()


def test_the_api_process_stays_small_and_leaks_no_connection(api: ApiServer) -> None:
    ask(api, "GET", "/openapi.json")
    process = Path(f"/proc/{api.child.pid}")
    memory = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert memory is not None
    assert int(memory[1]) < 80_000
    eventually(lambda: len(list((process / "fd").iterdir())) <= 30)


def test_connections_with_the_token_have_a_limit_of_their_own(api: ApiServer) -> None:
    api.set(keeps_memory=True)  # a pause waits, and its connection stays open
    pausing = {**token(api), "Content-Type": "application/json"}
    with contextlib.ExitStack() as stack:
        stack.callback(api.reset)
        for _ in range(LIMITS["tcp"].share):
            one = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
            stack.callback(one.close)
            one.request("POST", "/v1/pause", json.dumps({"wait_s": TIMEOUT_S}), pausing)
        eventually(lambda: over_tcp(api).status == 503)
        assert ask(api, "GET", "/v1/health").status == 200


# --- who may ask -----------------------------------------------------------------------------


def token(api: ApiServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {Path(api.spec.token or '').read_text().strip()}"}


def test_the_token_is_private_to_its_owner(api: ApiServer) -> None:
    path = Path(api.spec.token or "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) >= 32


@pytest.mark.parametrize("content", [b"", b"\n", bytes(44)], ids=["empty", "line", "zeros"])
def test_an_empty_token_file_gets_a_new_token_and_a_warning(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with ApiServer(tmp_path, tcp=True) as api:
        assert over_tcp(api).status == 200
        api.wait_for(lambda: bool(api.warnings))
        assert [(one.about, one.text) for one in api.warnings] == [
            ("token", f"{path}: was empty; it has a new token, which TCP clients need from now on")
        ]
        written = path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        api.kill()
        api.start()
        api.wait_for(lambda: api.heartbeats > 0)
        assert over_tcp(api).status == 200
        assert path.read_bytes() == written


def test_access_over_tcp_needs_the_token(api: ApiServer) -> None:
    good = token(api)["Authorization"]
    assert over_tcp(api).status == 200
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": good[7:]}):
        refused = over_tcp(api, headers=wrong, name=None)
        check_problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
    Path(api.spec.token or "").chmod(0o644)
    assert over_tcp(api).status == 401  # others may have read this token
    Path(api.spec.token or "").chmod(0o600)


def test_other_origins_are_refused_over_tcp(api: ApiServer) -> None:
    assert over_tcp(api, headers={"Host": f"localhost:{api.port}"}).status == 200
    assert over_tcp(api, headers={"Origin": f"http://127.0.0.1:{api.port}"}).status == 200
    for wrong in (
        {"Host": "rebound.example"},
        {"Host": f"rebound.example:{api.port}"},
        {"Host": ""},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
    ):
        check_problem(over_tcp(api, headers=wrong), 403, "forbidden")


def test_the_kernel_asks_both_ends_of_a_silent_tcp_connection(api: ApiServer) -> None:
    """A request may wait without a limit, and a host that lost its network says nothing."""
    address = Address(
        host="127.0.0.1", port=api.port, token=Path(str(api.spec.token)).read_text().strip()
    )
    clients: list[socket.socket] = []
    lines = stream_lines(address, "/v1/watch", {}, TIMEOUT_S, TIMEOUT_S, clients.append)
    assert next(lines)
    own = clients[0].getsockname()[1]

    def asked() -> set[tuple[int, int]]:
        """List the ports of both ends of each connection with a timer of this kind."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {
            (int(local[-4:], 16), int(remote[-4:], 16))
            for _, local, remote, _, _, timer, *_ in rows
            if timer.startswith("02:")
        }

    eventually(lambda: asked() >= {(own, api.port), (api.port, own)})
    clients[0].shutdown(socket.SHUT_RDWR)


def test_a_client_over_tcp_cannot_bind_a_reservation_to_its_process(api: ApiServer) -> None:
    wish = {"count": 1, "bound": True}
    refused = over_tcp(api, "PUT", "/v1/reservations/1a2b3c4d", wish)
    check_problem(refused, 422, "invalid")


# --- the service's own end -------------------------------------------------------------------


@pytest.mark.long
def test_a_replaced_api_process_serves_waiting_clients(tmp_path: Path) -> None:
    with ApiServer(tmp_path, spawned=True) as api:
        api.kill()
        with connect(api) as connection:
            connection.sendall(STATUS + b"Connection: close\r\n\r\n")
            api.start()
            assert all_of(connection).startswith(b"HTTP/1.1 200")


def test_the_peer_credentials_of_the_socket_are_the_supervisors(api: ApiServer) -> None:
    address = Address(socket=api.path)
    assert listener_pid(address, TIMEOUT_S) == os.getpid() != api.child.pid


@pytest.mark.long
def test_the_api_process_exits_when_its_channel_is_closed(tmp_path: Path) -> None:
    with ApiServer(tmp_path, spawned=True) as api:
        api.set(keeps_memory=True)
        events = UnixConnection(api.path)
        events.request("GET", "/v1/events")
        waiting = UnixConnection(api.path)
        waiting.request("POST", "/v1/pause")
        api.wait_for(lambda: bool(api.commands))
        api.stop_supervisor()
        api.child.channel.close()
        assert waiting.getresponse().status == 503
        assert events.getresponse().read().startswith(b":")
        api.child.process.join(TIMEOUT_S)
        assert api.child.process.exitcode == 0
        events.close()
        waiting.close()


@pytest.mark.long
def test_a_malformed_message_ends_the_api_process(tmp_path: Path) -> None:
    with ApiServer(tmp_path, spawned=True) as api:
        api.child.channel.send(len(b"nonsense").to_bytes(4) + b"nonsense")
        api.child.process.join(TIMEOUT_S)
        assert api.child.process.exitcode == 1


def test_importing_the_main_module_imports_no_web_server() -> None:
    program = "import sys, sentinel.api.main; print(*sys.modules)"
    out = run_program(sys.executable, "-c", program, check=True).stdout.split()
    assert not {"asyncio", "fastapi", "pydantic", "starlette", "uvicorn"} & set(out)


STAYS = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.long
def test_the_caller_is_the_connecting_process_even_if_its_pid_is_reused(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        command = [sys.executable, "-c", STAYS, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            connection, _ = listening.accept()
            began = read_stat(process.pid)
            peer = peer_of(connection)
        connection.close()
    assert began is not None
    assert read_stat(process.pid) is None
    expected = Caller(
        via="unix",
        uid=os.getuid(),
        pid=process.pid,
        started=began.started,
        level=Level.OPERATE,
    )
    assert peer.caller(Level.OPERATE) == expected
