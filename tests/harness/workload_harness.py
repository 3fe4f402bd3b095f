"""A workload context in the test's process, and a result pipeline with tiny matrices on it.

The simulated GPU has no delays.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import pytest
import torch

from sentinel.config.options import Verify
from sentinel.host.simulation import Registry
from sentinel.protocol import codec
from sentinel.protocol.stressor import (
    ChildMessage,
    Finding,
    MemoryTarget,
    Note,
    Progress,
    Ready,
    StressorSpec,
)
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import Device, Fence, Filling, fill, plan
from sentinel.stressor.execution_units import UNITS
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.matmul import DTYPES, MEMORY
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.simulated_device import SimulatedDevice
from sentinel.stressor.sizing import build
from sentinel.stressor.start_watch import StartWatch

M = TypeVar("M")

GIB = 2**30
CHUNK = GIB // 2


class InstantDevice(SimulatedDevice):
    """A simulated GPU that completes work at once and calls ``on_wait`` at each wait."""

    def __init__(self, registry: Registry, uuid: str, quantum: float) -> None:
        super().__init__(registry, uuid)
        self.quantum = quantum
        self.on_wait: Callable[[], None] = lambda: None

    def wait(self, fence: Fence) -> float:
        self.on_wait()
        return 0.0


class RecordingLeaseKeeper(LeaseKeeper):
    """A lease keeper that records messages instead of sending them."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(channel, 3.0)
        self.sent: list[ChildMessage] = []

    def send(self, message: ChildMessage) -> bool:
        self.sent.append(message)
        return True

    def report_finding(self, finding: Finding) -> bool:
        return self.send(finding)


def filled(
    device: Device,
    target: MemoryTarget,
    chunk: int,
    reserve: int = 0,
    watch: StartWatch | None = None,
) -> Filling:
    """Take the memory of a target."""
    return fill(device, plan(device.free_bytes(), target, chunk, reserve), watch)


def spec_on(registry: Registry, *, exact_start: bool = True) -> StressorSpec:
    """Specify a stressor that holds half of the first GPU."""
    return StressorSpec(
        gpu=registry.gpus()[0],
        memory=MemoryTarget(share=0.5),
        chunk=GIB,
        workload="hold",
        options={},
        lease=3.0,
        simulation=str(registry.folder),
        exact_start=exact_start,
    )


class Bench:
    """A workload context on a simulated GPU, and the supervisor's end of its channel.

    A context manager that closes all of them; the lease is not started.
    """

    def __init__(self, folder: Path, *, chunks: int = 4, chunk: int = CHUNK) -> None:
        self.registry = Registry.create(folder, 1)
        self.uuid = self.registry.gpus()[0].uuid
        self.channel, self.child_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.device = self.open_device()
        self.lease_keeper = self.keep_lease()
        filling = filled(self.device, MemoryTarget(size=chunks * chunk), chunk)
        self.ctx = WorkloadContext(
            device=self.device, filling=filling, lease_keeper=self.lease_keeper
        )

    def open_device(self) -> SimulatedDevice:
        return SimulatedDevice(self.registry, self.uuid)

    def keep_lease(self) -> LeaseKeeper:
        return LeaseKeeper(self.child_channel, 3.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.device.membership.close()
        self.channel.close()
        self.child_channel.close()

    def received(self) -> list[ChildMessage]:
        found: list[ChildMessage] = []
        while True:
            try:
                data = self.channel.recv(codec.MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            kinds: tuple[type[ChildMessage], ...] = (Ready, Progress, Note)
            found.append(codec.decode(data, kinds))

    def become_ready(self) -> None:
        assert self.ctx.pace()
        assert self.received() == []
        assert self.ctx.pace()
        assert self.received() == [Ready(held=2 * GIB, asked=2 * GIB, chunks=4, refused=False)]


class Workbench(Bench):
    """A bench with a device without delays, which records all messages instead of sending them."""

    device: InstantDevice
    lease_keeper: RecordingLeaseKeeper

    def __init__(self, folder: Path, *, chunks: int, chunk: int, quantum: float) -> None:
        self._quantum = quantum
        super().__init__(folder, chunks=chunks, chunk=chunk)

    def open_device(self) -> InstantDevice:
        return InstantDevice(self.registry, self.uuid, self._quantum)

    def keep_lease(self) -> RecordingLeaseKeeper:
        return RecordingLeaseKeeper(self.child_channel)

    def sent(self, kind: type[M]) -> list[M]:
        """List the recorded messages of this kind."""
        return [message for message in self.lease_keeper.sent if isinstance(message, kind)]

    def findings(self) -> list[Finding]:
        return self.sent(Finding)

    def done(self) -> Progress:
        """Sum all progress, including unsent progress."""
        self.ctx.finish()
        if not self.ctx.ready:
            self.ctx._send_progress(self.ctx._last_progress_at)  # none is sent before Ready
        progress = self.sent(Progress)
        return Progress(
            seconds=sum(message.seconds for message in progress),
            iterations=sum(message.iterations for message in progress),
            flops=sum(message.flops for message in progress),
            bytes=sum(message.bytes for message in progress),
            checks=sum(message.checks for message in progress),
            errors=sum(message.errors for message in progress),
            max_quantum_s=max((message.max_quantum_s for message in progress), default=0.0),
        )

    def stop(self) -> None:
        self.lease_keeper.stopped.set()


@contextmanager
def workbench(
    folder: Path, *, chunks: int = 4, chunk: int = GIB // 64, quantum: float = 1e-4
) -> Iterator[Workbench]:
    """Provide a context with some chunks. Sizes are simulated: 4096 times the real ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a stressor does
    try:
        with Workbench(folder, chunks=chunks, chunk=chunk, quantum=quantum) as bench:
            yield bench
    finally:
        torch.set_num_threads(threads)


#: All dtypes. The CPU emulates fp8 at 60 ns per multiplication.
ALL_DTYPES = [
    pytest.param(name, marks=pytest.mark.long if name == "fp8" else ()) for name in DTYPES
]
#: All dtypes, and memory traffic.
ALL = [*ALL_DTYPES, "memory"]

#: Rows of the matrices.
SIZE = 16

#: The simulated size of a chunk. Its tensor has 2 KiB: one result in fp64, four in bf16.
TINY_CHUNK = 8 * 2**20

#: Units that no CPU has: products in fp4, and kernels in PTX.
NOT_ON_CPUS = {"fp4", "sfu", "shared"}

#: More steps than any tested number of rounds takes.
MAX_STEPS = 10_000


@contextmanager
def pipeline_bench(folder: Path) -> Iterator[Workbench]:
    """Provide a context with memory for a few dozen tiny results."""
    with workbench(folder, chunks=14, chunk=TINY_CHUNK) as bench:
        yield bench


def unprepared_pipeline(
    bench: Workbench, name: str = "bf16", verify: Verify = "full"
) -> ResultPipeline:
    dtype = {**DTYPES, **UNITS}.get(name, MEMORY)
    (pipeline,) = build(bench.ctx, (dtype,), workload="gemm", size=SIZE, verify=verify)
    return pipeline


def pipeline_of(bench: Workbench, name: str = "bf16", verify: Verify = "full") -> ResultPipeline:
    pipeline = unprepared_pipeline(bench, name, verify)
    pipeline.prepare(seed=1)
    assert bench.findings() == []
    return pipeline


def step_until(pipeline: ResultPipeline, round_: int) -> None:
    """Step until the pipeline was written ``round_`` times."""
    for _ in range(MAX_STEPS):
        if pipeline.rounds >= round_:
            return
        assert pipeline.step()
    raise AssertionError(f"no round {round_}")
