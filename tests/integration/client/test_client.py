"""The client, with a daemon whose replies are correct, invalid, slow or missing."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import Client, connect
from sentinel.client.client import _outcome_of
from sentinel.client.event_stream import EventInfo
from sentinel.client.transport import Address, stream_lines
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    ConnectionLostError,
    MemoryHeldError,
    NoSuchGpuError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from tests.harness.narrowing import not_none
from tests.harness.stub_daemon import (
    DAEMON,
    GPU,
    RESERVATION,
    STATUS,
    Reply,
    StubDaemon,
    problem,
    stub_daemon,
)
from tests.harness.timing import TIMEOUT_S


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    with stub_daemon(tmp_path / "s") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: StubDaemon) -> Client:
    return connect(daemon.socket, timeout=TIMEOUT_S)


# --- the verbs -------------------------------------------------------------------------------


def test_the_status_is_parsed_and_unknown_fields_are_kept(
    daemon: StubDaemon, client: Client
) -> None:
    later = {**STATUS, "gpus": [GPU | {"colour": "green"}], "mood": "good"}
    later["reservations"] = [RESERVATION]
    daemon.replies["GET /v1/status"] = Reply(later)
    status = client.status()
    assert (status.daemon.pid, status.gpus[0].uuid) == (4242, GPU["uuid"])
    assert status.gpus[0].occupied
    assert not_none(status.gpus[0].handover).memory_back == 0.196
    assert status.reservations[0].until is not None
    holder = status.reservations[0].holder
    assert (holder.user, holder.name) == ("ana", "bash")
    assert status.json["mood"] == "good"


@pytest.mark.parametrize(
    ("verb", "request_", "body"),
    [
        (lambda c: c.stop(wait=0), "POST /v1/stop", {}),
        (lambda c: c.restart(wait=0), "POST /v1/restart", {}),
        (lambda c: c.reload(), "POST /v1/reload", {}),
        (lambda c: c.pause(wait=0), "POST /v1/pause", {"wait_s": 0}),
        (
            lambda c: c.pause([0, "GPU-ab,1"], seconds=60, release=True, wait=1),
            "POST /v1/pause",
            {"gpus": ["0", "GPU-ab", "1"], "seconds": 60, "release": True, "wait_s": 1},
        ),
        (lambda c: c.resume(), "POST /v1/resume", {}),
        (lambda c: c.resume([1]), "POST /v1/resume", {"gpus": ["1"]}),
        (lambda c: c.cancel_reservation("1a b"), "DELETE /v1/reservations/1a%20b", None),
    ],
)
def test_each_verb_sends_its_request(
    daemon: StubDaemon,
    client: Client,
    verb: Callable[[Client], sentinel.client.Outcome],
    request_: str,
    body: object,
) -> None:
    daemon.replies[request_] = Reply({"text": "so be it", "gpus": [GPU["uuid"]]})
    outcome = verb(client)
    assert (outcome.text, outcome.gpus) == ("so be it", (GPU["uuid"],))
    assert daemon.requests == [(request_, body)]


@pytest.mark.parametrize(("wait", "sent"), [(30 * 86_400, 30 * 86_400), (math.inf, 366 * 86_400)])
def test_a_wait_may_be_longer_than_a_socket_can_time(
    daemon: StubDaemon, wait: float, sent: float
) -> None:
    daemon.replies["POST /v1/pause"] = Reply({"text": ""})
    connect(daemon.socket, timeout=1e12).pause(wait=wait)
    assert daemon.requests[-1] == ("POST /v1/pause", {"wait_s": sent})


def test_one_gpu_is_requested_by_its_pci_address(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["GET /v1/gpus/01%3A00.0"] = Reply(GPU)
    assert client.gpu("01:00.0").index == 0


@pytest.mark.parametrize(
    ("gpus", "asked"), [(2, {"count": 2}), ([0, "GPU-ab"], {"gpus": ["0", "GPU-ab"]})]
)
def test_a_reservation_is_for_a_number_of_gpus_or_for_selected_ones(
    daemon: StubDaemon, client: Client, gpus: Any, asked: dict[str, object]
) -> None:
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    got = client.reserve(gpus, reason="demo", seconds=7200, wait=3, bound=True)
    assert (got.id, got.gpus) == ("1a2b3c4d", (GPU["uuid"],))
    rest = {"reason": "demo", "seconds": 7200, "wait_s": 3, "bound": True}
    assert daemon.requests[-1] == ("PUT /v1/reservations/*", asked | rest)
    daemon.replies["GET /v1/reservations"] = Reply({"reservations": [RESERVATION]})
    assert client.reservations() == (got,)


def test_a_number_of_gpus_is_taken_among_selected_ones(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    client.reserve(1, among=[0, "GPU-ab"], seconds=None, wait=math.inf)
    asked = {"count": 1, "gpus": ["0", "GPU-ab"], "seconds": None, "wait_s": None}
    assert daemon.requests[-1][1] == {**asked, "reason": "", "bound": False}


@pytest.mark.parametrize("gpus", ["2", [0, 1], "all"])
def test_gpus_by_name_are_not_taken_among_others(
    daemon: StubDaemon, client: Client, gpus: Any
) -> None:
    """The text "2" is the GPU of this index, and no number."""
    with pytest.raises(ConfigError, match="names GPUs, and is no number"):
        client.reserve(gpus, among=[0, 1], seconds=None)
    assert not daemon.requests


ASKED = ("PUT /v1/reservations/*", {"count": 1, "reason": "", "wait_s": 30.0, "bound": False})
ENDED = ("DELETE /v1/reservations/1a2b3c4d", None)


def test_a_reservation_ends_with_its_block(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    daemon.replies[ENDED[0]] = Reply({"text": "ended"})
    with client.reserve(1) as mine:
        assert mine.cuda_visible_devices == GPU["uuid"]
        assert daemon.commands == [ASKED]
    assert daemon.commands == [ASKED, ENDED]

    def fail() -> None:
        with client.reserve(1):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert daemon.commands == [ASKED, ENDED] * 2


def test_a_block_accepts_that_its_reservation_has_ended(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    with client.reserve(1):
        pass  # its time limit was in the block
    daemon.replies[ENDED[0]] = problem("unavailable", "the disk is full", 503)
    with pytest.raises(ServiceError, match="the disk is full"), client.reserve(1):
        pass  # it is still there, and was not ended
    with client.reserve(1):
        daemon.socket.unlink()  # the daemon has ended, and with it what it reserved for a block


STARTING = problem("starting", "The daemon has not published its state yet.", 503)
LOST = Reply(b"")


@pytest.mark.parametrize(
    ("looks", "puts"),
    [([], [STARTING, STARTING]), ([STARTING], []), ([STARTING] * 2, [LOST] * 2), ([LOST], [LOST])],
)
def test_a_wait_goes_on_with_the_next_api_process(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, looks: list[Reply], puts: list[Reply]
) -> None:
    monkeypatch.setattr("sentinel.client.requester._RETRY_PAUSE_S", 0.01)
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    daemon.first["GET /v1/status"], daemon.first["PUT /v1/reservations/*"] = looks, puts
    client = connect(daemon.socket, timeout=1)
    assert client.reserve(1, wait=TIMEOUT_S, bound=True).gpus == (GPU["uuid"],)
    assert daemon.first == {"GET /v1/status": [], "PUT /v1/reservations/*": []}


def test_a_wait_goes_on_after_the_pause_before_the_next_api_process(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon starts it after growing pauses, in which no request is answered."""
    monkeypatch.setattr("sentinel.client.requester._RETRY_PAUSE_S", 0.01)
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    daemon.first["PUT /v1/reservations/*"] = [LOST]
    daemon.first["GET /v1/status"] = [Reply(STATUS), Reply(b"", 0)]
    client = connect(daemon.socket, timeout=0.3)
    assert client.reserve(1, wait=TIMEOUT_S, bound=True).gpus == (GPU["uuid"],)


@pytest.mark.parametrize("reply", [STARTING, LOST])
def test_a_daemon_whose_api_process_never_works_ends_the_wait(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    monkeypatch.setattr("sentinel.client.requester._RETRY_PAUSE_S", 0.01)
    daemon.replies["PUT /v1/reservations/*"] = reply
    with pytest.raises(ConnectionLostError) as lost:
        connect(daemon.socket).reserve(1, bound=True, wait=1)
    assert (lost.value.exit_code, len(daemon.commands)) == (2, 6)


def test_one_gpu_may_be_given_instead_of_a_list(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["POST /v1/pause"] = daemon.replies["POST /v1/burnin"] = Reply({"text": ""})
    for gpu in (0, "0", ["0"]):
        client.pause(gpu, wait=0)
        assert daemon.requests[-1] == ("POST /v1/pause", {"gpus": ["0"], "wait_s": 0})
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    client.reserve("GPU-ab", wait=0)
    assert daemon.requests[-1][1]["gpus"] == ["GPU-ab"]
    with pytest.raises(ServiceError):
        client.start_burnin("", 0)
    assert daemon.requests[-1][1]["gpus"] == ["0"], "GPU 0 is not all GPUs"


@pytest.mark.parametrize("size", [2e9, True, None, b"4GiB", "4 gigs"])
def test_an_invalid_size_is_never_sent(daemon: StubDaemon, client: Client, size: Any) -> None:
    with pytest.raises(ConfigError, match=r"^size: "):
        client.allocate("x", size)
    assert daemon.requests == []


#: Only listens on the socket of its first argument, so that the kernel reports its PID.
LISTENS = """
import socket, sys, time
socket.socket(fileno=int(sys.argv[1])).listen(64)
print(flush=True)
time.sleep(60)
"""


def report_pid(daemon: StubDaemon, pid: int) -> None:
    """Set the PID in the status of the daemon."""
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "pid": pid}})
    daemon.replies["POST /v1/stop"] = Reply({"text": "it ends"})


def test_a_stop_returns_after_the_process_has_ended(daemon: StubDaemon, client: Client) -> None:
    command = [sys.executable, "-c", LISTENS, str(daemon.listening)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[daemon.listening]) as process:
        assert not_none(process.stdout).readline() == b"\n"
        report_pid(daemon, process.pid)
        with pytest.raises(TimedOutError, match=r"has not ended within 100 ms"):
            client.stop(wait=0.1)
        began = time.monotonic()
        threading.Timer(0.3, process.kill).start()
        assert client.stop(wait=TIMEOUT_S).text == "the daemon has ended"
        assert time.monotonic() - began > 0.1


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (None, "the daemon has ended"),
        ({"exit_code": 0}, "the daemon has ended"),  # of a former version
        ({"exit_code": 0, "held": []}, "all GPUs are free, the daemon has ended"),
    ],
)
def test_a_stop_says_of_the_memory_what_the_last_event_does(
    last: dict[str, Any] | None, text: str
) -> None:
    event = None if last is None else EventInfo(id=1, name="sentinel.stopped", fields=last)
    assert _outcome_of(event) == text


def test_a_stop_that_leaves_memory_in_use_names_the_gpus() -> None:
    event = EventInfo(id=1, name="sentinel.stopped", fields={"exit_code": 0, "held": [0, 2]})
    with pytest.raises(MemoryHeldError, match="memory of GPU 0, 2 is still in use") as caught:
        _outcome_of(event)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("code", ["unavailable", "internal"])
def test_a_stop_of_a_daemon_that_another_client_has_stopped_is_done(
    daemon: StubDaemon, client: Client, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.client.client._LAST_MOMENTS_S", TIMEOUT_S)
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        report_pid(daemon, unrelated.pid)
        daemon.replies["POST /v1/stop"] = problem(code, "no")
        with pytest.raises(ServiceError, match="no"):
            client.stop(wait=0.1)
        if code == "unavailable":
            threading.Timer(0.3, daemon.socket.unlink).start()
            assert client.stop(wait=TIMEOUT_S).text == "the daemon has ended"
        unrelated.kill()


def test_neither_the_life_nor_the_end_of_an_unrelated_process_with_the_pid_matters_to_a_stop(
    daemon: StubDaemon, client: Client
) -> None:
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        report_pid(daemon, unrelated.pid)
        threading.Timer(0.1, unrelated.kill).start()
        with pytest.raises(TimedOutError, match=r"has not ended within 1 s"):
            client.stop(wait=1)
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        report_pid(daemon, unrelated.pid)
        threading.Timer(0.3, daemon.socket.unlink).start()
        assert client.stop(wait=TIMEOUT_S).text == "the daemon has ended"
        assert unrelated.poll() is None
        unrelated.kill()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health_is_that_of_the_daemon(
    daemon: StubDaemon,
    client: Client,
    status: int,
    healthy: bool,  # noqa: FBT001
) -> None:
    daemon.replies["GET /v1/health"] = Reply({}, status)
    assert client.health() is healthy


# --- events ----------------------------------------------------------------------------------

STREAM = b"""HTTP/1.1 200 OK\r
Content-Type: text/event-stream\r
Connection: close\r
\r
: heartbeat

id: 7
event: gpu.busy
data: {"event": "gpu.busy",
data: "gpu": "GPU-1"}

event: lost
data: {"count": 3}

"""


def test_events_have_numbers_names_and_fields(daemon: StubDaemon, client: Client) -> None:
    daemon.replies["GET /v1/events?since=6"] = Reply(STREAM)
    busy, lost = client.events(since=6)
    assert (busy.id, busy.name, busy.fields["gpu"]) == (7, "gpu.busy", "GPU-1")
    assert (lost.id, lost.name, lost.fields) == (None, "lost", {"count": 3})


@pytest.mark.parametrize(
    ("payload", "gpu", "index"),
    [
        ({"gpu": GPU["uuid"], "index": 3}, GPU["uuid"], 3),
        ({"gpu": "GPU-gone", "index": None}, "GPU-gone", None),
        ({}, None, None),
    ],
)
def test_an_event_has_its_gpu_if_it_is_about_one(
    daemon: StubDaemon,
    client: Client,
    payload: dict[str, object],
    gpu: str | None,
    index: int | None,
) -> None:
    event = f"event: gpu.busy\ndata: {json.dumps(payload)}\n\n".encode()
    daemon.replies["GET /v1/events"] = Reply(STREAM.partition(b"id: 7")[0] + event)
    assert [(one.gpu, one.index) for one in client.events()] == [(gpu, index)]


def test_a_started_stream_has_a_deadline_of_its_own(daemon: StubDaemon) -> None:
    daemon.replies["GET /v1/events"] = Reply(STREAM)
    sockets: list[Any] = []
    address = Address(socket=str(daemon.socket))
    lines = stream_lines(
        address, "/v1/events", {}, TIMEOUT_S, silence=10 * TIMEOUT_S, on_connect=sockets.append
    )
    assert next(lines) == ": heartbeat"
    assert sockets[0].remaining_s() > TIMEOUT_S
    lines.close()  # type: ignore[attr-defined]


def test_rejected_requests_and_invalid_events_are_errors(
    daemon: StubDaemon, client: Client
) -> None:
    daemon.replies["GET /v1/events"] = problem("unavailable", "too many subscribers", 503)
    with pytest.raises(ServiceError, match="too many subscribers"):
        list(client.events())
    daemon.replies["GET /v1/events"] = Reply(STREAM.replace(b'{"count"', b'"count"'))
    with pytest.raises(ServiceError, match="invalid event"):
        list(client.events())


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("no_such_gpu", NoSuchGpuError, 4),
        ("unauthorized", AccessDeniedError, 4),
        ("forbidden", AccessDeniedError, 4),
        ("invalid", ConfigError, 2),
        ("conflict", ConflictError, 1),
        ("timeout", TimedOutError, 1),
        ("not_found", ServiceError, 2),
        ("ending", ServiceError, 2),
        ("unavailable", ServiceError, 2),
        ("unknown_code", ServiceError, 2),
    ],
)
def test_a_problem_is_raised_as_the_error_of_its_code(
    daemon: StubDaemon, client: Client, code: str, kind: type[SentinelError], exit_code: int
) -> None:
    daemon.replies["POST /v1/stop"] = problem(code, "GPU 7: no\nthere are 0, 1")
    with pytest.raises(kind) as caught:
        client.stop()
    assert type(caught.value) is kind
    assert caught.value.exit_code == exit_code
    assert str(caught.value) == "GPU 7: no\nthere are 0, 1"


def _no_socket(folder: Path) -> Path:
    return folder / "none"


def _no_listener(folder: Path) -> Path:
    path = folder / "stale"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
    return path


def _a_file(folder: Path) -> Path:
    path = folder / "file"
    path.touch()
    return path / "in a file"


@pytest.mark.parametrize("place", [_no_socket, _no_listener, _a_file])
def test_without_a_listener_the_daemon_is_not_running(
    place: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = place(tmp_path)
    with pytest.raises(NotRunningError, match=f"no sentinel daemon runs at {path}") as caught:
        connect(path).status()
    assert caught.value.exit_code == 3
    assert "sentinel start" in caught.value.remedy


def test_without_a_listener_at_an_address_the_remedy_speaks_of_the_address(tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("secret")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(NotRunningError, match=f"runs at {address}") as caught:
        connect(tcp=address, token=token).status()
    assert caught.value.remedy == "Check the address, and that its daemon was started with --tcp."


def test_a_socket_path_that_is_too_long_is_an_error_with_the_path() -> None:
    with pytest.raises(ConfigError, match="cannot be the path of a socket"):
        connect("/tmp/" + "x" * 120).status()  # noqa: S108


@pytest.mark.skipif(os.getuid() == 0, reason="root may use every socket")
def test_missing_access_to_the_socket_is_an_error(daemon: StubDaemon, client: Client) -> None:
    daemon.socket.chmod(0)
    with pytest.raises(AccessDeniedError, match="this user may not use the daemon"):
        client.status()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", "is not a sentinel daemon"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "is not a sentinel daemon"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not use HTTP"),
        (b"HTTP/1.1 502 Bad\r\n\r\n<html>", "answers with HTTP status 502"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"schema_version": 2}', "uses version 2 of the API"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "uses version None of the API"),
    ],
)
def test_an_invalid_reply_is_described(
    daemon: StubDaemon, client: Client, reply: bytes, message: str
) -> None:
    daemon.replies["GET /v1/status"] = Reply(reply)
    with pytest.raises(ServiceError, match=message):
        client.status()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": "0"}, r"gpus\[0\].index: expected a whole number"),
        ({"memory_used": 1.5}, r"memory_used: expected a whole number"),
        ({"findings": True}, r"findings: expected a whole number"),
        ({"power_w": float("nan")}, r"power_w: expected a finite number"),
        ({"processes": {}}, r"processes: expected a list"),
        ({"processes": [{"name": "x"}]}, r"processes\[0\]: expected the fields pid"),
        ({"handover": 3}, r"handover: expected an object"),
        ({"uuid": None}, r"uuid: expected text"),
    ],
)
def test_an_invalid_field_is_named(
    daemon: StubDaemon, client: Client, change: dict[str, object], message: str
) -> None:
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [{**GPU, **change}]})
    with pytest.raises(ServiceError, match=message):
        client.status()


@pytest.mark.parametrize("moment", [7, "soon", "2026-11-21T20:00:00"])
def test_a_time_without_an_offset_is_invalid(
    daemon: StubDaemon, client: Client, moment: object
) -> None:
    odd = {**RESERVATION, "until": moment}
    daemon.replies["GET /v1/reservations"] = Reply({"reservations": [odd]})
    with pytest.raises(ServiceError, match=r"reservations\[0\].until: expected a time"):
        client.reservations()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_request_to_a_hung_daemon_times_out(daemon: StubDaemon, begun: bytes) -> None:
    daemon.replies["GET /v1/status"] = Reply(begun, 0)
    with pytest.raises(TimedOutError, match="did not answer within 300 ms") as hung:
        connect(daemon.socket, timeout=0.3).status()
    assert hung.value.remedy.endswith(f"SIGTERM ends it: kill {os.getpid()}")


def test_a_hung_daemon_does_not_cost_the_wait_of_a_command(daemon: StubDaemon) -> None:
    daemon.replies["GET /v1/status"] = Reply(b"", 0)
    with pytest.raises(TimedOutError, match="did not answer within 300 ms"):
        connect(daemon.socket, timeout=0.3).pause("0", wait=TIMEOUT_S)
    assert daemon.commands == []


def test_the_deadline_holds_for_a_reply_that_arrives_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "s"
    done = threading.Event()

    def dribble(listening: socket.socket) -> None:
        one, _ = listening.accept()
        with one:
            while not done.is_set():
                try:
                    one.sendall(b"H")
                except OSError:
                    return
                time.sleep(0.02)

    with socket.create_server(str(path), family=socket.AF_UNIX) as listening:
        thread = threading.Thread(target=dribble, args=(listening,))
        thread.start()
        with pytest.raises(TimedOutError):
            connect(path, timeout=0.5).status()
        done.set()
        thread.join()


@pytest.mark.long
def test_a_client_waits_while_the_backlog_of_the_daemon_is_full(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.create_server(str(path), family=socket.AF_UNIX, backlog=0) as listening:
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            with pytest.raises(TimedOutError):
                connect(path, timeout=0.3).status()
        listening.accept()[0].close()
        with pytest.raises(TimedOutError):  # it is connected now, and gets no reply
            connect(path, timeout=0.3).status()


# --- TCP -------------------------------------------------------------------------------------


def test_requests_over_tcp_have_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    requests = []

    def answer(listening: socket.socket) -> None:
        one, _ = listening.accept()
        with one:
            requests.append(one.recv(4096).decode())
            body = json.dumps({"schema_version": 1, "reservations": []})
            one.sendall(f"HTTP/1.1 200 OK\r\n\r\n{body}".encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        assert connect(tcp=f"127.0.0.1:{port}", token=token).reservations() == ()
        thread.join()
    assert "Authorization: Bearer s3cret\r\n" in requests[0]
    assert f"Host: 127.0.0.1:{port}\r\n" in requests[0]
    with socket.socket() as taken:  # no other program listens at this port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotRunningError):
            connect(tcp=address, token=token).reservations()


@pytest.mark.parametrize("address", ["", "host", "host:", "host:0", "host:70000", ":80"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        connect(tcp=address)


def test_a_missing_token_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the token cannot be read from"):
        connect(tcp="127.0.0.1:1", token=tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="there is no token in"):
        connect(tcp="127.0.0.1:1", token=tmp_path / "empty")


def test_the_package_imports_its_modules_at_first_use() -> None:
    """The client imports no module that is slow to import."""
    heavy = "{'torch', 'numpy', 'click', 'rich', 'pydantic', 'psutil', 'structlog'}"
    program = (
        "import sys, sentinel; assert not [n for n in sys.modules if n.startswith('sentinel.')];"
        "sentinel.connect('/nowhere');"
        f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", sentinel.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(sentinel, name) is not None
    assert name in dir(sentinel)
