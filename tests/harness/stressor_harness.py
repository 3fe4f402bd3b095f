"""Real stressor processes on a simulated GPU, with the test as their supervisor."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, TypeVar

from sentinel.config.specs import parse_workload
from sentinel.host.process_setup import Inherited
from sentinel.host.procfs import read_stat
from sentinel.host.simulation import Registry
from sentinel.protocol import codec
from sentinel.protocol.shared_memory import STRESSOR_STAMPS, WATCHED, Stamps
from sentinel.protocol.stressor import (
    STRESSOR_MESSAGES,
    ChildMessage,
    CreatingContext,
    Failed,
    Finding,
    FindingAck,
    Lease,
    MemoryContention,
    MemoryCovered,
    MemoryTarget,
    Note,
    Progress,
    Ready,
    Stop,
    StressorSpec,
)
from sentinel.stressor import main
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

M = TypeVar(
    "M",
    CreatingContext,
    Failed,
    Finding,
    MemoryContention,
    MemoryCovered,
    Note,
    Progress,
    Ready,
)

_RENEWAL_S = 0.2
DEFAULT = MemoryTarget(share=0.88)
#: Modules that take most of a child's start.
_PRELOADED = ["torch", "sentinel.stressor.context", "sentinel.stressor.main"]


#: What a message of progress counts.
_WORK = ("iterations", "flops", "bytes", "checks", "errors")


class Child:
    """A stressor process, its registry and the supervisor's end of its channel."""

    def __init__(
        self, spec: StressorSpec, registry: Registry, locks: tuple[object, ...], *, spawned: bool
    ) -> None:
        self.registry = registry
        self.uuid = spec.gpu.uuid
        self.channel, child_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        context, parent = _spawning() if spawned else _forking()
        self.stamps = Stamps.create(STRESSOR_STAMPS)
        arguments = (spec, child_channel, parent, Inherited(self.stamps.fd), locks)
        self.process = context.Process(target=main.run, args=arguments)
        self.process.start()
        child_channel.close()
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.received: list[ChildMessage] = []
        self._lease = spec.lease
        self._renewed_at = 0.0

    def wait_for(self, kind: type[M]) -> M:
        """Renew the lease until the child sends a message of ``kind``; return it."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            alive = self.process.is_alive()  # first: the last message is sent just before the end
            message = self._receive()
            if isinstance(message, kind):
                return message
            assert message is not None or alive, f"the child ended after {self.received}"
        raise AssertionError(f"no {kind.__name__} within {TIMEOUT_S} s, but {self.received}")

    def wait_for_work(self, *kinds: str) -> Progress:
        """Sum progress until none of these fields is zero: a slow machine does little in 1 s."""
        done = self.wait_for(Progress)
        while not all(getattr(done, kind) for kind in kinds):
            more = self.wait_for(Progress)
            total = {name: getattr(done, name) + getattr(more, name) for name in _WORK}
            done = replace(more, seconds=max(done.seconds, more.seconds), **total)
        return done

    def send(self, message: object) -> None:
        """Send a command."""
        self.channel.send(codec.encode(message))

    def wait_until_read(self) -> None:
        """Wait until the child has read all that was sent to it."""

        def unread() -> int:
            (size,) = struct.unpack("i", fcntl.ioctl(self.channel, termios.TIOCOUTQ, bytes(4)))
            return int(size)

        eventually(lambda: not unread())

    def wait_for_end(self) -> int:
        """Wait for the exit without renewing the lease; return the exit code."""
        self.process.join(TIMEOUT_S)
        assert self.process.exitcode is not None, f"the child hangs after {self.received}"
        code: int = self.process.exitcode
        return code

    def stop(self) -> int:
        """Request a stop; return the exit code."""
        self.send(Stop())
        return self.wait_for_end()

    def watched_at(self) -> float:
        """Read when the child last looked at the memory of its GPU, or 0.0."""
        return self.stamps.get(WATCHED)

    def used(self) -> int:
        """Read the used memory of the GPU."""
        return self.registry.memory(self.uuid).used

    def end(self) -> None:
        """Kill the child and close its channel."""
        self.process.kill()
        self.process.join()
        self.channel.close()
        self.stamps.close()

    def _receive(self) -> ChildMessage | None:
        """Receive the next message, or None after a short time; renew the lease when it is due."""
        now = time.monotonic()
        if now - self._renewed_at >= _RENEWAL_S:
            self._renewed_at = now
            with suppress(OSError):  # the child ended; its last messages can still be read
                self.send(Lease(seconds=self._lease))
        if not select.select([self.channel], [], [], _RENEWAL_S)[0]:
            return None
        try:
            data = self.channel.recv(codec.MAX_DATAGRAM_BYTES)
        except ConnectionResetError:  # the child left a lease unread; its last messages follow
            data = self.channel.recv(codec.MAX_DATAGRAM_BYTES)
        if not data:
            return None
        message = codec.decode(data, STRESSOR_MESSAGES)
        self.received.append(message)
        if isinstance(message, Finding):
            self.send(FindingAck(number=message.number))
        return message


def descendants(pid: int) -> list[int]:
    """List the other living processes in the session of ``pid``."""
    stats = [read_stat(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [stat.pid for stat in stats if stat and stat.alive and stat.session == pid != stat.pid]


def _spawning() -> tuple[Any, int]:
    """Select the start method of the supervisor; return it and the PID of the parent."""
    return multiprocessing.get_context("spawn"), os.getpid()


def _forking() -> tuple[Any, int]:
    """Select a start method with torch preloaded; return it and the PID of the parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()
    server: Any = forkserver
    return context, server._forkserver._forkserver_pid


@contextmanager
def stressors(
    folder: Path, *, spawned: bool = False, gpus: int = 1
) -> Iterator[Callable[..., Child]]:
    """Provide a function that starts children on the GPUs of a new registry in ``folder``.

    Children are forked from a process that has imported torch, which saves most of their start,
    unless they are ``spawned`` as in the supervisor. Their lease ends with a test that hangs: it is
    renewed only while a test waits for a message.
    """
    registry = Registry.create(folder, gpus)
    children: list[Child] = []

    def start(
        workload: str,
        *,
        memory: MemoryTarget = DEFAULT,
        lease: float = TIMEOUT_S,
        locks: tuple[object, ...] = (),
        simulated: bool = True,
        gpu: int = 0,
        yields_at_once: bool = True,
    ) -> Child:
        name, options = parse_workload(workload)
        spec = StressorSpec(
            gpu=registry.gpus()[gpu],
            memory=memory,
            chunk=512 * 2**20,
            workload=name,
            options=options,
            lease=lease,
            simulation=str(folder) if simulated else None,
            yields_at_once=yields_at_once,
        )
        children.append(Child(spec, registry, locks, spawned=spawned))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.end()
