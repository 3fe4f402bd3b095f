"""A workload context on a simulated GPU, and the supervisor's end of its channel."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Self

from sentinel.host.simulation import Registry
from sentinel.protocol import codec
from sentinel.protocol.stressor import ChildMessage, MemoryTarget, Note, Progress, Ready
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import fill
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.simulated_device import SimulatedDevice

GIB = 2**30
CHUNK = GIB // 2


class Bench:
    """A context, its device and the supervisor's end of its channel; the lease is not started.

    A context manager that closes all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.registry = Registry.create(folder, 1)
        self.uuid = self.registry.gpus()[0].uuid
        self.device = SimulatedDevice(self.registry, self.uuid)
        self.channel, self.child_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lease_keeper = LeaseKeeper(self.child_channel, 3.0)
        filling = fill(self.device, MemoryTarget(size=2 * GIB), CHUNK)
        self.ctx = WorkloadContext(
            device=self.device, filling=filling, lease_keeper=self.lease_keeper
        )

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
