"""Be the supervisor of one real stressor child on a simulated GPU."""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, TypeVar

from sentinel.config.workload_spec import parse_workload
from sentinel.host.simulation import Registry
from sentinel.protocol import codec
from sentinel.protocol.stressor import (
    ChildMessage,
    CreatingContext,
    Failed,
    Finding,
    FindingAck,
    Lease,
    MemoryTarget,
    Note,
    Progress,
    Ready,
    Stop,
    StressorSpec,
)
from sentinel.stressor import main
from tests.harness.timing import TIMEOUT_S

M = TypeVar("M", CreatingContext, Failed, Finding, Note, Progress, Ready)

_SAYS: tuple[type[ChildMessage], ...] = (CreatingContext, Ready, Progress, Note, Finding, Failed)
_RENEWAL = 0.2
DEFAULT = MemoryTarget(share=0.88)
#: What takes up most of a child's start.
_PRELOADED = ["torch", "sentinel.stressor.context", "sentinel.stressor.main"]


class Child:
    """A stressor in a process of its own, its registry and our end of its channel."""

    def __init__(
        self, spec: StressorSpec, registry: Registry, locks: tuple[object, ...], *, spawned: bool
    ) -> None:
        self.registry = registry
        self.uuid = spec.gpu.uuid
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        context, parent = _spawning() if spawned else _forking()
        self.process = context.Process(target=main.run, args=(spec, theirs, parent, locks))
        self.process.start()
        theirs.close()
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.said: list[ChildMessage] = []
        self._renewed_at = 0.0

    def wait_for(self, kind: type[M]) -> M:
        """Renew the lease until the child says a ``kind``, and return that."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._hear()
            if isinstance(message, kind):
                return message
            assert message is not None or self.process.is_alive(), f"it ended after {self.said}"
        raise AssertionError(f"no {kind.__name__} within {TIMEOUT_S} s, but {self.said}")

    def tell(self, message: object) -> None:
        """Send an order."""
        self.channel.send(codec.encode(message))

    def wait_for_end(self, within: float) -> int:
        """Renew nothing; return the exit code once the child has ended, in time."""
        self.process.join(within)
        assert self.process.exitcode is not None, f"still there after {within} s; said {self.said}"
        code: int = self.process.exitcode
        return code

    def stop(self) -> int:
        """Ask it to end and return its exit code; it has a second."""
        self.tell(Stop())
        return self.wait_for_end(1.0)

    def used(self) -> int:
        """Return the used memory of its GPU."""
        return self.registry.memory(self.uuid).used

    def end(self) -> None:
        """Leave nothing of it behind."""
        self.process.kill()
        self.process.join()
        self.channel.close()

    def _hear(self) -> ChildMessage | None:
        """Return the next message, or None after a short while; renews the lease meanwhile."""
        now = time.monotonic()
        if now - self._renewed_at >= _RENEWAL:
            self._renewed_at = now
            with suppress(OSError):  # it ended; what it said last can still be read
                self.tell(Lease())
        if not select.select([self.channel], [], [], _RENEWAL)[0]:
            return None
        try:
            data = self.channel.recv(codec.MAX_DATAGRAM_BYTES)
        except ConnectionResetError:  # it left a lease unread; its last words come after this
            return None
        if not data:
            return None
        message = codec.decode(data, _SAYS)
        self.said.append(message)
        if isinstance(message, Finding):
            self.tell(FindingAck(number=message.number))
        return message


def _spawning() -> tuple[Any, int]:
    """Return the way in which the supervisor starts children, and who their parent is."""
    return multiprocessing.get_context("spawn"), os.getpid()


def _forking() -> tuple[Any, int]:
    """Return a way to start children that have torch already, and who their parent is."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()
    server: Any = forkserver
    return context, server._forkserver._forkserver_pid


@contextmanager
def nursery(folder: Path, *, spawned: bool = False) -> Iterator[Callable[..., Child]]:
    """Give a function that starts children on the first GPU of a new registry in ``folder``.

    They are forked from a process that has imported torch and nothing of theirs, which saves most
    of their start; those that are ``spawned`` start as the supervisor has them start.
    """
    registry = Registry.create(folder, 1)
    children: list[Child] = []

    def start(
        workload: str,
        *,
        memory: MemoryTarget = DEFAULT,
        lease: float = 3.0,
        locks: tuple[object, ...] = (),
        simulated: bool = True,
    ) -> Child:
        name, options = parse_workload(workload)
        spec = StressorSpec(
            gpu=registry.gpus()[0],
            memory=memory,
            chunk=512 * 2**20,
            workload=name,
            options=options,
            lease=lease,
            simulation=str(folder) if simulated else None,
        )
        children.append(Child(spec, registry, locks, spawned=spawned))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.end()
