"""A real probe process, and the supervisor's end of its socket."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.host.process_setup import Inherited
from sentinel.probe.main import run
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import (
    PROBE_MESSAGES,
    Inventory,
    Listed,
    ProbeMessage,
    ProbeSpec,
    Watch,
    XidReport,
    XidsWatched,
)
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, Stamps
from tests.harness.timing import TIMEOUT_S

#: A poll interval longer than any test, so that every reading has another cause.
NEVER = 3600.0


class ProbeHarness:
    """A probe process, and the supervisor's end of its channel and in-flight calls."""

    def __init__(self, spec: ProbeSpec, send_buffer: int | None = None) -> None:
        self.inflight_calls = InflightCalls.create()
        #: Messages about XIDs that were received and not asked for.
        self.of_xids: list[XidReport | XidsWatched] = []
        self.channel, probe_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if send_buffer is not None:
            probe_channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.stamps = Stamps.create(MAX_GPUS)
        shared = (Inherited(self.inflight_calls.fd), Inherited(self.stamps.fd))
        self.process = multiprocessing.get_context("spawn").Process(
            target=run, args=(spec, probe_channel, os.getpid(), *shared)
        )
        self.process.start()
        probe_channel.close()

    def next_message(self) -> ProbeMessage:
        """Receive the next message that is not about XIDs."""
        while isinstance(message := self._receive(), XidReport | XidsWatched):
            self.of_xids.append(message)
        return message

    def xid_message(self) -> XidReport | XidsWatched:
        """Receive the next message about XIDs."""
        while not self.of_xids:
            message = self._receive()
            if isinstance(message, XidReport | XidsWatched):
                return message
        return self.of_xids.pop(0)

    def _receive(self) -> ProbeMessage:
        self.channel.settimeout(TIMEOUT_S)
        data = self.channel.recv(MAX_DATAGRAM_BYTES)
        assert data, "the probe closed its end"
        return decode(data, PROBE_MESSAGES)

    def inventory(self) -> Inventory:
        """Receive the inventory, which is the first message."""
        message = self.next_message()
        assert isinstance(message, Inventory)
        return message

    def reading(self, matches: Callable[[Reading], bool]) -> Reading:
        """Receive readings until one matches; return it. A loss brings a list of the GPUs, too."""
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            message = self.next_message()
            assert isinstance(message, Reading | Listed)
            if isinstance(message, Reading) and matches(message):
                return message
        message_ = "no matching reading within the timeout"
        raise AssertionError(message_)

    def read_all(self, gpus: tuple[Gpu, ...]) -> None:
        """Wait for a reading of each of ``gpus``, in any order."""
        missing = {gpu.uuid for gpu in gpus}
        while missing:
            missing.discard(self.reading(lambda _: True).uuid)

    def watch(self, gpus: tuple[Gpu, ...], held: tuple[Gpu, ...] = ()) -> None:
        """Send the probe its watch list."""
        watch = Watch(gpus=tuple(g.uuid for g in gpus), held=tuple(g.uuid for g in held))
        self.channel.send(encode(watch))

    def announced(self) -> tuple[tuple[int, str], ...]:
        """List the calls in flight."""
        return tuple((slot, call) for slot, call, _ in self.inflight_calls.outstanding())

    def wait_for_end(self) -> int | None:
        """Wait for the exit; return the exit code."""
        self.process.join(TIMEOUT_S)
        code: int | None = self.process.exitcode
        return code

    def close(self) -> None:
        """Kill the probe and close its channel."""
        self.channel.close()
        self.process.kill()
        self.process.join(TIMEOUT_S)
        self.process.close()
        self.inflight_calls.close()
        self.stamps.close()


def open_nodes(*nodes: Path) -> None:
    """Open each node eight times, alternating, since inotify merges equal consecutive events."""
    for _ in range(8):
        for node in nodes:
            os.close(os.open(node, os.O_RDONLY))
