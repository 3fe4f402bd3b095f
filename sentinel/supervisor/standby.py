"""The standby stressor, which becomes the next stressor, and its replacements."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sentinel.core.observation import SpareFacts
from sentinel.errors import WireError
from sentinel.host.processes.process_limits import available_bytes
from sentinel.host.processes.procfs import read_stat
from sentinel.protocol.stressor import (
    STRESSOR_MESSAGES,
    Activate,
    ChildMessage,
    Failed,
    Prepared,
    StandbySpec,
    StressorSpec,
)
from sentinel.stressor import standby as standby_process
from sentinel.supervisor.child_process import ChildHandle

#: Below so much available memory a standby stressor is given up, and it is not started below twice
#: as much, in bytes. It takes 350 MB on an H200 host, and a stressor 600 to 900 MB.
MIN_AVAILABLE_BYTES = 2**30
#: The interval of the looks at the available memory, in seconds.
LOOK_EVERY_S = 5.0
_MAX_MESSAGES = 16


class StandbyStressor:
    """At most one process that has loaded torch and waits for a GPU.

    Args:
        environment: The changes to the variables of every stressor.
        spec: The user that it becomes, and the files that it may use.
    """

    def __init__(self, environment: Mapping[str, str | None], spec: StandbySpec) -> None:
        self._spec = spec
        self._handle: ChildHandle[ChildMessage] = ChildHandle(
            standby_process.run,
            STRESSOR_MESSAGES,
            max_messages=_MAX_MESSAGES,
            # Should a library start CUDA all the same, it shall find no GPU.
            environment={**environment, "CUDA_VISIBLE_DEVICES": ""},
        )
        self._ready = False
        self._failed: str | None = None
        self._looked_at = float("-inf")
        self._available: int | None = None

    def start(self) -> None:
        """Spawn a standby stressor."""
        self._ready, self._failed = False, None
        self._handle.start(0, self._spec)

    def kill(self) -> None:
        """Kill the standby stressor and forget it."""
        self._ready = False
        self._handle.abandon()

    def activate(
        self,
        handle: ChildHandle[ChildMessage],
        generation: int,
        spec: StressorSpec,
        fds: Sequence[int],
    ) -> bool:
        """Make it the child of ``handle``; return False if none is ready.

        Args:
            handle: A handle without a child.
            generation: The number of the new child.
            spec: What it is to run.
            fds: The descriptor of its stamps, then those of the GPU's locks.
        """
        child = self._handle.child
        if not self._ready or child is None or child.ended():
            return False
        self._ready = False
        stat = read_stat(child.pid)
        if stat is not None and stat.stopped:  # it would keep its GPU waiting for --start-timeout
            self.kill()
            return False
        try:
            sent = self._handle.send(Activate(spec=spec), fds)
        except (WireError, OSError):  # options that no message has room for, or no descriptor left
            sent = False
        if not sent:
            self.kill()
            return False
        handle.adopt(self._handle, generation)
        return True

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return self._handle.files()

    def collect(self) -> SpareFacts | None:
        """Collect the new facts about it; None without one."""
        received = self._handle.collect()
        if received is None:
            return None
        for message in received.messages:
            match message:
                case Prepared():
                    self._ready = True
                case Failed(reason=reason):
                    self._failed = reason
        self._ready &= received.exit is None
        failed = received.spawn_error or self._failed
        return SpareFacts(ready=self._ready, failed=failed, exit=received.exit)

    def memory_left(self) -> bool:
        """Check that the host has memory for it."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._available = now, available_bytes()
        least = MIN_AVAILABLE_BYTES if self._handle.child else 2 * MIN_AVAILABLE_BYTES
        return self._available is None or self._available >= least

    def close(self) -> bool:
        """Kill it; return whether it is gone."""
        return self._handle.close()
