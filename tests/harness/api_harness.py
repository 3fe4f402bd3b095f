"""A real API process, with a fake supervisor at the other end of its channel."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from sentinel.api import main
from sentinel.api.history_queries import iso
from sentinel.host.process_setup import Inherited
from sentinel.protocol.codec import decode
from sentinel.protocol.commands import (
    API_MESSAGES,
    LEASE_S,
    Allocate,
    ApiHeartbeat,
    ApiMessage,
    ApiSpec,
    CancelGrant,
    Command,
    CommandReply,
    Configure,
    EndSession,
    Extend,
    GrantKind,
    PauseGpus,
    Refusal,
    Reserve,
    ResumeGpus,
    ServiceFailed,
    ServiceWarning,
    StartSession,
)
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.views import (
    Allocation,
    GpuView,
    HandoverView,
    HostView,
    KnownFaults,
    LogRecord,
    Phase,
    Reservation,
    Session,
    SessionsView,
)
from sentinel.supervisor.api_process import ApiChild
from tests.harness.forked_api import ForkedApi
from tests.harness.gpu_views import gpu_view
from tests.harness.timing import TIMEOUT_S

UUIDS = ("GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-aabb2222-0000-0000-0000-000000000000")


def used_gpu(index: int) -> GpuView:
    """Build the view of a GPU with a foreign process and a hand-over."""
    return gpu_view(
        index,
        time.monotonic(),
        uuid=UUIDS[index],
        since=time.monotonic() - 90,
        read=time.monotonic(),
        held=2**30,
        memory_used=2**30,
        budget=139 * 2**30,
        processes=(GpuProcess(pid=4711, name="python", user="anna"),),
        handover=HandoverView(at=time.monotonic() - 60, evidence="memory", exit=0.2),
    )


def middle_of_second() -> float:
    """Return a recent time of the monotonic clock, at which the wall clock was amid a second.

    A time is shown to the second, by the difference of the clocks at the moment. So it is the same
    in all responses, however long a process takes to read both clocks.
    """
    return time.monotonic() - (time.time() - 0.5) % 1


@dataclass
class FakeSupervisor:
    """The state and the replies of a supervisor, with switches for faults."""

    gpus: dict[str, GpuView] = field(
        default_factory=lambda: {UUIDS[index]: used_gpu(index) for index in range(2)}
    )
    reservations: dict[str, Reservation] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    phase: Phase = Phase.OCCUPYING
    #: What earlier daemons knew of GPUs.
    known_faults: tuple[KnownFaults, ...] = ()
    #: The memory of stopped stressors is not freed.
    keeps_memory: bool = False
    simulated: bool = False
    #: Readings are not renewed.
    stops_reading: bool = False
    sends_no_replies: bool = False
    sends_no_views: bool = False
    #: Whether a command is left as it is, without a reply.
    ignores: Callable[[Command], bool] = lambda _: False
    #: Replies to requests for reservations are sent after this.
    replies_after: threading.Event | None = None
    #: The reason by which every Configure is rejected.
    configure_error: str | None = None

    def host(self) -> HostView:
        return HostView(
            at=time.monotonic(),
            pid=os.getpid(),
            phase=self.phase,
            driver="580.65.06",
            simulated=self.simulated,
            workload="gemm",
            gpus=UUIDS,
            expected_gpus=2,
            reservations=tuple(self.reservations.values()),
            allocations=tuple(self.allocations.values()),
            known_faults=self.known_faults,
        )

    @property
    def queue(self) -> list[str]:
        """The ids of the requests that wait."""
        # Of a copy: a test reads it while a command may change the reservations.
        return [one.id for one in list(self.reservations.values()) if not one.gpus]

    def serve_queue(self) -> None:
        """Grant the first request if it can be granted."""
        for id_ in self.queue[:1]:
            gpus = self.choose(self.reservations[id_])
            if gpus:
                self.grant(self.reservations[id_], gpus)

    def stop_stressor(self, uuid: str, admin: str) -> None:
        view = self.gpus[uuid]
        stressor = "STOPPING" if view.stressor == "RUNNING" else view.stressor
        self.gpus[uuid] = replace(view, stressor=stressor, admin=admin)

    def free_memory(self) -> None:
        for uuid, view in self.gpus.items():
            if view.stressor == "STOPPING":
                ended = time.monotonic()
                self.gpus[uuid] = replace(
                    view,
                    stressor="STOPPED",
                    held=None,
                    memory_used=(view.memory_used or 0) - (view.held or 0),
                    ended=ended,
                    read=ended + 1e-3,
                )

    def refuse(self, command: Command, refusal: Refusal, text: str) -> CommandReply:
        return CommandReply(number=command.number, refused=refusal, text=text)

    def reply_to(self, command: Command) -> CommandReply:
        gpus: tuple[str, ...] = UUIDS
        match command:
            case ResumeGpus():
                self.phase = Phase.OCCUPYING
                for uuid, view in self.gpus.items():
                    self.gpus[uuid] = replace(view, stressor="RUNNING", admin="ENABLED")
                text = "idle GPUs are occupied"
            case PauseGpus():
                gpus, text = command.gpus or UUIDS, "paused"
                self.phase = Phase.RELEASED if command.release else self.phase
                for uuid in gpus:
                    self.stop_stressor(uuid, "PAUSED")
            case Reserve() | Allocate() | Extend() | CancelGrant():
                return self.change_records(command)
            case StartSession() | EndSession():
                return self.change_sessions(command)
            case Configure() if self.configure_error:
                return self.refuse(command, Refusal.INVALID, self.configure_error)
            case _:
                text, gpus = type(command).__name__, ()
        return CommandReply(number=command.number, text=text, gpus=gpus)

    def change_sessions(self, command: StartSession | EndSession) -> CommandReply:
        if isinstance(command, EndSession):
            ended = self.sessions.pop(command.name, None)
            if ended is None:
                return self.refuse(
                    command, Refusal.NOT_FOUND, f"there is no session {command.name!r}"
                )
            return CommandReply(number=command.number, text="ended", gpus=ended.gpus)
        until = None if command.seconds is None else middle_of_second() + command.seconds
        self.sessions[command.name] = Session(
            name=command.name,
            gpus=command.gpus,
            settings=command.settings,
            by=command.by,
            since=middle_of_second(),
            until=until,
        )
        return CommandReply(number=command.number, text="started", gpus=command.gpus)

    def change_records(self, command: Command) -> CommandReply:
        match command:
            case Reserve():
                return self.reserve(command)
            case Allocate():
                return self.allocate(command)
            case Extend() | CancelGrant():
                return self.settle(command)
        raise AssertionError(command)

    def reserve(self, command: Reserve) -> CommandReply:
        if command.count > len(UUIDS):  # it would wait for them until its limit
            return self.refuse(
                command,
                Refusal.NO_SUCH_GPU,
                f"{command.count} GPUs requested; the daemon has {len(UUIDS)}",
            )
        known = self.reservations.get(command.id)
        count = command.count or len(command.gpus)
        if known is not None and (known.count, known.reason) != (count, command.reason):
            return self.refuse(command, Refusal.CONFLICT, f"the id {command.id!r} is in use")
        if known is not None:
            return CommandReply(number=command.number, text="reserved", gpus=known.gpus)
        request = Reservation(
            id=command.id,
            named=command.gpus,
            count=count,
            reason=command.reason,
            by=command.by,
            since=middle_of_second(),
            seconds=command.seconds,
            bound=command.bound,
            lease=time.monotonic() + LEASE_S,
        )
        gpus = self.choose(request)
        if not gpus:
            text = "the GPUs are reserved"
            if command.wait:
                self.reservations[command.id] = request
                return CommandReply(number=command.number, text=f"waits: {text}")
            return self.refuse(command, Refusal.CONFLICT, text)
        self.grant(request, gpus)
        return CommandReply(number=command.number, text="reserved", gpus=gpus)

    def choose(self, request: Reservation) -> tuple[str, ...]:
        """Choose the GPUs of a request; none if too few are free."""
        taken = {uuid for held in self.reservations.values() for uuid in held.gpus}
        usable = request.named or UUIDS
        free = tuple(uuid for uuid in usable if uuid not in taken)[: request.count]
        return free if len(free) == request.count else ()

    def grant(self, request: Reservation, gpus: tuple[str, ...]) -> None:
        until = None if request.seconds is None else middle_of_second() + request.seconds
        self.reservations[request.id] = replace(request, gpus=gpus, until=until)
        for uuid in gpus:
            self.stop_stressor(uuid, "RESERVED")

    def memory_fields(self, view: GpuView) -> dict[str, Any]:
        """Compute the free memory of a GPU and the outstanding part of its allocations."""
        given = sum(each.size for each in self.allocations.values() if each.gpu == view.uuid)
        taken = sum(process.memory or 0 for process in view.allocated_processes)
        reserved = view.telemetry.memory_reserved if view.telemetry is not None else None
        used = view.memory_used
        free = None if used is None else view.memory_total - used - (reserved or 0)
        return {"memory_free": free, "outstanding": max(0, given - taken)}

    def allocate(self, command: Allocate) -> CommandReply:
        """Allocate memory; stop the stressor if too little is free."""
        view = self.gpus[command.gpu]
        available = view.budget - sum(each.size for each in self.allocations.values())
        known = self.allocations.get(command.id)
        if known is not None and (known.size, known.by) == (command.size, command.by):
            return CommandReply(number=command.number, text="allocated", gpus=(command.gpu,))
        if known is not None or command.size > available:
            return self.refuse(
                command,
                Refusal.CONFLICT,
                f"{command.id} is taken, or too much: {available} bytes can be allocated",
            )
        self.allocations[command.id] = Allocation(
            id=command.id,
            gpu=command.gpu,
            size=command.size,
            by=command.by,
            since=middle_of_second(),
            lease=time.monotonic() + LEASE_S,
        )
        if (view.memory_used or 0) + command.size > view.memory_total:
            self.stop_stressor(command.gpu, "ENABLED")
        return CommandReply(number=command.number, text="allocated", gpus=(command.gpu,))

    def settle(self, command: Extend | CancelGrant) -> CommandReply:
        """Extend, keep or end a grant."""
        grants: dict[str, Any] = (
            self.allocations if command.kind is GrantKind.ALLOCATION else self.reservations
        )
        given = grants.get(command.id)
        if given is None:
            text = f"there is no {command.kind} {command.id!r}"
            return self.refuse(command, Refusal.NOT_FOUND, text)
        text = "ended"
        if isinstance(command, CancelGrant):
            if command.gives_up and not given.gpus:
                text = "the GPUs are reserved; place 1"
            del grants[command.id]
        else:
            text = "extended"
            grants[command.id] = replace(given, lease=None if command.kept else given.lease)
        return CommandReply(number=command.number, text=text, gpus=given.gpus)


class ApiServer:
    """Listening sockets, and a replaceable API process on them; a context manager.

    Args:
        folder: The folder of the socket and of stored state.
        tcp: Whether to listen at a TCP address as well.
        metrics: Whether to listen at a separate address for scrapes.
        spawned: Whether the process is started as by the supervisor. That takes far longer than to
            fork it from one that has imported the API; LD_PRELOAD and exit codes need it.
        environment: Variables of the API process.
        spec: Further fields of its ApiSpec.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tcp: bool = False,
        metrics: bool = False,
        spawned: bool = False,
        environment: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.path = str(folder / "sentinel.sock")
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(self.path)
        self.listening.listen(512)
        self.tcp = socket.create_server(("127.0.0.1", 0), backlog=512) if tcp else None
        self.port = self.tcp.getsockname()[1] if self.tcp else 0
        self.metrics = socket.create_server(("127.0.0.1", 0)) if metrics else None
        self.metrics_port = self.metrics.getsockname()[1] if self.metrics else 0
        self.spec = ApiSpec(
            socket=self.path,
            state=str(folder),
            log=str(folder / "sentinel.log"),
            began=time.time() - 3600,
            version="1.2.3",
            tcp=f"127.0.0.1:{self.port}" if tcp else None,
            token=str(folder / "token") if tcp else None,
            **spec,
        )
        self.spawned = spawned
        self.environment = {"MALLOC_ARENA_MAX": "1", **(environment or {})}
        self.supervisor = FakeSupervisor()
        self.commands: list[Command] = []
        self.warnings: list[ServiceWarning] = []
        self.failed: list[ServiceFailed] = []
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.heartbeats = 0
        self.child: ApiChild
        self._published = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait_for(lambda: self.heartbeats > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.listening.close()
        for listening in (self.tcp, self.metrics):
            if listening is not None:
                listening.close()

    def start(self) -> None:
        """Start an API process on the listening sockets."""
        self.heartbeats = 0
        self._end.clear()
        listening = (self.listening, self.tcp, self.metrics)
        if self.spawned:
            sockets = [Inherited(one.fileno()) if one else None for one in listening]
            self.child = ApiChild(main.run, self.spec, sockets, self.environment)
        else:
            self.child = ForkedApi(self.spec, listening, self.environment)
        self._thread = threading.Thread(target=self._run_supervisor)
        self._thread.start()

    def kill(self) -> None:
        """Kill the API process by SIGKILL."""
        self.stop_supervisor()
        self.child.kill()
        select.select([self.child.pidfd], [], [], TIMEOUT_S)
        self.child.reap()

    def stop_supervisor(self) -> None:
        """Stop the fake supervisor."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def reset(self) -> None:
        """Reset the fake supervisor for another test."""
        with self.lock:
            self.supervisor = FakeSupervisor()
            self.send_views()
        # The API process may learn only now of what ended with the test before: of a process, or of
        # a client. Its commands about that come before the response to a later request.
        exchange(UnixConnection(self.path), "GET", "/v1/health")
        with self.lock:
            self._handle_received()
            self.commands.clear()
            self.warnings.clear()

    @contextlib.contextmanager
    def change_supervisor(self) -> Iterator[FakeSupervisor]:
        """Change the fake supervisor, and send its views at the end of the block."""
        with self.lock:
            yield self.supervisor
            self.send_views()

    def set(self, **fields: Any) -> None:
        """Set fields of the fake supervisor, and send its views."""
        with self.change_supervisor() as supervisor:
            for name, value in fields.items():
                setattr(supervisor, name, value)

    def change_gpu(self, index: int = 0, **changes: Any) -> None:
        """Change fields of the view of one GPU, and send the views."""
        with self.change_supervisor() as supervisor:
            supervisor.gpus[UUIDS[index]] = replace(supervisor.gpus[UUIDS[index]], **changes)

    def send(self, message: object) -> None:
        """Send a message; another thread sends views meanwhile."""
        with self.lock:
            self._send(message)

    def _send(self, message: object) -> None:
        """Send a message as soon as the one before it is sent completely."""
        while not self.child.send(message):
            assert select.select([], [self.child.channel], [], TIMEOUT_S)[1], message

    def send_views(self) -> None:
        if self.supervisor.sends_no_views:
            return
        self.supervisor.serve_queue()
        self._send(SessionsView(sessions=tuple(self.supervisor.sessions.values())))
        self._send(self.supervisor.host())
        for view in self.supervisor.gpus.values():
            now = time.monotonic()
            read, telemetry = view.read, view.telemetry
            if self._is_read(view):  # telemetry, too, is shown only while it is new
                read, telemetry = now, telemetry and replace(telemetry, at=now)
            fields = self.supervisor.memory_fields(view)
            self._send(replace(view, at=now, read=read, telemetry=telemetry, **fields))

    def _is_read(self, view: GpuView) -> bool:
        """Check whether readings of a GPU are renewed."""
        if self.supervisor.stops_reading or view.read is None:
            return False
        return view.ended is None or view.read > view.ended

    def publish(self, name: str = "gpu.idle", **fields: Any) -> int:
        """Publish an event; return its number."""
        with self.lock:
            self._published += 1
            event = {"event": name, "time": iso(time.time()), **fields}
            self._send(LogRecord(number=self._published, event=event))
            return self._published

    def wait_for(self, met: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(met, TIMEOUT_S), (self.commands, self.warnings)

    def _run_supervisor(self) -> None:
        """Send views and reply to commands until stopped."""
        shown = 0.0
        while not self._end.is_set():
            if time.monotonic() - shown > 0.25:
                with self.lock:
                    self.send_views()
                shown = time.monotonic()
            select.select([self.child.channel], [], [], 0.05)
            with self.lock:  # two threads would send the same rest of a message
                self.child.flush()
            with self.changed:
                self._handle_received()

    def _handle_received(self) -> None:
        for data in self.child.receive(64):
            self._handle(decode(data, API_MESSAGES))
            self.changed.notify_all()

    def _handle(self, message: ApiMessage) -> None:
        match message:
            case ApiHeartbeat():
                self.heartbeats += 1
            case ServiceWarning():
                self.warnings.append(message)
            case ServiceFailed():
                self.failed.append(message)
            case _:
                self.commands.append(message)
                if self.supervisor.sends_no_replies or self.supervisor.ignores(message):
                    return
                answer = self.supervisor.reply_to(message)
                after = self.supervisor.replies_after
                if after is not None and isinstance(message, Reserve):
                    after.wait(TIMEOUT_S)
                self.send_views()
                self._send(answer)
                if not self.supervisor.keeps_memory:
                    self.supervisor.free_memory()
                    self.send_views()


# --- clients ---------------------------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    """HTTP to a Unix socket, by another implementation than the client's."""

    def __init__(self, path: str, timeout: float = TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Reply:
    """A response with a decoded JSON body."""

    status: int
    body: Any
    headers: Mapping[str, str]


def ask(
    server: ApiServer, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}
) -> Reply:
    """Send a request over the Unix socket; check the shape of the response."""
    return exchange(UnixConnection(server.path), method, path, body, headers)


def over_tcp(
    server: ApiServer,
    method: str = "GET",
    path: str = "/v1/status",
    body: object = None,
    headers: Mapping[str, str] = {},
    *,
    name: str | None = "token",
) -> Reply:
    """Send a request over TCP, with the token in the file of this name."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    given = {}
    if name is not None:
        token = (Path(server.path).parent / name).read_text().strip()
        given = {"Authorization": f"Bearer {token}"}
    return exchange(connection, method, path, body, {**given, **headers})


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] = {},
) -> Reply:
    with contextlib.closing(connection):
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {"content-type": "application/json"} if raw is not None else {}
        connection.request(method, path, raw, {**kind, **headers})
        response = connection.getresponse()
        data = response.read()
    found = {name.lower(): value for name, value in response.getheaders()}
    reply = Reply(response.status, json.loads(data) if data else None, found)
    check_shape(reply)
    return reply


def send(server: ApiServer, method: str, path: str, body: object = None) -> UnixConnection:
    """Send a request without waiting for its response."""
    connection = UnixConnection(server.path)
    headers = {"content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    return connection


@contextlib.contextmanager
def in_background(request: Callable[[], Reply]) -> Iterator[list[Reply]]:
    """Make a request during the block, which gets the list that the reply is appended to."""
    replies: list[Reply] = []
    client = threading.Thread(target=lambda: replies.append(request()))
    client.start()
    try:
        yield replies
    finally:
        client.join()


def check_problem(reply: Reply, status: int, code: str, *texts: str) -> None:
    """Check the status and the code of a problem, and texts in its detail."""
    assert (reply.status, reply.body["code"]) == (status, code), reply
    for text in texts:
        assert text in reply.body["detail"], reply


def check_shape(reply: Reply) -> None:
    if reply.status >= 400:
        assert reply.headers["content-type"] == "application/problem+json", reply
        expected = {"schema_version", "type", "title", "status", "detail", "code"}
        assert reply.body.keys() == expected
        assert reply.body["status"] == reply.status
        assert reply.body["detail"]
    elif "openapi" not in reply.body:
        assert reply.body["schema_version"] == 1
