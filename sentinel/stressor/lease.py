"""The stressor's end of the channel: its lease, the supervisor's commands and its own messages.

A thread reads the channel and ends the process when the lease expires, so that a supervisor that
died, hangs or was stopped frees every GPU. If native code holds the interpreter lock and the thread
cannot run, a kernel timer ends the process instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

from sentinel.errors import ChildExitCode, WireError
from sentinel.host.procfs import own_stat, read_stat
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, send_now
from sentinel.protocol.stressor import (
    STRESSOR_COMMANDS,
    ChildMessage,
    Finding,
    FindingAck,
    Lease,
    MemoryLimit,
    Note,
    Pace,
    Progress,
    Stop,
)

#: How much later than the thread the kernel timer fires: the thread ends the process if it can,
#: since its exit code gives the reason.
_TIMER_SLACK_S = 0.25

#: How long a message that must arrive is retried, and the interval of the retries.
_SEND_TIMEOUT_S = 1.0
_RETRY_INTERVAL_S = 0.01

#: How long a lease says that the probe reads, in seconds: two intervals of renewal.
_SHARED_S = 1.0

#: How often an unacknowledged finding is sent.
_MAX_FINDING_SENDS = 5


class LeaseKeeper:
    """Keeps this process alive while its lease is renewed, and records the supervisor's commands.

    Args:
        channel: The SOCK_SEQPACKET socket to the supervisor.
        lease: The duration of the first lease in seconds, and of no later one more.

    Attributes:
        stopped: Set when the workload is to end.
        share: The share of the time for which the device is to be busy, from 0 to 1.
        pace_changed: Set by a new share or a stop; the waiter clears it before it waits.
        memory_limit: Beyond which used memory of the GPU a newcomer is there, and what to do then.
        start_limit: The same by this process's own account while it starts; None if it has none.
        limited: Whether the supervisor has sent a limit, which replaces that of the start.
        shared_until: Until when the probe reads that memory, too.
        alone: Set while it does not.
    """

    def __init__(self, channel: socket.socket, lease: float) -> None:
        self.stopped = threading.Event()
        self.share = 1.0
        self.pace_changed = threading.Event()
        self.memory_limit = MemoryLimit(used=None)
        self.start_limit: int | None = None
        self.limited = False
        self.shared_until = 0.0
        self.alone = threading.Event()
        self.alone.set()
        self._acknowledged = threading.Condition()
        self._acknowledged_to = 0
        self._channel = channel
        self._lease = lease
        self._armed = False

    def fileno(self) -> int:
        """Return the descriptor of the channel."""
        return self._channel.fileno()

    def start(self) -> None:
        """Start to watch the channel; the first lease begins now."""
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def arm(self) -> None:
        """Have the kernel, too, end this process when the lease expires; for the main thread.

        Called once the context exists, not at the start: an import of torch from a cold disk holds
        the interpreter lock for 14 s and would look like a stuck process. Before the context
        exists, this process holds no GPU memory.
        """
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self._armed = True
        self._set_timer()

    def send(self, message: ChildMessage) -> bool:
        """Send ``message``, and return whether the channel accepted it.

        If the channel is full, a Progress or a Note is dropped, since another one follows. Any
        other message is retried for a second.
        """
        if isinstance(message, Note | Progress):
            return self.try_send(message)
        deadline = time.monotonic() + _SEND_TIMEOUT_S
        while not (sent := self.try_send(message)) and time.monotonic() < deadline:
            time.sleep(_RETRY_INTERVAL_S)
        return sent

    def try_send(self, message: ChildMessage) -> bool:
        """Send ``message`` if the channel has room now, and return whether it had."""
        return send_now(self._channel, message)

    def report_finding(self, finding: Finding) -> bool:
        """Send ``finding`` until the supervisor acknowledges it, and return whether it did.

        Gives up after some seconds: a supervisor that is stopped lets the lease expire anyway.
        """
        for _ in range(_MAX_FINDING_SENDS):
            self.send(finding)
            with self._acknowledged:
                if self._acknowledged.wait_for(
                    lambda: self._acknowledged_to >= finding.number, _SEND_TIMEOUT_S
                ):
                    return True
        return False

    def stop(self) -> None:
        """Ask the workload to end; without a context, end at once."""
        if not self._armed:
            os._exit(ChildExitCode.DONE)
        self.stopped.set()
        self.pace_changed.set()

    def _set_timer(self) -> None:
        # The first lease is the longest. A short one would end a process whose kernels are loaded
        # for the first time, which holds the interpreter lock for longer.
        signal.setitimer(signal.ITIMER_REAL, self._lease + _TIMER_SLACK_S)

    def _watch(self) -> None:
        """Read the channel until the process ends."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        deadline = time.monotonic() + self._lease
        while True:
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            # Read the clock before draining the channel. An import may starve this thread between
            # any two lines, and leases that queued up meanwhile must count before a deadline that
            # passed meanwhile.
            now = time.monotonic()
            lease = self._drain()
            if lease is not None:
                deadline = time.monotonic() + lease
                if self._armed:
                    self._set_timer()
            elif now >= deadline:
                _end(ChildExitCode.LEASE_RAN_OUT)

    def _drain(self) -> float | None:
        """Process all queued messages; return the seconds of the last lease, or None."""
        lease: float | None = None
        while True:
            try:
                data = self._channel.recv(MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return lease
            except OSError:
                data = b""
            if not data:
                _end(ChildExitCode.ORPHANED)
            # An invalid message does not renew the lease, so the deadline decides.
            with contextlib.suppress(WireError):
                match decode(data, STRESSOR_COMMANDS):
                    case Lease(seconds=seconds, shared=shared):
                        lease = seconds
                        self.shared_until = time.monotonic() + _SHARED_S if shared else 0.0
                        (self.alone.clear if shared else self.alone.set)()
                    case MemoryLimit() as limit:
                        self.memory_limit, self.limited = limit, True
                    case Stop():
                        self.stop()
                    case Pace(share=share):
                        self.share = min(1.0, max(0.0, share))
                        self.pace_changed.set()
                    case FindingAck(number=number):
                        with self._acknowledged:
                            self._acknowledged_to = max(self._acknowledged_to, number)
                            self._acknowledged.notify_all()


def _end(code: ChildExitCode) -> None:
    """End this process and every process that it started; the supervisor cannot do that any more.

    A process forked by a workload inherits the driver's descriptors and holds GPU memory with them.
    """
    try:
        own = own_stat()
        for entry in Path("/proc").iterdir():
            stat = read_stat(entry.name) if entry.name.isdecimal() else None
            if stat is not None and stat.session == own.pid != stat.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(stat.pid, signal.SIGKILL)
    finally:
        os._exit(code)
