"""A context on a simulated GPU in this process, with findings collected in a list."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from sentinel.messages import Finding, MemoryTarget
from sentinel.simulation import Registry
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import SimulatedDevice
from sentinel.stressor.leash import Leash
from sentinel.stressor.memory import fill
from sentinel.stressor.ring import Ring

CHUNK = 512 * 2**20
MOST = 10_000


class Workbench(WorkloadContext):
    """A context whose quanta take no time, and which keeps its findings to itself."""

    def __init__(self, device: SimulatedDevice, leash: Leash, chunks: int) -> None:
        filling = fill(device, MemoryTarget(size=chunks * CHUNK), CHUNK)
        super().__init__(device=device, filling=filling, leash=leash)
        self.found: list[Finding] = []
        self.leash = leash
        self.errors = self.checks = 0

    def find(self, finding: Finding) -> None:
        self.found.append(replace(finding, number=len(self.found) + 1))

    def pace(self, rest: float = 0.0, *, before_rest: Callable[[], object] | None = None) -> bool:
        return self.drain()

    def report(self, **counts: float) -> None:
        self.errors += int(counts.get("errors", 0))
        self.checks += int(counts.get("checks", 0))
        super().report(**counts)  # type: ignore[arg-type]


@contextmanager
def workbench(folder: Path, chunks: int = 8) -> Iterator[Workbench]:
    """Give a context with so many chunks of 128 KiB."""
    registry = Registry.create(folder, 1)
    device = SimulatedDevice(registry, registry.gpus()[0].uuid)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a stressor does
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        yield Workbench(device, Leash(theirs, 3.0), chunks)
    finally:
        torch.set_num_threads(threads)
        device.membership.close()
        ours.close()
        theirs.close()


def turn_until(ring: Ring, round_: int) -> None:
    """Go round until the ring was written so often, and everything is judged."""
    for _ in range(MOST):
        if ring.rounds >= round_:
            return
        assert ring.turn()
    raise AssertionError(f"no round {round_}")
