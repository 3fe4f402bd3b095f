"""A real service process, and at the other end of its channel a supervisor that is a script."""

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
from sentinel.protocol.codec import decode
from sentinel.protocol.commands import (
    Allocate,
    ApiHeartbeat,
    Command,
    CommandReply,
    Configure,
    Confirm,
    Deallocate,
    Drain,
    PauseGpus,
    Refusal,
    Reserve,
    Resume,
    ResumeGpus,
    ServiceMessage,
    ServiceSpec,
    ServiceWarning,
    ShutDown,
    Unreserve,
)
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.views import (
    Allocation,
    GpuView,
    HandoverView,
    HostView,
    LogRecord,
    Phase,
    Reservation,
)
from sentinel.supervisor.child_process import Child, Inherited
from tests.harness.timing import TIMEOUT_S

KINDS: tuple[type[ServiceMessage], ...] = (
    Resume,
    Drain,
    PauseGpus,
    ResumeGpus,
    Reserve,
    Confirm,
    Unreserve,
    Allocate,
    Deallocate,
    Configure,
    ShutDown,
    ApiHeartbeat,
    ServiceWarning,
)
UUIDS = ("GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-aabb2222-0000-0000-0000-000000000000")


def gpu_view(index: int) -> GpuView:
    return GpuView(
        at=time.monotonic(),
        uuid=UUIDS[index],
        index=index,
        name="NVIDIA H200",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        memory_total=140 * 2**30,
        occupancy="IDLE",
        stressor="RUNNING",
        admin="ENABLED",
        rule="running",
        reason="running",
        findings=0,
        since=time.monotonic() - 90,
        read=time.monotonic(),
        held=2**30,
        memory_used=2**30,
        budget=139 * 2**30,
        processes=(GpuProcess(pid=4711, name="python", user="anna"),),
        handover=HandoverView(at=time.monotonic() - 60, evidence="memory", exit=0.2),
    )


@dataclass
class Script:
    """The supervisor's end: it does what a supervisor does, or what a test wants of it.

    ``slow``: memory does not come back. ``stale``: nothing is read any more. ``mute``: orders get
    no answer. ``blind``: nothing is shown. ``deaf``: to orders of these kinds. ``refusal``: what
    every Configure is refused with.
    """

    gpus: dict[str, GpuView] = field(
        default_factory=lambda: {UUIDS[index]: gpu_view(index) for index in range(2)}
    )
    reservations: dict[str, Reservation] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    phase: Phase = Phase.OCCUPYING
    slow: bool = False
    stale: bool = False
    mute: bool = False
    blind: bool = False
    deaf: tuple[type[Command], ...] = ()
    refusal: str | None = None

    def host(self) -> HostView:
        return HostView(
            at=time.monotonic(),
            pid=os.getpid(),
            phase=self.phase,
            driver="580.65.06",
            simulated=False,
            workload="gemm",
            gpus=UUIDS,
            reservations=tuple(self.reservations.values()),
            allocations=tuple(self.allocations.values()),
        )

    def free(self, uuid: str, admin: str) -> None:
        view = self.gpus[uuid]
        stressor = "STOPPING" if view.stressor == "RUNNING" else view.stressor
        self.gpus[uuid] = replace(view, stressor=stressor, admin=admin)

    def memory_comes_back(self) -> None:
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

    def answer(self, order: Command) -> CommandReply:
        gpus: tuple[str, ...] = UUIDS
        match order:
            case Resume():
                self.phase = Phase.OCCUPYING
                for uuid, view in self.gpus.items():
                    self.gpus[uuid] = replace(view, stressor="RUNNING", admin="ENABLED")
                text = "idle GPUs are occupied"
            case Drain():
                self.phase = Phase.DRAINED
                for uuid in UUIDS:
                    self.free(uuid, "ENABLED")
                text = "no GPU is held"
            case PauseGpus():
                gpus, text = order.gpus or UUIDS, "paused"
                self.phase = Phase.RELEASED if order.release else self.phase
                for uuid in gpus:
                    self.free(uuid, "PAUSED")
            case Reserve() | Confirm() | Unreserve() | Allocate() | Deallocate():
                return self.keep(order)
            case Configure() if self.refusal:
                refusal = Refusal.INVALID
                return CommandReply(number=order.number, refused=refusal, text=self.refusal)
            case _:
                text, gpus = type(order).__name__, ()
        return CommandReply(number=order.number, text=text, gpus=gpus)

    def keep(self, order: Command) -> CommandReply:
        match order:
            case Reserve():
                return self.reserve(order)
            case Allocate():
                return self.allocate(order)
            case Confirm(allocation=True) | Deallocate():
                return self.decide_on_memory(order)
            case Confirm() | Unreserve():
                return self.decide_on(order)
        raise AssertionError(order)

    def reserve(self, order: Reserve) -> CommandReply:
        taken = {uuid for held in self.reservations.values() for uuid in held.gpus}
        free = tuple(uuid for uuid in UUIDS if uuid not in taken)
        gpus = order.gpus or free[: order.count]
        if taken & set(gpus) or len(gpus) < order.count:
            text = f"{sorted(taken)} are reserved"
            return CommandReply(number=order.number, refused=Refusal.CONFLICT, text=text)
        until = None if order.seconds is None else time.monotonic() + order.seconds
        self.reservations[order.id] = Reservation(
            id=order.id,
            gpus=gpus,
            reason=order.reason,
            by=order.by,
            since=time.monotonic(),
            until=until,
            bound=order.bound,
        )
        for uuid in gpus:
            self.free(uuid, "RESERVED")
        return CommandReply(number=order.number, text="reserved", gpus=gpus)

    def memory(self, view: GpuView) -> dict[str, Any]:
        """Return what is free of a GPU, and what was promised and is not taken yet."""
        given = sum(one.size for one in self.allocations.values() if one.gpu == view.uuid)
        taken = sum(guest.memory or 0 for guest in view.allocated_processes)
        reserved = view.telemetry.memory_reserved if view.telemetry is not None else None
        used = view.memory_used
        free = None if used is None else view.memory_total - used - (reserved or 0)
        return {"memory_free": free, "outstanding": max(0, given - taken)}

    def allocate(self, order: Allocate) -> CommandReply:
        """Allocate memory: release what is in its way, and read again once it is free."""
        view = self.gpus[order.gpu]
        left = view.budget - sum(one.size for one in self.allocations.values())
        if order.id in self.allocations or order.size > left:
            text = f"{order.id} is taken, or too much: {left} bytes can be allocated"
            return CommandReply(number=order.number, refused=Refusal.CONFLICT, text=text)
        self.allocations[order.id] = Allocation(
            id=order.id, gpu=order.gpu, size=order.size, by=order.by, since=time.monotonic()
        )
        if (view.memory_used or 0) + order.size > view.memory_total:
            self.free(order.gpu, "ENABLED")
        return CommandReply(number=order.number, text="promised", gpus=(order.gpu,))

    def decide_on_memory(self, order: Confirm | Deallocate) -> CommandReply:
        given = self.allocations.pop(order.id, None)
        if given is None:
            text = f"there is no allocation {order.id!r}"
            return CommandReply(number=order.number, refused=Refusal.NOT_FOUND, text=text)
        if isinstance(order, Confirm):
            self.allocations[order.id] = replace(given, confirmed=True)
        return CommandReply(number=order.number, text="so it is", gpus=(given.gpu,))

    def decide_on(self, order: Confirm | Unreserve) -> CommandReply:
        held = self.reservations.pop(order.id, None)
        if held is None:
            text = f"there is no reservation {order.id!r}"
            return CommandReply(number=order.number, refused=Refusal.NOT_FOUND, text=text)
        if isinstance(order, Unreserve):
            return CommandReply(number=order.number, text="ended", gpus=held.gpus)
        self.reservations[order.id] = replace(held, confirmed=True)
        return CommandReply(number=order.number, text="it holds", gpus=held.gpus)


class Front:
    """Listening sockets, and a service on them that can be replaced; use it as a context.

    Args:
        folder: For the socket and what is kept.
        tcp: Whether to listen at a TCP address, too.
        metrics: Whether to listen at another one for scrapes alone.
        environment: Variables for the service.
        spec: Other things that it is told.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tcp: bool = False,
        metrics: bool = False,
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
        self.scraped = self.metrics.getsockname()[1] if self.metrics else 0
        self.spec = ServiceSpec(
            socket=self.path,
            state=str(folder),
            log=str(folder / "sentinel.log"),
            began=time.time() - 3600,
            version="1.2.3",
            tcp=f"127.0.0.1:{self.port}" if tcp else None,
            token=str(folder / "token") if tcp else None,
            **spec,
        )
        self.environment = {"MALLOC_ARENA_MAX": "1", **(environment or {})}
        self.script = Script()
        self.orders: list[Command] = []
        self.troubles: list[ServiceWarning] = []
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.beats = 0
        self.child: Child
        self._said = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait_for(lambda: self.beats > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.listening.close()
        for listening in (self.tcp, self.metrics):
            if listening is not None:
                listening.close()

    def start(self) -> None:
        """Start a service on the listening sockets."""
        self.beats = 0
        self._end.clear()
        listening = (self.listening, self.tcp, self.metrics)
        sockets = [Inherited(one.fileno()) if one else None for one in listening]
        self.child = Child(main.run, self.spec, sockets, self.environment)
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def kill(self) -> None:
        """SIGKILL the service."""
        self.leave()
        self.child.kill()
        select.select([self.child.pidfd], [], [], TIMEOUT_S)
        self.child.reap()

    def leave(self) -> None:
        """Let the supervisor's end do nothing more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def reset(self) -> None:
        """Reset everything for another test."""
        with self.lock:
            self.script = Script()
            self.orders.clear()
            self.troubles.clear()
            self.show()

    @contextlib.contextmanager
    def acting(self) -> Iterator[Script]:
        """Change what the supervisor does or has; it is shown at once."""
        with self.lock:
            yield self.script
            self.show()

    def show(self) -> None:
        if self.script.blind:
            return
        self.child.send(self.script.host())
        for view in self.script.gpus.values():
            now = time.monotonic()
            read = now if self._fresh(view) else view.read
            self.child.send(replace(view, at=now, read=read, **self.script.memory(view)))

    def _fresh(self, view: GpuView) -> bool:
        """Return whether a GPU is read all the time, as far as the test did not say otherwise."""
        if self.script.stale or view.read is None:
            return False
        return view.ended is None or view.read > view.ended

    def say(self, name: str = "gpu.idle", **fields: Any) -> int:
        """Have an event said; return its number."""
        with self.lock:
            self._said += 1
            event = {"event": name, "time": "now", **fields}
            select.select([], [self.child.channel], [], TIMEOUT_S)  # not to be lost
            self.child.send(LogRecord(number=self._said, event=event))
            return self._said

    def wait_for(self, met: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(met, TIMEOUT_S), (self.orders, self.troubles)

    def _play(self) -> None:
        """Be the supervisor: show all, answer orders, until the end."""
        shown = 0.0
        while not self._end.is_set():
            if time.monotonic() - shown > 0.25:
                with self.lock:
                    self.show()
                shown = time.monotonic()
            select.select([self.child.channel], [], [], 0.05)
            for data in self.child.receive(64):
                with self.changed:
                    self._hear(decode(data, KINDS))
                    self.changed.notify_all()

    def _hear(self, message: ServiceMessage) -> None:
        match message:
            case ApiHeartbeat():
                self.beats += 1
            case ServiceWarning():
                self.troubles.append(message)
            case _:
                self.orders.append(message)
                if self.script.mute or isinstance(message, self.script.deaf):
                    return
                answer = self.script.answer(message)
                self.show()
                self.child.send(answer)
                if not self.script.slow:
                    self.script.memory_comes_back()
                    self.show()


# --- clients ---------------------------------------------------------------------------------


class UnixConnection(Connection):
    """HTTP to a Unix socket."""

    def __init__(self, path: str, timeout: float = TIMEOUT_S) -> None:
        super().__init__(Address(socket=path), timeout)


@dataclass(frozen=True)
class Reply:
    """What came back: ``body`` is what the JSON was."""

    status: int
    body: Any
    headers: Mapping[str, str]


def ask(
    front: Front, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}
) -> Reply:
    """Ask over the Unix socket; every error must have the one shape."""
    return exchange(UnixConnection(front.path), method, path, body, headers)


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


def check_shape(reply: Reply) -> None:
    if reply.status >= 400:
        assert reply.headers["content-type"] == "application/problem+json", reply
        wanted = {"schema_version", "type", "title", "status", "detail", "code"}
        assert reply.body.keys() == wanted
        assert reply.body["status"] == reply.status
        assert reply.body["detail"]
    elif "openapi" not in reply.body:
        assert reply.body["schema_version"] == 1
