"""A workload's context in the test's own process, on a simulated GPU on which no time passes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import ChildMessage, Finding, MemoryTarget, Progress
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import Fence, SimulatedDevice
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.memory import fill

GIB = 2**30


class Instant(SimulatedDevice):
    """A simulated GPU of which the work is done when it was queued; ``each`` is called then."""

    def __init__(self, registry: Registry, uuid: str, quantum: float) -> None:
        super().__init__(registry, uuid)
        self.quantum = quantum
        self.each: Callable[[], None] = lambda: None

    def wait(self, fence: Fence) -> float:
        self.each()
        return 0.0


class Listener(LeaseKeeper):
    """A leash whose other end is the test."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(channel, 3.0)
        self.heard: list[ChildMessage] = []

    def say(self, message: ChildMessage) -> bool:
        self.heard.append(message)
        return True

    def report(self, finding: Finding) -> bool:
        return self.say(finding)


class Workbench:
    """A context and all that its workload said."""

    def __init__(self, folder: Path, *, chunks: int, chunk: int, quantum: float) -> None:
        registry = Registry.create(folder, 1)
        self.channel, self._other = socket.socketpair()
        self.device = Instant(registry, registry.gpus()[0].uuid, quantum)
        self.lease_keeper = Listener(self.channel)
        filling = fill(self.device, MemoryTarget(size=chunks * chunk), chunk)
        self.ctx = WorkloadContext(
            device=self.device, filling=filling, lease_keeper=self.lease_keeper
        )

    def findings(self) -> list[Finding]:
        return [message for message in self.lease_keeper.heard if isinstance(message, Finding)]

    def done(self) -> Progress:
        """Return the sum of all progress, what is still to be told included."""
        self.ctx.finish()
        if not self.ctx.ready:
            self.ctx._tell(self.ctx._told_at)  # which else nobody hears of
        told = [message for message in self.lease_keeper.heard if isinstance(message, Progress)]
        return Progress(
            seconds=sum(one.seconds for one in told),
            iterations=sum(one.iterations for one in told),
            flops=sum(one.flops for one in told),
            bytes=sum(one.bytes for one in told),
            checks=sum(one.checks for one in told),
            errors=sum(one.errors for one in told),
            max_quantum_s=max((one.max_quantum_s for one in told), default=0.0),
        )

    def stop(self) -> None:
        self.lease_keeper.stopped.set()

    def close(self) -> None:
        self.device.membership.close()
        self.channel.close()
        self._other.close()


@contextmanager
def workbench(
    folder: Path, *, chunks: int = 4, chunk: int = GIB // 64, quantum: float = 1e-4
) -> Iterator[Workbench]:
    """Give a context with some chunks; sizes are pretended ones, 4096 times what they are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a stressor does
    try:
        bench = Workbench(folder, chunks=chunks, chunk=chunk, quantum=quantum)
        try:
            yield bench
        finally:
            bench.close()
    finally:
        torch.set_num_threads(threads)
