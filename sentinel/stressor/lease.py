"""The child's side of the channel: its lease of life, its orders and what it says.

A thread reads the channel. A child that nobody renews the lease of ends, so that a supervisor that
died, hangs or was stopped frees every GPU. Where the thread cannot run, because native code holds
the interpreter's lock, a kernel timer ends the child instead.
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

from sentinel.errors import WireError
from sentinel.host.procfs import own_stat, read_stat
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.stressor import (
    STRESSOR_COMMANDS,
    ChildExitCode,
    ChildMessage,
    Finding,
    FindingAck,
    Lease,
    Note,
    Pace,
    Progress,
    Stop,
)

#: How much later than the thread the kernel's timer ends the child, in seconds: where both could,
#: the thread does, whose exit code says what happened.
_TIMER_GRACE = 0.25

#: How long a message that must arrive is tried, and how often, in seconds.
_PATIENCE = 1.0
_RETRY = 0.01

#: How often a finding is sent that nobody acknowledges.
_REPORTS = 5


class LeaseKeeper:
    """Keep this process alive while the supervisor renews its lease, and note its orders.

    Args:
        channel: The SOCK_SEQPACKET socket to the supervisor.
        lease: How long the child may live without hearing from the supervisor, in seconds.

    Attributes:
        stopped: Set once the workload is to end.
        share: The share of the time for which the device is to be busy, from 0 to 1.
        repaced: Set whenever there is another share, or a stop; whoever looks clears it first.
    """

    def __init__(self, channel: socket.socket, lease: float) -> None:
        self.stopped = threading.Event()
        self.share = 1.0
        self.repaced = threading.Event()
        self._known = threading.Condition()
        self._known_to = 0
        self._channel = channel
        self._lease = lease
        self._armed = False

    def start(self) -> None:
        """Begin to watch the channel; the first lease counts from now."""
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def arm(self) -> None:
        """Let the kernel end this process, too, once the lease runs out; for the main thread.

        Called when the context exists and not at birth: importing torch from a cold disk holds the
        interpreter's lock for 14 s, which would look like a stuck child, and until the context
        exists there is no GPU memory that anybody could be waiting for.
        """
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self._armed = True
        self._set_timer()

    def say(self, message: ChildMessage) -> bool:
        """Send ``message`` and return whether the channel took it.

        A full channel drops a Progress or a Note at once, since another one follows; any other
        message is tried for a second.
        """
        data = encode(message)
        deadline = time.monotonic() + (0.0 if isinstance(message, Note | Progress) else _PATIENCE)
        while True:
            try:
                self._channel.send(data, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_RETRY)
            except OSError:  # nobody is there any more; the thread sees the same and ends us
                return False
            else:
                return True

    def report(self, finding: Finding) -> bool:
        """Send ``finding`` until the supervisor says that it has it; return whether it does.

        One that never does so within some seconds is given up: it may be stopped, and then the
        lease runs out anyway.
        """
        for _ in range(_REPORTS):
            self.say(finding)
            with self._known:
                if self._known.wait_for(lambda: self._known_to >= finding.number, _PATIENCE):
                    return True
        return False

    def _set_timer(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._lease + _TIMER_GRACE)

    def _watch(self) -> None:
        """Read the channel until the end of the process."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        deadline = time.monotonic() + self._lease
        while True:
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            # The clock is read before the channel is drained. An import may starve this thread
            # between any two lines; leases that queued up meanwhile must count before a deadline
            # that passed meanwhile does.
            now = time.monotonic()
            if self._drain():
                deadline = time.monotonic() + self._lease
                if self._armed:
                    self._set_timer()
            elif now >= deadline:
                _end(ChildExitCode.LEASE_RAN_OUT)

    def _drain(self) -> bool:
        """Take in all that was sent so far; return whether the lease was renewed."""
        renewed = False
        while True:
            try:
                data = self._channel.recv(MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return renewed
            except OSError:
                data = b""
            if not data:
                _end(ChildExitCode.ORPHANED)
            # What is no message of ours renews nothing, and then the deadline judges it.
            with contextlib.suppress(WireError):
                match decode(data, STRESSOR_COMMANDS):
                    case Lease():
                        renewed = True
                    case Stop():
                        self._stop()
                    case Pace(share=share):
                        self.share = min(1.0, max(0.0, share))
                        self.repaced.set()
                    case FindingAck(number=number):
                        with self._known:
                            self._known_to = max(self._known_to, number)
                            self._known.notify_all()

    def _stop(self) -> None:
        """Ask the workload to end; before there is a context, there is nothing to ask."""
        if not self._armed:
            os._exit(ChildExitCode.DONE)
        self.stopped.set()
        self.repaced.set()


def _end(code: ChildExitCode) -> None:
    """End this process and all that it started; the supervisor cannot do that any more.

    A process that a workload forked holds open what it inherited of the driver, and with it memory.
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
